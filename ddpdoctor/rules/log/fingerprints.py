"""What torch's wrapper of a process group says of ranks that call different collectives (TORCH_DISTRIBUTED_DEBUG=DETAIL)."""

from __future__ import annotations

import re

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.findings import Evidence, Finding, Where
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.logs.traceback_of_line import traceback_of
from ddpdoctor.rules.log.ended_ranks import names_of
from ddpdoctor.rules.log.signatures import shortened

__all__ = ["fingerprints"]

ASPECTS = ("Op type", "Tensor shapes", "Tensor dtypes")
_RUNNING = re.compile(
    r"Rank (?P<rank>\d+) is running collective: CollectiveFingerPrint\((?:SequenceNumber=\d+,? ?)?OpType=(?P<op>\w+)"
    r"(?:, TensorShape=\[(?P<shape>[\d, ]*)\])?"
)
"""What torch's wrapper of a process group says that a rank called."""


def fingerprints(log: Log, aspect: str) -> Finding | None:
    """The finding where `aspect` is the one that tells: the first aspect in which two calls differ is the one that tells."""
    for line in matching_lines(
        log, (r"Collectives differ in the following aspects", r"Detected mismatch between collectives")
    ):
        said = line.text.partition("following aspects:")[2].replace("Tensor Tensor", "Tensor").strip()
        calls = {int(each["rank"]): each for each in _RUNNING.finditer(line.text)}
        differences = said or _differences(calls)
        first = next((each for each in ASPECTS if each in differences), None)
        if first == aspect:
            return _called(log, line, differences, sorted(calls))
    return None


def _differences(calls: dict[int, re.Match[str]]) -> str:
    """The aspect in which the calls differ, where torch (before 2.0) only says what each rank called."""
    for aspect, name in zip(ASPECTS, ("op", "shape"), strict=False):
        told = [f"{call[name]} on rank {rank}" for rank, call in calls.items() if call[name] is not None]
        if len({call[name] for call in calls.values()} - {None}) > 1:
            return f"{aspect}: {' against '.join(told)}"
    return ""


def _called(log: Log, line: LogLine, differences: str, ranks: list[int]) -> Finding:
    traceback = traceback_of(log, line)
    place = None if traceback is None else traceback.place
    return Finding(
        f"{names_of(ranks, ()) if ranks else 'the ranks'} called different collectives: {shortened(differences)}",
        (Evidence(log.place(line.source, line.number), shortened(line.text)),),
        where=Where(
            file=log.sources[line.source].name if place is None else place.file,
            line=line.number if place is None else place.line,
        ),
        ranks=tuple(ranks),
    )
