"""The report as JUnit XML: one test case per rule, for the test page of a CI system."""

from __future__ import annotations

from itertools import groupby
from xml.etree import ElementTree

from ddpdoctor.findings import Finding, Report, Severity
from ddpdoctor.render.places import place
from ddpdoctor.render.plain import printable

__all__ = ["write"]


def write(report: Report) -> str:
    """Errors and warnings are failures, notes pass with their text as output, crashed rules are errors."""
    suite = ElementTree.Element("testsuite", name=f"ddpdoctor {report.command}", hostname=_legal(report.host))
    by_code = sorted(report.findings, key=lambda f: f.code)
    for _, findings in groupby(by_code, key=lambda f: f.code):
        _found(suite, report, list(findings))
    for code in report.passed:
        _case(suite, report, code)
    for skip in report.skipped:
        ElementTree.SubElement(_case(suite, report, skip.code), "skipped", message=_legal(skip.reason))
    for crash in report.crashed:
        ElementTree.SubElement(_case(suite, report, crash.code), "error", type="crashed", message=_legal(crash.error))
    for failure in report.failures:
        ElementTree.SubElement(_case(suite, report, "ddpdoctor"), "error", type="failed", message=_legal(failure))
    for text in report.open_ends:
        ElementTree.SubElement(_case(suite, report, "ddpdoctor"), "error", type="unknown", message=_legal(text))
    suite.attrib |= {
        "tests": str(len(suite)),
        "failures": str(len(suite.findall("*/failure"))),
        "errors": str(len(suite.findall("*/error"))),
        "skipped": str(len(suite.findall("*/skipped"))),
        "time": str(report.seconds),
        "timestamp": _legal(report.started_at.removesuffix("Z")),
    }
    suites = ElementTree.Element("testsuites", name="ddpdoctor")
    suites.append(suite)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, report: Report, code: str, name: str = "") -> ElementTree.Element:
    return ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"ddpdoctor.{_legal(report.command)}",
        name=_legal(f"{code} {name}".strip()),
        time="0",
    )


def _found(suite: ElementTree.Element, report: Report, findings: list[Finding]) -> None:
    worst = max(findings, key=lambda f: f.worst.weight)
    case = _case(suite, report, worst.code, worst.name)
    text = "\n\n".join(_details(finding) for finding in findings)
    if worst.worst is Severity.NOTE:
        ElementTree.SubElement(case, "system-out").text = _legal(text)
    else:
        failure = ElementTree.SubElement(case, "failure", type=worst.worst.value, message=_legal(worst.text))
        failure.text = _legal(text)


def _details(finding: Finding) -> str:
    lines = [finding.text, f"where: {place(finding)}" if place(finding) else ""]
    lines += [
        f"seen: {e.path} = {e.seen}" + (f", expected {e.expected}" if e.expected else "") for e in finding.evidence
    ]
    lines += [f"why: {finding.why}" if finding.why else "", f"fix: {finding.fix}" if finding.fix else ""]
    return "\n".join(line for line in [*lines, finding.fix_command or ""] if line)


def _legal(text: str) -> str:
    """Text that XML 1.0 allows: without control characters and two more code points."""
    return printable(text).replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd")
