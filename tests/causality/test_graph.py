"""The causal graph of the whole catalogue: no cycle, no unknown code, nothing that nothing can explain."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import pytest

from ddpdoctor.app.parts import OTHER_AREAS
from ddpdoctor.causality.graph import CausalGraph
from ddpdoctor.findings import CausalStage
from ddpdoctor.rules import Rule, area_of, load

RULES = load()
GRAPH = CausalGraph(RULES)
CODES = {each.code for each in RULES}


@pytest.mark.parametrize("rule", [each for each in RULES if each.explains or each.yields_to], ids=lambda r: r.code)
def test_a_cause_names_only_other_causes_that_exist(rule: Rule) -> None:
    assert {*rule.explains, *rule.yields_to} <= CODES - {rule.code}


def test_what_causes_declare_has_no_cycle() -> None:
    causes: dict[str, set[str]] = {code: set() for code in CODES}
    for each in RULES:
        causes[each.code].update(each.yields_to)
        for effect in each.explains:
            causes[effect].add(each.code)
    try:
        assert len(list(TopologicalSorter(causes).static_order())) == len(CODES)
    except CycleError as error:
        pytest.fail(f"these explain each other: {' <- '.join(error.args[1])}")


def test_no_two_causes_explain_each_other() -> None:
    both = [(a, b) for a in CODES for b in CODES if a < b and GRAPH.explains(a, b) and GRAPH.explains(b, a)]
    assert both == []


@pytest.mark.parametrize("umbrella", [each.code for each in RULES if each.kind == "umbrella"])
def test_every_umbrella_can_be_explained(umbrella: str) -> None:
    assert any(GRAPH.explains(each.code, umbrella) for each in RULES if each.kind == "cause")


def test_a_precise_cause_is_told_before_the_umbrella_of_its_stage() -> None:
    stage = CausalStage.DEATH
    umbrellas = [each.code for each in RULES if each.kind == "umbrella" and each.stage is stage]
    precise = [each.code for each in RULES if each.kind == "cause" and each.stage is stage]
    assert umbrellas
    assert precise
    assert all(GRAPH.position(one) < GRAPH.position(other) for one in precise for other in umbrellas)


def test_only_causes_and_umbrellas_have_a_stage_of_their_own() -> None:
    assert [
        each.code for each in RULES if each.kind in ("consequence", "noise") and each.stage is not CausalStage.FAULT
    ] == []


def test_what_a_cause_declares_goes_before_what_its_stage_says() -> None:
    later = next(each for each in RULES if any(GRAPH.stage(code) < each.stage for code in each.explains))
    earlier = next(code for code in later.explains if GRAPH.stage(code) < later.stage)
    assert GRAPH.explains(later.code, earlier)
    assert not GRAPH.explains(earlier, later.code)


def test_of_several_causes_the_first_is_the_one_that_none_of_the_others_explains() -> None:
    assert GRAPH.declares("LAUNCH042", "LAUNCH034")
    assert GRAPH.first(["LAUNCH034", "LAUNCH042"]) == "LAUNCH042"
    assert GRAPH.first([]) is None


def test_a_code_that_no_rule_has_is_a_fault_that_explains_what_is_of_a_later_stage() -> None:
    assert GRAPH.kind("ENV999") == "cause"
    assert GRAPH.stage("ENV999") is CausalStage.FAULT
    assert GRAPH.explains("ENV999", "LOG001")


@pytest.mark.parametrize("rule", [each for each in RULES if each.also_in], ids=lambda r: r.code)
def test_a_part_of_the_machine_loads_the_areas_of_what_is_also_shown_in_it(rule: Rule) -> None:
    assert all(area_of(rule.code) in OTHER_AREAS[command] for command in rule.also_in)
