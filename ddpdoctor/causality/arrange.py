"""Orders findings for the reader: causes, then consequences, then noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddpdoctor.causality.graph import CausalGraph
from ddpdoctor.causality.groups import grouped
from ddpdoctor.findings import Finding, Role, Severity

__all__ = ["arrange", "following", "in_order"]

_ORDER = {Role.CAUSE: 0, Role.CONSEQUENCE: 1, Role.NOISE: 2, None: 0}


def arrange(findings: Iterable[Finding], graph: CausalGraph) -> tuple[Finding, ...]:
    """Give every finding its role and put causes before consequences before noise, then worst first, then by place.

    A finding that another finding about the same host declares to explain is its consequence. Causes with consequences come
    first, then causes in a line that the user wrote, then those of the machine. An `umbrella` is a cause only if there is no
    more precise one. If errors have no cause, the first error becomes the cause: a report with an error always says what to
    act on.

    Args:
        findings: stamped findings.
        graph: what the causes declare.
    """
    found = following(tuple(findings), graph)
    leading = {f.caused_by for f in found}
    found.sort(key=lambda f: (-f.worst.weight, f.code not in leading, f.where.line is None, *_place(f)))
    precise = next((f for f in found if _role(f, graph) is Role.CAUSE and _is_error(f)), None)
    placed = sorted((_with_role(f, graph, precise) for f in found), key=lambda f: _ORDER[f.role])
    errors = [i for i, f in enumerate(placed) if _is_error(f)]
    if errors and not any(placed[i].role is Role.CAUSE for i in errors):
        placed.insert(0, replace(placed.pop(errors[0]), role=Role.CAUSE, caused_by=None))
    return grouped(placed)


def following(findings: Sequence[Finding], graph: CausalGraph, *, keeps_roles: bool = True) -> list[Finding]:
    """The findings; those that an error about the same host, or about all hosts, declares to explain become consequences. Of two
    findings about GPUs, only if both are about the same one.

    Args:
        findings: stamped findings.
        graph: what the causes declare.
        keeps_roles: do not change findings whose rule set a role.
    """
    errors = [finding for finding in findings if _is_error(finding) and graph.effects(finding.code)]
    causes = [
        None if keeps_roles and finding.role is not None else _declared_cause(finding, errors, graph)
        for finding in findings
    ]
    return [
        finding if cause is None else replace(finding, role=Role.CONSEQUENCE, caused_by=cause)
        for finding, cause in zip(findings, causes, strict=True)
    ]


def _declared_cause(finding: Finding, errors: Iterable[Finding], graph: CausalGraph) -> str | None:
    hosts: dict[str, list[str | None]] = {}
    for error in errors:
        is_other_gpu = None not in (error.where.gpu, finding.where.gpu) and error.where.gpu != finding.where.gpu
        if finding.code in graph.effects(error.code) and not is_other_gpu:
            hosts.setdefault(error.code, []).append(error.where.host)
    host = finding.where.host
    return graph.first(code for code, affected in hosts.items() if host in (*affected, None) or affected == [None])


def in_order(finding: Finding) -> tuple[int, int]:
    """The sort key of findings with roles: causes first, the worst of them first."""
    return _ORDER[finding.role], -finding.worst.weight


def _role(finding: Finding, graph: CausalGraph) -> Role | None:
    """The finding's own role; None for an umbrella, whose role depends on the other findings."""
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


def _place(finding: Finding) -> tuple[str, int, int, str, int, str]:
    where = finding.where
    return (
        where.file or "",
        where.line or 0,
        -1 if where.rank is None else where.rank,
        where.host or "",
        -1 if where.gpu is None else where.gpu,
        finding.code,
    )
