"""What executing a shell or batch file showed of it as a whole, for causes that no single launch line shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddpdoctor.facts.job_file import FileCommand, FileLaunch, JobFile, MissingVariable, TextSpan
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.programs import REMOTE
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.evaluator.cluster import option
from ddpdoctor.launch.evaluator.jobs import ImaginedJob
from ddpdoctor.launch.evaluator.launches import ImaginedRun, Launched
from ddpdoctor.launch.evaluator.values import ARRAY, RANDOM, TIME, Origin, Value
from ddpdoctor.launch.sbatch import batch_layer
from ddpdoctor.launch.shell.text import Offsets, parse

__all__ = ["job_file_of"]

MOST_COMMANDS = 4_000
"""Commands of a file that are kept."""


def job_file_of(path: str, text: str, version: Version, run: ImaginedRun, jobs: Sequence[ImaginedJob]) -> JobFile:
    """The file as a whole.

    Args:
        run: its execution.
        jobs: what its execution starts, job by job.
    """
    batch = batch_layer(text, version)
    late = tuple(_late_options(text))
    commands = (
        FileCommand(
            tuple(value.text for value in each.words),
            _span(each.origin),
            is_certain=each.is_certain,
            is_background=each.is_background,
        )
        for each in run.invoked[:MOST_COMMANDS]
    )
    programs = (
        FileCommand(
            tuple(value.text for value in each.argv),
            _span(each.origin),
            each.place.host,
            each.place.via,
            each.is_background,
            each.is_certain,
        )
        for each in run.programs[:MOST_COMMANDS]
    )
    return JobFile(
        path=path,
        text=text,
        commands=tuple(commands),
        programs=tuple(programs),
        launches=tuple(_launches(jobs)),
        missing=tuple(_missing(text, run)),
        late_options=late,
        is_batch=batch is not None or bool(late),
        is_array=batch is not None and option(batch, "-a", "--array") is not None,
        is_exclusive=batch is not None and _is_exclusive(batch),
        is_complete=not run.left_out,
        gpus=run.allocation.gpus_per_node,
    )


def _missing(text: str, run: ImaginedRun) -> Iterator[MissingVariable]:
    """Variables that are empty where a quoted text uses them; those that every shell of a cluster has are not meant."""
    seen = set()
    for each in run.missing:
        remote = next((name for name in reversed(each.via) if name in REMOTE), "")
        for name in each.names:
            is_set = re.search(rf"(?m)^[ \t]*(?:export[ \t]+)?({name})=", text)
            used = re.search(rf"\$(?:\{{{name}\}}|{name}\b)", text[each.origin.start :])
            is_doubtful = _EVERYWHERE.fullmatch(name) or re.search(rf"\b{name}=\S*\$\{{?{name}\b", text)
            if each.is_certain and name not in seen and used is not None and not is_doubtful:
                seen.add(name)
                at = each.origin.start
                assigned = None if is_set is None else TextSpan(*is_set.span(1))
                yield MissingVariable(name, TextSpan(at + used.start(), at + used.end()), assigned, remote)


_EVERYWHERE = re.compile(
    r"(SLURM|PMI|OMPI|PBS|LSB|CONDA)_\w+|PATH|HOME|USER|PWD|HOSTNAME|SHELL|TMPDIR|LD_LIBRARY_PATH|PYTHONPATH"
)


def _is_exclusive(batch: Layer) -> bool:
    return any(given.flag == "--exclusive" for given in batch.reading.given)


def _span(origin: Origin) -> TextSpan:
    return TextSpan(origin.start, origin.end)


def _launches(jobs: Sequence[ImaginedJob]) -> Iterator[FileLaunch]:
    for number, job in enumerate(jobs):
        for line, member in zip(job.launch.lines, job.launched, strict=True):
            yield FileLaunch(
                line=replace(line, node=None),
                span=_span(member.origin),
                host=member.place.host,
                via=member.place.via,
                group=number,
                order=member.order,
                is_background=member.is_background,
                is_certain=member.is_certain,
                gpus=member.place.gpus,
                fixed_port=None if line.plan is None else _fixed_port(line.plan, member),
            )


def _fixed_port(plan: Plan, member: Launched) -> int | None:
    """The port of the rendezvous, None where it is not written, or differs between two runs of the file."""
    if plan.port is None or plan.is_standalone:
        return None
    number = re.compile(rf"(?<!\d){plan.port}(?!\d)")
    sources = [value for value in member.argv if number.search(value.text.replace(UNKNOWN, ""))]
    return plan.port if sources and not any(_differs(value) for value in sources) else None


def _differs(value: Value) -> bool:
    return not value.varies.isdisjoint((RANDOM, TIME, ARRAY))


def _late_options(text: str) -> Iterator[TextSpan]:
    """`#SBATCH` lines of the file itself after its first command: the comments of the grammar, not lines of a heredoc."""
    if "#SBATCH" not in text:
        return
    root = parse(text).children
    offsets = Offsets(text)
    first = next((each for each in root if each.is_named and each.type != "comment"), None)
    for each in root:
        if first is not None and each.type == "comment" and each.start_byte > first.start_byte:
            start, end = offsets.of(each)
            if text.startswith("#SBATCH", start) and (start == 0 or text[start - 1] == "\n"):
                yield TextSpan(start, end)
