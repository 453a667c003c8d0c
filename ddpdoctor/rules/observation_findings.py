"""Findings about what a probe observed: one finding per rank, or per host, that an observation is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ddpdoctor.facts.gaps import Section, not_here
from ddpdoctor.facts.probe import Kind, Observation, Probe
from ddpdoctor.findings import Evidence, Finding, Role, Where

__all__ = ["OF_A_HOST", "is_second_store", "lazily", "observed", "only_probed"]

OF_A_HOST = frozenset(
    {
        Kind.UNRESOLVABLE,
        Kind.STRANGER,
        Kind.MASTER_WITHOUT_HOST,
        Kind.NO_ROUTE,
        Kind.SILENT,
        Kind.PORT_DROPPED,
        Kind.PORT_REJECTED,
        Kind.UNREACHABLE,
        Kind.GLOO_NO_INTERFACE,
        Kind.GLOO_LOOPBACK,
        Kind.GLOO_UNREACHABLE,
    }
)
"""Observations that are the same for all ranks of a host."""


def observed(observations: Iterable[Observation], *, expected: str = "") -> Iterator[Finding]:
    """One finding for each thing that was observed, however many ranks observed it."""
    groups: dict[object, list[Observation]] = {}
    for each in observations:
        key = (each.kind, each.host) if each.kind in OF_A_HOST else (each.kind, each.ranks)
        groups.setdefault(key, []).append(each)
    for group in groups.values():
        yield _finding(group, expected)


def only_probed(probe: Probe | None, *sections: Section | None) -> bool:
    """Whether a rule that also judges these sections has only the probe.

    Raises:
        CannotLook: it has neither.
    """
    if all(section is not None for section in sections):
        return False
    if probe is None:
        not_here("neither this machine nor a probe was examined")
    return True


def is_second_store(probe: Probe) -> bool:
    """Whether the store is a second one, on another port: torchrun starts ranks only after its agents have joined."""
    return probe.launcher == "torchrun"


def lazily(probe: Probe) -> str:
    """What the retry without `device_id` adds to a message about eager initialization, "" without one."""
    if probe.retried_lazily is None:
        return ""
    if probe.retried_lazily == "works":
        return "; without device_id (lazy communicators) the same ranks work"
    return "; without device_id (lazy communicators) it fails as well"


def _finding(group: list[Observation], expected: str) -> Finding:
    first = group[0]
    ranks = tuple(sorted({rank for each in group for rank in each.ranks}))
    witnesses = sorted({str(each.seen_by) for each in group if each.seen_by is not None}, key=int)
    seen = first.value or first.signal or first.function or first.kind.value
    return Finding(
        first.message,
        (Evidence(f"probe.observations.{first.kind.value}", f"{seen}, seen by rank {', '.join(witnesses)}", expected),)
        if witnesses
        else (Evidence(f"probe.observations.{first.kind.value}", seen, expected),),
        where=Where(
            host=first.host,
            node_rank=first.node_rank,
            rank=ranks[0] if len(ranks) == 1 else None,
            local_rank=first.local_rank if len(ranks) == 1 else None,
            file=first.file,
            line=first.line,
        ),
        ranks=ranks,
        role=None if first.is_cause else Role.CONSEQUENCE,
    )
