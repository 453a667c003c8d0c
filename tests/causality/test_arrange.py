"""Findings about machines: what follows from what, and which comes first."""

from __future__ import annotations

from ddpdoctor.causality.arrange import arrange
from ddpdoctor.causality.graph import CausalGraph
from ddpdoctor.findings import Finding, Role, Severity, Where
from ddpdoctor.rules import load

GRAPH = CausalGraph(load())


def _told(*findings: Finding) -> list[tuple[str, Role | None, str | None]]:
    return [(each.code, each.role, each.caused_by) for each in arrange(findings, GRAPH)]


def _of(code: str, host: str | None = None, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(code, code=code, severity=severity, where=Where(host=host))


def test_an_address_that_no_node_was_given_comes_before_what_follows_from_it() -> None:
    found = _told(_of("NET017", "a"), _of("ENV017", "a"), _of("PROBE001"), _of("LAUNCH025"))
    assert found[0] == ("LAUNCH025", Role.CAUSE, None)
    assert [code for code, role, _ in found if role is Role.CAUSE] == ["LAUNCH025", "NET017"]
    assert {cause for _, role, cause in found if role is Role.CONSEQUENCE} == {"LAUNCH025"}


def test_a_node_that_did_not_come_to_a_name_that_does_not_resolve_follows_from_the_name() -> None:
    assert _told(_of("PROBE001"), _of("NET002", "a")) == [
        ("NET002", Role.CAUSE, None),
        ("PROBE001", Role.CONSEQUENCE, "NET002"),
    ]


def test_what_is_wrong_on_another_host_does_not_follow() -> None:
    assert [role for _, role, _ in _told(_of("HOST013", "a"), _of("LAUNCH003", "b"))] == [Role.CAUSE, Role.CAUSE]


def test_a_warning_explains_no_error() -> None:
    found = _told(_of("NET002", "a", Severity.WARNING), _of("PROBE001"))
    assert {role for _, role, _ in found} == {Role.CAUSE}


def test_an_umbrella_is_a_cause_only_where_nothing_is_more_precise() -> None:
    assert _told(_of("PROBE004")) == [("PROBE004", Role.CAUSE, None)]
    assert _told(_of("PROBE004"), _of("PROBE005")) == [
        ("PROBE005", Role.CAUSE, None),
        ("PROBE004", Role.CONSEQUENCE, "PROBE005"),
    ]


def test_a_report_with_an_error_always_has_a_cause() -> None:
    assert _told(_of("LOG005")) == [("LOG005", Role.CAUSE, None)]
