"""The names of temporary files never reach a report."""

from ddpdoctor.app.given_names import with_given_names
from ddpdoctor.examined import ExaminedInput, ExaminedJob, Verdict
from ddpdoctor.findings import Evidence, Finding, Report, Where

PATH = "/tmp/ddpdoctor_ab12/standard_input"


def test_every_text_of_a_report_gets_the_name_that_the_user_gave() -> None:
    finding = Finding(
        f"KeyError ({PATH}:3)",
        (Evidence(f"{PATH}:3", f"in {PATH}"),),
        fix=f"full traceback: {PATH}:1-3",
        where=Where(file=PATH, line=3),
        job=PATH,
    )
    report = Report(
        "triage",
        "vm",
        "",
        0.1,
        findings=(finding,),
        failures=(f"read {PATH}: late",),
        inputs=(ExaminedInput(PATH, "log", left_out=(f"{PATH}:9: too long",)),),
        jobs=(ExaminedJob(PATH, "failed", Verdict.FAIL),),
        subject=f"{PATH}: 1 rank",
    )
    named = with_given_names(report, {PATH: "standard input"})
    assert PATH not in repr(named)
    assert named.findings[0].where == Where(file="standard input", line=3)
    assert named.findings[0].fix == "full traceback: standard input:1-3"


def test_a_report_without_temporary_files_stays_the_same() -> None:
    report = Report("triage", "vm", "", 0.1, subject="a.log")
    assert with_given_names(report, {}) is report
    assert with_given_names(report, {PATH: "standard input"}) is report
