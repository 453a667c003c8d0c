"""The Ray cluster that a job file starts: each `ray start` on its host, and the jobs that it submits to one.

Source: `ray start --help` and `ray job submit --help` of Ray 2.40; python/ray/scripts/scripts.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.words import Mark
from ddpdoctor.facts.submission import GpuDemand, RayStart, RaySubmit
from ddpdoctor.launch.evaluator.values import Origin, Value

if TYPE_CHECKING:
    from ddpdoctor.launch.evaluator.imagined_run import ImaginedRun, StartedProgram

__all__ = ["gpu_demands", "ray_starts", "ray_submits"]

_PORT = 6379
"""The default of `--port`."""
_URL = re.compile(r"(?:(\w+)://)?([^:/\s]+)(?::(\d{1,5}))?/?")


def ray_starts(programs: Sequence[StartedProgram], mark: Callable[[Origin], Mark]) -> tuple[RayStart, ...]:
    """Every `ray start`."""
    found = []
    for each in programs:
        if not _is_ray(each, "start"):
            continue
        options = dict(_options(each.argv[2:]))
        head = "--head" in options
        target = _text(options, "--address")
        url = _URL.fullmatch(target) if target else None
        port = _text(options, "--port") if head else None if url is None else url[3]
        found.append(
            RayStart(
                host=each.place.host,
                is_head=head,
                at=mark(each.argv[0].origins[0] if each.argv[0].origins else each.origin),
                address=None if head or url is None else url[2],
                port=_number(port) if port is not None else _PORT if head and "--port" not in options else None,
                told=_number(_text(options, "--num-gpus")),
                gpus=each.place.gpus,
                blocks="--block" in options or not each.is_alone,
                starter=each.place.via[-1] if each.place.via else "",
                is_certain=each.is_certain,
                is_background=each.is_background,
                is_alone=each.is_alone or not each.place.via,
                places={name: mark(at.origins[0]) for name, (at, _) in options.items() if at.origins},
            )
        )
    return tuple(found)


def ray_submits(programs: Sequence[StartedProgram], mark: Callable[[Origin], Mark]) -> tuple[RaySubmit, ...]:
    """Every `ray job submit` with a known address, of the command line or RAY_ADDRESS."""
    found = []
    for each in programs:
        if not _is_ray(each, "job", "submit"):
            continue
        words = each.argv[3:]
        end = next((at for at, word in enumerate(words) if word.text == "--"), len(words))
        options = dict(_options(words[:end]))
        given, value = options.get("--address", (each.argv[0], None))
        url = _URL.fullmatch(value.text) if value is not None and value.is_known else None
        if url is not None:
            place = mark(given.origins[0] if given.origins else each.origin)
            found.append(RaySubmit(url[1] or "", url[2], _number(url[3]), place))
    return tuple(found)


def _is_ray(program: StartedProgram, *words: str) -> bool:
    texts = [value.text for value in program.argv[: 1 + len(words)]]
    return bool(texts) and texts[0].rpartition("/")[2] == "ray" and texts[1:] == list(words)


def _options(words: Sequence[Value]) -> Iterator[tuple[str, tuple[Value, Value | None]]]:
    """Each option with its word and its value: `--port=6379`, `--port 6379`, `--head`."""
    for at, word in enumerate(words):
        name, sign, text = word.text.partition("=")
        if not name.startswith("--"):
            continue
        following = words[at + 1] if at + 1 < len(words) else None
        if sign:
            yield name, (word, word.with_text(text))
        else:
            yield name, (word, None if following is None or following.text.startswith("--") else following)


def _text(options: Mapping[str, tuple[Value, Value | None]], name: str) -> str | None:
    value = options.get(name, (None, None))[1]
    return value.text if value is not None and value.is_known else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,6}", text) else None


def gpu_demands(run: ImaginedRun, mark: Callable[[Origin], Mark]) -> tuple[GpuDemand, ...]:
    """What the programs of a run ask of their Ray cluster, by the options of vLLM, verl and Ray Train's examples.

    Sources: vllm/engine/arg_utils.py; verl/trainer/config/ppo_trainer.yaml; ray-project/ray, doc/source/train/examples.
    """
    programs = [(each.place.host, each.argv, each.origin) for each in run.launched if each.is_certain]
    programs += [(each.place.host, each.argv, each.origin) for each in run.programs if each.is_certain]
    found = []
    for host, argv, origin in programs:
        settings = dict(_settings(argv))
        for names, gpus_of in _DEMANDS:
            values = [settings.get(name) for name in names]
            numbers = [_number(value.text) for value in values if value is not None and value.is_known]
            first = next((value for value in values if value is not None), None)
            is_meant = first is not None and None not in numbers and len(numbers) == sum(v is not None for v in values)
            gpus = gpus_of([1 if v is None else _number(v.text) or 1 for v in values], argv) if is_meant else None
            if gpus is not None and first is not None:
                text = " ".join(name for name, value in zip(names, values, strict=True) if value is not None)
                place = first.origins[0] if first.origins else origin
                found.append(GpuDemand(host, gpus, text, mark(place)))
                break
    return tuple(found)


def _settings(argv: Sequence[Value]) -> Iterator[tuple[str, Value]]:
    """`--name value`, `--name=value`, `name=value`; underscores and dashes are the same."""
    for at, word in enumerate(argv):
        name, sign, text = word.text.partition("=")
        key = name.lstrip("-+").replace("_", "-")
        if sign:
            yield key, word.with_text(text)
        elif name.startswith("--") and at + 1 < len(argv):
            yield key, argv[at + 1]


def _of_vllm(numbers: Sequence[int], argv: Sequence[Value]) -> int | None:
    """Tensor times pipeline parallelism, of `vllm serve` or its server modules; one replica at least is placed."""
    return numbers[0] * numbers[1] if any("vllm" in value.text for value in argv[:6]) else None


def _of_verl(numbers: Sequence[int], argv: Sequence[Value]) -> int | None:
    return numbers[0] * numbers[1]


def _of_train(numbers: Sequence[int], argv: Sequence[Value]) -> int | None:
    """One GPU per worker."""
    return numbers[0] if any(value.text in ("--use-gpu", "--use_gpu") for value in argv) else None


_DEMANDS: Sequence[tuple[tuple[str, ...], Callable[[Sequence[int], Sequence[Value]], int | None]]] = (
    (("tensor-parallel-size", "pipeline-parallel-size"), _of_vllm),
    (("trainer.nnodes", "trainer.n-gpus-per-node"), _of_verl),
    (("num-workers",), _of_train),
)
