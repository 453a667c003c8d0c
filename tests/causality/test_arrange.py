"""Findings about machines: what follows from what, and which comes first."""

from __future__ import annotations

from ddpdoctor.causality.arrange import arrange
from ddpdoctor.causality.graph import CausalGraph
from ddpdoctor.findings import Evidence, Finding, Role, Severity, Where
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


def _on_gpu(code: str, gpu: int, host: str | None = None) -> Finding:
    return Finding(code, code=code, severity=Severity.ERROR, where=Where(gpu=gpu, host=host))


def test_a_version_that_differs_comes_before_the_service_that_it_keeps_from_starting() -> None:
    found = _told(_of("TOPO019"), _of("TOPO007"), _of("TOPO008"))
    assert found[0] == ("TOPO008", Role.CAUSE, None)
    assert {cause for _, role, cause in found[1:] if role is Role.CONSEQUENCE} == {"TOPO008"}
    assert _told(_of("TOPO019"), _of("TOPO007"))[0] == ("TOPO007", Role.CAUSE, None)


def test_a_faulty_memory_row_explains_what_the_same_gpu_reports_besides() -> None:
    one = [_on_gpu(code, 3) for code in ("GPU009", "GPU018", "GPU023", "GPU024")]
    found = arrange([*one, _on_gpu("GPU018", 5)], GRAPH)
    assert [(each.code, each.where.gpu) for each in found if each.role is Role.CAUSE] == [("GPU023", 3), ("GPU018", 5)]


def test_findings_about_one_gpu_or_link_or_node_share_its_name() -> None:
    link = Where(host="b", peer="a")
    compared = (Evidence("nodes.traits", "x", "y"),)
    node = Where(host="c", node_rank=2)
    found = arrange(
        [
            _on_gpu("GPU009", 3, "a"),
            _on_gpu("GPU018", 3, "a"),
            _on_gpu("GPU018", 3, "b"),
            Finding("slow", code="PROBE011", severity=Severity.ERROR, where=link),
            Finding("lost", code="NET009", severity=Severity.ERROR, where=Where(host="a", peer="b")),
            Finding("older", compared, code="VERSION002", severity=Severity.ERROR, where=node),
            Finding("slower", compared, code="HOST012", severity=Severity.ERROR, where=node),
            Finding("limit", code="HOST004", severity=Severity.ERROR, where=node),
        ],
        GRAPH,
    )
    groups = {(each.code, each.where.host): each.group for each in found}
    assert groups == {
        ("GPU009", "a"): "GPU 3 on a",
        ("GPU018", "a"): "GPU 3 on a",
        ("GPU018", "b"): None,
        ("PROBE011", "b"): "link a - b",
        ("NET009", "a"): "link a - b",
        ("VERSION002", "c"): "node 2 (c)",
        ("HOST012", "c"): "node 2 (c)",
        ("HOST004", "c"): None,
    }
