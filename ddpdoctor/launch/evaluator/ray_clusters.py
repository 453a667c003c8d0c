"""The Ray cluster that a job file starts: each `ray start` on its host, and the jobs that it submits to one.

Source: `ray start --help` and `ray job submit --help` of Ray 2.40; python/ray/scripts/scripts.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.words import Mark
from ddpdoctor.facts.submission import RayStart, RaySubmit
from ddpdoctor.launch.evaluator.values import Origin, Value

if TYPE_CHECKING:
    from ddpdoctor.launch.evaluator.imagined_run import StartedProgram

__all__ = ["ray_starts", "ray_submits"]

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
