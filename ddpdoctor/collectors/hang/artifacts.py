"""`hang`: files that a stuck job left: Flight Recorder dumps, stacks, reports of NCCL's RAS; and saved facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ddpdoctor.dumps.flight_recorder import NOT_DUMPS
from ddpdoctor.dumps.selection import NAMELESS, choose
from ddpdoctor.facts.gaps import Gap
from ddpdoctor.facts.hang import DebugAnswer, Dump, Hang, Stack
from ddpdoctor.facts.log import InputKind, Log, LogSource
from ddpdoctor.facts.ras import Ras

__all__ = ["hang_artifacts", "hang_of_job"]

MAX_TEXT_BYTES = 16 << 20


def hang_artifacts(log: Log) -> Hang | None:
    """The dumps, stacks and RAS reports among the sources of a log; None without any."""
    dumps = [source.name for source in log.sources if _is_dump(source)]
    texts = [source for source in log.sources if source.kind in (InputKind.STACKS, InputKind.RAS)]
    if not dumps and not texts:
        return None
    from ddpdoctor.collectors.hang.dumps import read_dumps

    return replace(_texts(texts), dumps=read_dumps(dumps) if dumps else ())


def hang_of_job(found: Hang | None, log: Log, saved: Sequence[Hang] = ()) -> Hang | None:
    """The part of `found` that belongs to the sources of one job, and the `saved` facts; None without any.

    A file that could not be read at all is a gap.
    """
    names = {source.name for source in log.sources}
    dumps = tuple(dump for dump in (found.dumps if found is not None else ()) if dump.source in names)
    stacks = tuple(stack for stack in (found.stacks if found is not None else ()) if stack.source in names)
    ras = tuple(report for report in (found.ras if found is not None else ()) if report.source in names)
    answers = tuple(each for each in (found.debug_answers if found is not None else ()) if each.source in names)
    gaps = tuple(gap for gap in (found.gaps if found is not None else ()) if gap.path.removeprefix("hang.") in names)
    if not (dumps or stacks or ras or answers or gaps or saved):
        return None
    return Hang(
        dumps=(*dumps, *(dump for hang in saved for dump in hang.dumps)),
        stacks=stacks,
        processes=tuple(process for hang in saved for process in hang.processes),
        ras=(*ras, *(report for hang in saved for report in hang.ras)),
        debug_answers=answers,
        gaps=(*gaps, *_gaps(dumps)),
    )


def _gaps(dumps: Sequence[Dump]) -> Iterator[Gap]:
    """Dumps that could not be read at all, and those whose rank is unknown."""
    for dump in dumps:
        if dump.problem is not None and not len(dump) and not _is_other_data(dump):
            yield Gap(f"hang.{dump.source}", f"{dump.source}: {dump.problem}")
    for reason in choose(dumps)[1]:
        if reason.endswith(NAMELESS):
            yield Gap("hang.dumps", reason)


def _is_dump(source: LogSource) -> bool:
    """A dump, or an empty file with the name of one."""
    return source.kind is InputKind.DUMP or (source.kind is InputKind.EMPTY and "trace_rank_" in source.name)


def _is_other_data(dump: Dump) -> bool:
    """A pickle of plain data that is not a dump."""
    return dump.problem in NOT_DUMPS and dump.rank is None


def _texts(sources: Iterable[LogSource]) -> Hang:
    """Stacks and RAS reports, which are texts."""
    from ddpdoctor.collectors.log.inputs import UNREADABLE, inputs_of, opened
    from ddpdoctor.dumps.ras import ras_of
    from ddpdoctor.dumps.stacks import debug_answers_in, stacks_in

    stacks: list[Stack] = []
    ras: list[Ras] = []
    answers: list[DebugAnswer] = []
    gaps: list[Gap] = []
    for source in sources:
        (file_input,) = inputs_of([source.name])
        if file_input.path is None:
            continue
        try:
            with opened(file_input) as file:
                text = file.read(MAX_TEXT_BYTES).decode("utf-8", "replace")
            if source.kind is InputKind.RAS:
                ras += ras_of(source.name, text)
            else:
                stacks += stacks_in(source.name, text)
                answers += debug_answers_in(source.name, text)
        except UNREADABLE as error:
            gaps.append(Gap(f"hang.{source.name}", f"{source.name}: {getattr(error, 'strerror', None) or error}"))
        except ValueError as error:
            gaps.append(Gap(f"hang.{source.name}", f"{source.name}: {error}"))
    return Hang(stacks=tuple(stacks), ras=tuple(ras), debug_answers=tuple(answers), gaps=tuple(gaps))
