"""What only the failed run has, ranked: evidence to read beside the cause, not a cause by itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ddpdoctor.examined import RunDifference
from ddpdoctor.logs.run_features import FeatureKind, KnownValue, LineKind, RunFeatures

__all__ = ["MOST_DIFFERENCES", "run_differences"]

MOST_DIFFERENCES = 12
MOST_LINES = 6
LEAST_HOSTS = 3
"""So many hosts must print something alike before another one is an outlier."""
LONGEST = 160
SHORTEST = 12
MORE_OFTEN = 10
"""So many times as often as in any good run counts as new."""
LATE = 0.8
"""The part of a log after which a line is near the failure."""
_TROUBLE = re.compile(
    r"warn|error|fail|timed? ?out|timeout|retr(?:y|ies|ying)|lost|unreachable|refused|reset|denied|corrupt|throttl|degraded|slow"
    r"|down\b|mismatch|not found|unable|cannot|could not|nan\b|inf\b|overflow",
    re.IGNORECASE,
)
NOT_SET = "not set"


def run_differences(
    failed: RunFeatures, good: Sequence[RunFeatures], ends: Mapping[str, int], hosts: frozenset[str] = frozenset()
) -> tuple[RunDifference, ...]:
    """What only the failed run has, the most telling first.

    Args:
        failed: the features of the failed run.
        good: those of runs that completed.
        ends: for each source of the failed run, the line with which its failure begins: later lines follow from it.
        hosts: the hosts that the findings blame.
    """
    outliers = list(_outliers(failed))
    told = {(each.kind, each.name) for _, each in outliers}
    found = [
        *(pair for pair in _values(failed, good) if (pair[1].kind, pair[1].name) not in told),
        *outliers,
        *_hosts(failed, good, hosts),
        *sorted(_lines(failed, good, ends), key=lambda pair: -pair[0])[:MOST_LINES],
    ]
    order = list(FeatureKind)
    found.sort(key=lambda pair: (-pair[0], order.index(FeatureKind(pair[1].kind)), pair[1].name))
    return tuple(difference for _, difference in found[:MOST_DIFFERENCES])


def _values(failed: RunFeatures, good: Sequence[RunFeatures]) -> Iterator[tuple[int, RunDifference]]:
    """Settings, versions and transports whose values no good run has."""
    names = set(failed.values).union(*(each.values for each in good))
    for kind, name in sorted(names, key=lambda key: (key[0].value, key[1])):
        mine = failed.values.get((kind, name), {})
        theirs = {value for each in good for value in each.values.get((kind, name), {})}
        if not good or (mine and set(mine) <= theirs):
            continue
        if not mine and kind is not FeatureKind.SETTING:
            continue  # its log is shorter
        new = [each for value, each in mine.items() if value not in theirs]
        first = new[0] if new else None
        weight = 6 if theirs and mine else 4 if name.isupper() else 2
        weight -= 2 * any("/" in each.text for each in new)
        yield (
            weight,
            RunDifference(
                kind.value,
                name,
                _joined(each.text for each in new) if new else NOT_SET,
                _joined(sorted(theirs)) if theirs else NOT_SET,
                "" if first is None else f"{first.source}:{first.number}",
                tuple(sorted({host for each in new for host in each.hosts})),
            ),
        )


def _outliers(failed: RunFeatures) -> Iterator[tuple[int, RunDifference]]:
    """Values that one host of the failed run has and all others have not."""
    for (kind, name), known in failed.values.items():
        alone = [each for each in known.values() if len(each.hosts) == 1]
        common = [each for each in known.values() if len(each.hosts) >= LEAST_HOSTS - 1]
        if len(alone) == 1 and len(common) == 1 and len(known) == 2 and not alone[0].hosts & common[0].hosts:
            yield 8, _outlier(kind.value, name, alone[0], common[0])


def _outlier(kind: str, name: str, one: KnownValue, others: KnownValue) -> RunDifference:
    host = next(iter(one.hosts))
    rest = f"{others.text} on {len(others.hosts)} other hosts"
    return RunDifference(kind, name, f"{one.text} on {host}", rest, f"{one.source}:{one.number}", (host,))


def _hosts(
    failed: RunFeatures, good: Sequence[RunFeatures], blamed: frozenset[str]
) -> Iterator[tuple[int, RunDifference]]:
    """Hosts that took part only in the failed run, where the runs share others."""
    known = {host for each in good for host in each.hosts}
    if not known & set(failed.hosts):
        return  # another allocation: it shows nothing
    for host in sorted(set(failed.hosts) - known):
        source, number = failed.hosts[host]
        weight = 9 if host in blamed else 5
        yield (
            weight,
            RunDifference("host", host, "in the failed run", "not in a good run", f"{source}:{number}", (host,)),
        )


def _lines(
    failed: RunFeatures, good: Sequence[RunFeatures], ends: Mapping[str, int]
) -> Iterator[tuple[int, RunDifference]]:
    """Kinds of lines that no good run printed, or far less often, before the failure begins."""
    for masked, kind in failed.lines.items():
        end = ends.get(kind.source, failed.lengths.get(kind.source, 0) + 1)
        often = max((known.count for each in good if (known := each.lines.get(masked)) is not None), default=0)
        if kind.number >= end or len(masked) < SHORTEST or kind.count < often * MORE_OFTEN:
            continue
        one = _only_speaker(failed, kind)
        is_trouble = _TROUBLE.search(kind.text) is not None
        is_late = kind.number > end * LATE
        weight = 3 * is_trouble + 2 * bool(one) + is_late - (often > 0)
        if weight >= 2:
            yield weight, _line(kind, end, one, often)


def _only_speaker(failed: RunFeatures, kind: LineKind) -> str:
    """The only host or rank that printed such lines, where others print too."""
    if len(kind.ranks) == 1 and len(failed.ranks) >= LEAST_HOSTS:
        return f" by rank {next(iter(kind.ranks))} only"
    if len(kind.hosts) == 1 and len(failed.hosts) >= LEAST_HOSTS:
        return f" on {next(iter(kind.hosts))} only"
    return ""


def _line(kind: LineKind, end: int, one: str, often: int) -> RunDifference:
    when = f"{_times(kind.count)}{one}, first {end - kind.number} lines before the failure"
    usual = _times(often) if often else "never"
    place = f"{kind.source}:{kind.number}"
    return RunDifference("line", kind.text[:LONGEST], when, usual, place, tuple(sorted(kind.hosts)))


def _times(count: int) -> str:
    return f"{count} times" if count > 1 else "once"


def _joined(values: Iterable[str]) -> str:
    texts = list(values)
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
