"""What torch prints about ranks that call different collectives (with TORCH_DISTRIBUTED_DEBUG=DETAIL)."""

from __future__ import annotations

import re

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.findings import Evidence, Finding, Where
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.logs.traceback_of_line import traceback_of
from ddpdoctor.rules.log.headlines import LONGEST_EXCEPTION, clipped, headline, names_of
from ddpdoctor.rules.log.signatures import shortened

__all__ = ["fingerprints"]

ASPECTS = ("Op type", "Tensor shapes", "Tensor dtypes")
_RUNNING = re.compile(
    r"Rank (?P<rank>\d+) is running collective: CollectiveFingerPrint\((?:SequenceNumber=\d+,? ?)?OpType=(?P<op>\w+)"
    r"(?:, TensorShape=\[(?P<shape>[\d, ]*)\])?"
)
"""What torch prints about the collective that a rank called."""


def fingerprints(log: Log, aspect: str) -> Finding | None:
    """The finding if `aspect` is the first one in which two calls differ."""
    for line in matching_lines(
        log, (r"Collectives differ in the following aspects", r"Detected mismatch between collectives")
    ):
        stated = line.text.partition("following aspects:")[2].replace("Tensor Tensor", "Tensor").strip()
        calls = {int(match["rank"]): match for match in _RUNNING.finditer(line.text)}
        differences = stated or _differences(calls)
        first = next((name for name in ASPECTS if name in differences), None)
        if first == aspect:
            return _called(log, line, differences, sorted(calls))
    return None


def _differences(calls: dict[int, re.Match[str]]) -> str:
    """The aspect in which the calls differ; torch before 2.0 only prints what each rank called."""
    for aspect, name in zip(ASPECTS, ("op", "shape"), strict=False):
        values = [f"{call[name]} on rank {rank}" for rank, call in calls.items() if call[name] is not None]
        if len({call[name] for call in calls.values()} - {None}) > 1:
            return f"{aspect}: {', '.join(values)}"
    return ""


def _called(log: Log, line: LogLine, differences: str, ranks: list[int]) -> Finding:
    traceback = traceback_of(log, line)
    place = None if traceback is None else traceback.place
    return Finding(
        headline(
            names_of(ranks, ()) if ranks else "ranks",
            f"different collectives: {clipped(' '.join(differences.split()), LONGEST_EXCEPTION)}",
        ),
        (Evidence(log.place(line.source, line.number), shortened(line.text)),),
        where=Where(
            file=log.sources[line.source].name if place is None else place.file,
            line=line.number if place is None else place.line,
        ),
        ranks=tuple(ranks),
    )
