"""Findings in causal order: what is the cause, what follows from it, what is noise, in the order in which to read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ddpdoctor.causality.graph import CausalGraph
from ddpdoctor.findings import Finding, Role, Severity

__all__ = ["arrange", "in_order"]

_ORDER = {Role.CAUSE: 0, Role.CONSEQUENCE: 1, Role.NOISE: 2, None: 0}


def arrange(findings: Iterable[Finding], graph: CausalGraph) -> tuple[Finding, ...]:
    """Give every finding its role and put causes before consequences before noise, then worst first, then by place.

    An `umbrella` is a cause only while nothing more precise was seen. Where errors would be left without any cause, the
    first of them is taken for one: a report with an error always says what to act on.

    Args:
        findings: stamped findings.
        graph: what the causes declare.
    """
    found = list(findings)
    precise = next((f for f in sorted(found, key=_place) if _role(f, graph) is Role.CAUSE and _is_error(f)), None)
    placed = [_with_role(f, graph, precise) for f in found]
    placed.sort(key=lambda f: (_ORDER[f.role], *_place(f)))
    errors = [i for i, f in enumerate(placed) if _is_error(f)]
    if errors and not any(placed[i].role is Role.CAUSE for i in errors):
        placed.insert(0, replace(placed.pop(errors[0]), role=Role.CAUSE, caused_by=None))
    return tuple(placed)


def in_order(finding: Finding) -> tuple[int, int]:
    """The sort key of findings that have their roles: causes first, and of these the worst."""
    return _ORDER[finding.role], -finding.worst.weight


def _role(finding: Finding, graph: CausalGraph) -> Role | None:
    """The role by itself; None for an umbrella, whose role depends on the others."""
    if finding.role is not None:
        return finding.role
    kind = graph.kind(finding.code)
    return None if kind == "umbrella" else Role(kind)


def _with_role(finding: Finding, graph: CausalGraph, precise: Finding | None) -> Finding:
    role = _role(finding, graph)
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
