"""Every format: what it says about a real report, and that it survives any report."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from xml.etree import ElementTree

import jsonschema
import pytest
from hypothesis import given, settings
from reports import CLEAN, REPORT, reports

from ddpdoctor import __version__
from ddpdoctor.findings import Evidence, Finding, Report, Role, Severity, Where
from ddpdoctor.render import FORMATS, render
from ddpdoctor.render.markdown import code, fenced, prose

SCHEMA = json.loads(files("ddpdoctor.render").joinpath("report.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def _of(*findings: Finding) -> Report:
    return Report("check", "n", "2026-11-21T04:05:06Z", 0.1, findings=findings)


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("report", [REPORT, CLEAN])
def test_the_json_report_fits_its_schema_and_has_no_other_keys(report: Report) -> None:
    VALIDATOR.validate(json.loads(render(report, "json")))


def test_json_says_everything() -> None:
    said = json.loads(render(REPORT, "json"))
    assert said["tool"] == {"name": "ddpdoctor", "version": __version__}
    assert said["verdict"] == "fail"
    assert said["findings"][0]["where"]["rank"] == 7
    assert said["findings"][0]["evidence"] == [
        {"path": "environ.NCCL_SOCKET_IFNAME", "seen": "eth9", "expected": "one of eth0, lo"}
    ]
    assert said["crashed"] == [
        {"code": "TOPO001", "error": "KeyError: 'x'"},
        {"code": "ddpdoctor", "error": "facts.json: not JSON"},
    ]


@given(reports)
@settings(max_examples=50, deadline=None)
def test_any_report_is_valid_json(report: Report) -> None:
    VALIDATOR.validate(json.loads(render(report, "json").encode("utf-8")))


@given(reports)
@settings(max_examples=50, deadline=None)
def test_any_report_is_valid_xml_and_counts_its_cases(report: Report) -> None:
    suite = ElementTree.fromstring(render(report, "junit").encode("utf-8"))[0]
    cases = suite.findall("testcase")
    assert int(suite.attrib["tests"]) == len(cases)
    codes = {f.code for f in report.findings}
    extra = len(report.passed) + len(report.skipped) + len(report.crashed) + len(report.failures)
    assert len(cases) == len(codes) + extra


@given(reports)
@settings(max_examples=50, deadline=None)
def test_any_report_is_sarif_with_the_keys_that_readers_need(report: Report) -> None:
    log = json.loads(render(report, "sarif").encode("utf-8"))
    (run,) = log["runs"]
    assert log["version"] == "2.1.0"
    rules = run["tool"]["driver"]["rules"]
    assert len({r["id"] for r in rules}) == len(rules)
    assert all(r["help"]["text"] and r["fullDescription"]["text"] and "helpUri" not in r for r in rules)
    assert len(run["results"]) == len(report.findings)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        for location in result["locations"]:
            region = location.get("physicalLocation", {}).get("region", {"startLine": 1})
            assert region["startLine"] >= 1


@given(reports)
@settings(max_examples=50, deadline=None)
def test_any_report_is_one_workflow_command_a_line(report: Report) -> None:
    lines = render(report, "github").split("\n")[:-1]
    assert len(lines) == len(report.findings) + len(report.crashed) + len(report.failures) + 1
    for line in lines:
        assert re.match(r"::(error|warning|notice) [^\r]*::", line)
        assert line.count("::") >= 2


@given(reports)
@settings(max_examples=50, deadline=None)
def test_fences_of_markdown_close(report: Report) -> None:
    fence = ""
    for line in render(report, "markdown").split("\n"):
        ticks = re.match("`{3,}", line)
        if ticks and not fence:
            fence = ticks.group()
        elif fence and line == fence:
            fence = ""
    assert not fence


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "concise"])
def test_every_format_names_what_was_found_and_how_to_fix_it(form: str) -> None:
    said = render(REPORT, form)
    assert "ENV021" in said
    assert "NCCL_SOCKET_IFNAME=eth9".replace("_", "\\_" if form == "markdown" else "_") in said
    assert "export NCCL_SOCKET_IFNAME=eth0" in said


def test_junit_sorts_rules_into_four_ends() -> None:
    suite = ElementTree.fromstring(render(REPORT, "junit"))[0]
    ends = {case.attrib["name"].split()[0]: [child.tag for child in case] for case in suite}
    assert ends["ENV001"] == []
    assert ends["ENV021"] == ["failure"]
    assert ends["LOG009"] == ["system-out"]
    assert ends["GPU001"] == ["skipped"]
    assert ends["TOPO001"] == ends["ddpdoctor"] == ["error"]
    assert suite.attrib | {"timestamp": ""} == suite.attrib | {
        "tests": "13",
        "failures": "3",
        "errors": "2",
        "skipped": "4",
        "timestamp": "",
    }


def test_junit_has_one_case_for_a_rule_with_many_findings() -> None:
    many = tuple(Finding(f"GPU {i} is sick", severity=Severity.ERROR, code="GPU001", name="sick") for i in range(8))
    suite = ElementTree.fromstring(render(_of(*many), "junit"))[0]
    assert len(suite) == 1
    assert "GPU 7 is sick" in (suite[0][0].text or "")


def test_sarif_points_into_files_only_where_there_is_one() -> None:
    results = json.loads(render(REPORT, "sarif"))["runs"][0]["results"]
    physical = results[0]["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == "jobs/train.sbatch"
    assert physical["region"] == {"startLine": 12, "startColumn": 1}
    assert "host node-3" in results[0]["locations"][0]["logicalLocations"][0]["fullyQualifiedName"]
    assert results[1]["locations"] == []


def test_a_sarif_fingerprint_stays_when_the_line_moves_and_differs_between_gpus() -> None:
    def fingerprint(**place: object) -> str:
        found = Finding("x", severity=Severity.ERROR, code="GPU001", name="sick", where=Where(**place))  # type: ignore[arg-type]
        result = json.loads(render(_of(found), "sarif"))["runs"][0]["results"][0]
        return str(result["partialFingerprints"]["ddpdoctor/v1"])

    assert fingerprint(file="a.py", line=3) == fingerprint(file="a.py", line=9)
    assert fingerprint(gpu=1) != fingerprint(gpu=2)


def test_github_escapes_what_would_end_a_property_or_a_line() -> None:
    found = Finding(
        "50% of\nranks",
        severity=Severity.ERROR,
        code="ENV001",
        name="x",
        where=Where(file="a:b,c.py", line=3, column=2),
    )
    first = render(_of(found), "github").split("\n")[0]
    assert first == "::error file=a%3Ab%2Cc.py,line=3,col=2,title=ENV001 x::50%25 of%0Aranks"


def test_markdown_neutralises_markup() -> None:
    assert prose("<b>|`@me`*") == "&lt;b&gt;\\|\\`@<!-- -->me\\`\\*"
    assert code("a`b") == "``a`b``"
    assert code("`a") == "`` `a ``"
    assert fenced("```\nx") == "````\n```\nx\n````"


def test_a_pipe_does_not_end_a_cell() -> None:
    found = Finding("x", evidence=(Evidence("a|b", "c\nd", "e"),), severity=Severity.ERROR, code="ENV001", name="x")
    assert "| `a\\|b` | `c d` | `e` |" in render(_of(found), "markdown")


def test_concise_is_one_line_a_finding() -> None:
    at_line = Finding(message="first\nsecond \x1b[2J", code="SCRIPT024", where=Where(file="a.py", line=18, column=13))
    of_rank = Finding(message="did not join", code="PROBE001", where=Where(rank=3))
    on_host = Finding(message="too small", code="HOST001", where=Where(host="gpu-07"))
    of_line = Finding(message="no endpoint", code="LAUNCH025", where=Where(column=10))
    here = Finding(message="not set", code="ENV500")
    assert render(_of(at_line, of_rank, on_host, of_line, here), "concise").splitlines() == [
        "a.py:18:13: SCRIPT024 first second \\x1b[2J",
        "rank 3: PROBE001 did not join",
        "gpu-07: HOST001 too small",
        "<launch>:1:10: LAUNCH025 no endpoint",
        "n: ENV500 not set",
    ]


def test_concise_leaves_harmless_findings_out_unless_asked() -> None:
    noise = Finding(message="harmless", code="LOG001", role=Role.NOISE)
    assert render(_of(noise), "concise") == ""
    assert render(_of(noise), "concise", verbose=True) == "n: LOG001 harmless\n"


@given(reports)
@settings(max_examples=50, deadline=None)
def test_any_report_is_concise_lines_of_safe_characters(report: Report) -> None:
    told = render(report, "concise", verbose=True)
    failed = len(report.crashed) + len(report.failures) + len(report.not_understood)
    assert len(told.splitlines()) == len(report.findings) + failed
    assert "\x1b" not in told
