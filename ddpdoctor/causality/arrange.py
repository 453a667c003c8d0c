"""Blame: what is the cause, what follows from it, what is noise; and in which order a person should read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.findings import Finding, Role, Severity

__all__ = ["CLASSES", "NEEDS_NO_GRACE", "arrange", "in_order", "weigh"]

CLASSES: tuple[tuple[Kind, ...], ...] = (
    (Kind.BAD_ENVIRONMENT, Kind.RANK_OUT_OF_RANGE, Kind.DUPLICATE_RANK, Kind.WORLD_SIZE_DIFFERS, Kind.DUPLICATE_GPU),
    (Kind.PORT_TAKEN, Kind.MASTER_ELSEWHERE, Kind.STRANGER, Kind.UNRESOLVABLE),
    (Kind.OUT_OF_FILES,),
    (Kind.GLOO_NO_INTERFACE, Kind.GLOO_LOOPBACK),
    (Kind.IMPORT_FAILED,),
    (Kind.MISMATCH,),
    (Kind.DIED,),
    (Kind.STOPPED,),
    (Kind.HOST_LOST,),
    (Kind.UNINTERRUPTIBLE,),
    (Kind.EXCEPTION, Kind.WRONG_VALUE),
    (Kind.ELSEWHERE,),
    (
        Kind.MASTER_WITHOUT_HOST,
        Kind.NO_ROUTE,
        Kind.REFUSED,
        Kind.SILENT,
        Kind.PORT_DROPPED,
        Kind.PORT_REJECTED,
        Kind.UNREACHABLE,
        Kind.NEVER_JOINED,
    ),
    (Kind.LINK_BLACK_HOLE,),
    (Kind.LINK_BLOCKED, Kind.GLOO_UNREACHABLE),
    (Kind.PEER_ERROR,),
    (Kind.STORE_LOST,),
    (Kind.OUT_OF_TIME,),
    (Kind.HANG,),
    (Kind.TERMINATED,),
)
"""What explains what: an observation of an earlier class is the cause of those of every later class.

A rank that died makes the others fail or hang; a wrong configuration makes ranks die; and a rank that was terminated
from outside says only that somebody else had already given up.
"""

NEEDS_NO_GRACE = frozenset(CLASSES[0][:3])
"""Nothing that other ranks could still tell would explain these better."""

_ORDER = {Role.CAUSE: 0, Role.CONSEQUENCE: 1, Role.NOISE: 2, None: 0}


def arrange(findings: Iterable[Finding], kinds: Mapping[str, str]) -> tuple[Finding, ...]:
    """Give every finding its role and put causes before consequences before noise, then worst first, then by place.

    An `umbrella` is a cause only while nothing more precise was seen. Where errors would be left without any cause, the
    first of them is taken for one: a report with an error always says what to act on.

    Args:
        findings: stamped findings.
        kinds: the catalogue's kind (`cause`, `umbrella`, `consequence`, `noise`) by code.
    """
    found = list(findings)
    precise = next((f for f in sorted(found, key=_place) if _role(f, kinds) is Role.CAUSE and _is_error(f)), None)
    placed = [_with_role(f, kinds, precise) for f in found]
    placed.sort(key=lambda f: (_ORDER[f.role], *_place(f)))
    errors = [i for i, f in enumerate(placed) if _is_error(f)]
    if errors and not any(placed[i].role is Role.CAUSE for i in errors):
        placed.insert(0, replace(placed.pop(errors[0]), role=Role.CAUSE, caused_by=None))
    return tuple(placed)


def in_order(finding: Finding) -> tuple[int, int]:
    """The sort key of findings that have their roles: causes first, and of these the worst."""
    return _ORDER[finding.role], -finding.worst.weight


def weigh(observations: Iterable[Observation]) -> tuple[Observation, ...]:
    """Order evidence by class, whoever was first to tell, and mark what is a cause and what follows from one.

    Within a class, a death by abort comes last: a peer's death makes Gloo abort its process. That a rank ended which had
    said that it was told to is no news.
    """
    evidence = dict.fromkeys(observations)
    told = {o.ranks for o in evidence if o.kind is Kind.TERMINATED}
    found = sorted((o for o in evidence if not (o.ranks in told and _is_seen_to_end(o))), key=_weight)
    leading = _class_of(found[0]) if found else 0
    return tuple(replace(o, is_cause=_class_of(o) == leading) for o in found)


def _is_seen_to_end(observation: Observation) -> bool:
    """Whether others only saw that its supervisor went away."""
    return observation.kind is Kind.DIED and observation.signal is None and observation.seen_by not in observation.ranks


def _weight(observation: Observation) -> tuple[int, bool, tuple[int, ...], str]:
    return (_class_of(observation), observation.signal == "SIGABRT", observation.ranks, observation.message)


def _class_of(observation: Observation) -> int:
    return next(i for i, kinds in enumerate(CLASSES) if observation.kind in kinds)


def _role(finding: Finding, kinds: Mapping[str, str]) -> Role | None:
    """The role by itself; None for an umbrella, whose role depends on the others."""
    if finding.role is not None:
        return finding.role
    kind = kinds.get(finding.code, "cause")
    return None if kind == "umbrella" else Role(kind)


def _with_role(finding: Finding, kinds: Mapping[str, str], precise: Finding | None) -> Finding:
    role = _role(finding, kinds)
    if role is None:
        role = Role.CAUSE if precise is None else Role.CONSEQUENCE
    cause = finding.caused_by
    if role is Role.CONSEQUENCE and cause is None and precise is not None:
        cause = precise.code
    return replace(finding, role=role, caused_by=cause)


def _is_error(finding: Finding) -> bool:
    return finding.worst is Severity.ERROR


def _place(finding: Finding) -> tuple[int, str, int, int, str, int, str]:
    where = finding.where
    return (
        -finding.worst.weight,
        where.file or "",
        where.line or 0,
        -1 if where.rank is None else where.rank,
        where.host or "",
        -1 if where.gpu is None else where.gpu,
        finding.code,
    )
