"""Use cases without the command line: requests in, reports out; nothing is printed, and warnings reach the listener."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from machines import machine

from ddpdoctor.app.compare import compare_nodes
from ddpdoctor.app.hang import HangOptions, examine_running_job
from ddpdoctor.app.lint import LintInputs, lint_inputs
from ddpdoctor.app.parts import SECTIONS, examine_part
from ddpdoctor.app.preflight import Detail, preflight
from ddpdoctor.app.preflight_plan import PreflightOptions
from ddpdoctor.app.request import Request, UsageError, seconds_left
from ddpdoctor.app.rule_search import search
from ddpdoctor.app.run import RunOptions, diagnose, run_job
from ddpdoctor.app.settings import read_settings
from ddpdoctor.app.settings_files import SITE_VARIABLE
from ddpdoctor.app.triage import triaged
from ddpdoctor.examined import SectionState
from ddpdoctor.facts.codec import encode
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.hang import Hang, RankProcess, StackFrame
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.findings import Severity, Verdict
from tests.app.listener import RecordingListener


@pytest.fixture(autouse=True)
def nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> Any:
    """What use cases have to say is in their results."""
    yield
    assert capfd.readouterr() == ("", "")


def saved(path: Path, facts: Facts) -> Path:
    path.write_text(json.dumps(encode(facts)))
    return path


def codes(report: Any) -> set[str]:
    return {finding.code for finding in report.findings}


def test_lint_judges_a_launch_command() -> None:
    request = Request(launch=("torchrun", "train.py", "--nproc_per_node=2"))
    report, facts = lint_inputs(request, LintInputs())
    assert "LAUNCH001" in codes(report)
    assert facts.launch is not None
    assert len(facts.launch.lines) == 1


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (LintInputs(), "nothing to judge"),
        (LintInputs(files=("train.py",), torch="new"), "--torch 'new'"),
        (LintInputs(files=("train.py",), torch="1.0"), "--torch '1.0'"),
    ],
)
def test_lint_refuses_what_makes_no_sense(inputs: LintInputs, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        lint_inputs(Request(), inputs)


def test_facts_that_cannot_be_read_make_a_report_of_lint_and_hang(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.json"):
        for use_case in (
            lambda request: lint_inputs(request, LintInputs()),
            lambda request: examine_running_job(request, HangOptions((), 0.0, has_stacks=False, has_ras=False)),
        ):
            listener = RecordingListener()
            report, _ = use_case(Request(facts=path, listener=listener))
            assert report.exit_code(None) == 3
            assert report.failures == (f"read {listener.notices[0]}",)
            assert str(path) in listener.notices[0]


def test_facts_that_never_answer_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpdoctor.app.facts_source.ANSWER_SECONDS", 0.1)
    pipe = tmp_path / "facts.json"
    os.mkfifo(pipe)
    report, _ = examine_part("env", Request(facts=pipe, listener=RecordingListener()))
    assert report.exit_code(None) == 3
    assert "timed out after" in report.failures[0]


def test_compare_names_what_differs(tmp_path: Path) -> None:
    facts = machine("cpu_vm")
    assert facts.versions is not None
    other = replace(facts, hostname="other", versions=replace(facts.versions, torch="1.0.0"))
    files = [saved(tmp_path / "a.json", facts), saved(tmp_path / "b.json", other)]
    report, nodes = compare_nodes(Request(), [*map(str, files), str(tmp_path / "c.json")])
    assert "VERSION003" in codes(report)
    assert [node.host for node in nodes] == [facts.hostname, "other"]
    assert len(report.failures) == 1
    with pytest.raises(UsageError, match="two files"):
        compare_nodes(Request(), [str(files[0])])


@pytest.mark.parametrize("command", SECTIONS)
def test_a_part_judges_saved_facts(command: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "facts.json", machine("cpu_vm"))
    report, (facts,) = examine_part(command, Request(facts=path))
    assert report.command == command
    assert report.passed
    assert facts.hostname == machine("cpu_vm").hostname


def test_preflight_of_saved_facts_shows_the_whole_report(tmp_path: Path) -> None:
    path = saved(tmp_path / "facts.json", machine("cpu_vm"))
    listener = RecordingListener()
    result = preflight(Request(facts=path, listener=listener), PreflightOptions())
    assert result.detail is Detail.REPORT
    assert {"environ", "host", "versions"} <= {section.area for section in result.report.sections}
    assert result.report.command == "check"
    assert listener.phases == []


@pytest.mark.parametrize(("share", "verdict"), [(0.0, Verdict.INCOMPLETE), (0.9, Verdict.PASS)])
def test_without_stacks_nothing_passed_and_the_report_says_what_to_run(
    tmp_path: Path, share: float, verdict: Verdict
) -> None:
    busy = tuple(RankProcess(pid, rank=rank, cpu_share=share) for rank, pid in enumerate((10, 11)))
    gap = Gap("hang.stacks", "py-spy is not installed; pip install py-spy && ddpdoctor hang", Why.NOT_HERE)
    facts = Facts(schema=SCHEMA, collected_at="", hostname="a", hang=Hang(processes=busy, gaps=(gap,)))
    path = saved(tmp_path / "facts.json", facts)
    report, _ = examine_running_job(Request(facts=path), HangOptions((), 0.0, has_stacks=True, has_ras=False))
    assert (report.findings, report.passed, report.verdict) == ((), (), verdict)
    assert {each.reason for each in report.skipped if "py-spy" in each.reason} == {gap.reason}


def test_with_stacks_rules_pass(tmp_path: Path) -> None:
    frame = StackFrame("train.py", 10, "step")
    seen = tuple(RankProcess(pid, rank=rank, cpu_share=0.9, frames=(frame,)) for rank, pid in enumerate((10, 11)))
    facts = Facts(schema=SCHEMA, collected_at="", hostname="a", hang=Hang(processes=seen))
    path = saved(tmp_path / "facts.json", facts)
    report, _ = examine_running_job(Request(facts=path), HangOptions((), 0.0, has_stacks=True, has_ras=False))
    assert report.passed


def test_hang_refuses_a_process_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match="no such process"):
        examine_running_job(Request(), HangOptions((1 << 30,), 0.0, has_stacks=False, has_ras=False))


def test_a_job_that_fails_is_diagnosed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    line = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 79 GiB"
    request = Request(launch=("sh", "-c", f"echo '{line}'; exit 7"))
    end = run_job(request, RunOptions(is_checked=False))
    assert (end.code, end.has_failed) == (7, True)
    assert capfd.readouterr().out.splitlines() == [line]  # the job's own output
    diagnosis = diagnose(request, end)
    assert "LOG012" in codes(diagnosis.report)
    assert diagnosis.output is not None
    assert diagnosis.output.read_text() == f"{line}\n"
    diagnosis.folder.remove()
    assert not diagnosis.output.exists()


def test_a_job_that_cannot_be_started_has_a_shells_exit_code() -> None:
    listener = RecordingListener()
    end = run_job(Request(launch=("/nonexistent/command",), listener=listener), RunOptions(is_checked=False))
    assert (end.code, end.has_failed) == (127, False)
    assert listener.notices == ["/nonexistent/command: No such file or directory"]
    for request in (Request(), Request(launch=("sh",), facts=Path("facts.json")), Request(launch=("A=1",))):
        with pytest.raises(UsageError):
            run_job(request, RunOptions(is_checked=False))


def test_a_settings_file_that_cannot_be_read_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.ddpdoctor")
    monkeypatch.chdir(tmp_path)
    settings = read_settings({SITE_VARIABLE: ""})
    assert settings.values == {}
    assert f"{tmp_path}/pyproject.toml: settings not used" in settings.warnings[0]


def test_a_rule_is_found_by_code_or_name() -> None:
    assert search("launch001") == search("launcher_args_after_script")
    with pytest.raises(UsageError, match="did you mean LAUNCH001"):
        search("LAUNCH1")


def test_more_ranks_than_a_node_can_run_are_not_probed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    found = preflight(Request(launch=("torchrun", "--nproc_per_node", "99999", str(script))), PreflightOptions())
    assert found.facts.probe is None
    (reason,) = [gap.reason for gap in found.facts.gaps if gap.path == "probe"]
    assert "99999 ranks on one node are too many" in reason


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("docker run --rm img torchrun --nproc_per_node 2 train.py", "runs in a container (docker)"),
        ("apptainer exec img.sif torchrun --nproc_per_node 2 train.py", "runs in a container (apptainer)"),
        ("srun --container-image=img.sqsh torchrun --nproc_per_node 2 train.py", "runs in a container (srun)"),
        ("ssh gpu-07 torchrun --nproc_per_node 2 train.py", "runs on another machine (ssh)"),
    ],
)
def test_the_machine_does_not_vouch_for_what_runs_elsewhere(words: str, reason: str) -> None:
    found = preflight(Request(launch=tuple(words.split())), PreflightOptions())
    gaps = {gap.path: gap.reason for gap in found.facts.gaps}
    assert (found.facts.probe, found.facts.versions) == (None, None)
    assert reason in gaps["probe"]
    assert reason in gaps["versions"]
    states = {each.area: each.state for each in found.report.sections}
    assert (states["probe"], states["versions"]) == (SectionState.SKIPPED, SectionState.SKIPPED)
    if "docker" in words:
        assert {"HOST004", "HOST006", "HOST008"} <= {each.code for each in found.report.skipped}
        assert not found.report.is_incomplete


def test_the_time_limit_counts_from_the_request_and_not_from_the_start_of_the_process() -> None:
    late = Request(timeout=10.0, began=time.monotonic() - 8.0)
    assert 0.0 < seconds_left(late) < 1.5
    assert seconds_left(Request(timeout=10.0)) > 8.5


def test_files_that_there_was_no_time_to_read_are_no_pass(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "job.log").write_text("[rank0]: step 1 loss 0.5\n" * 100)
    late = Request(began=time.monotonic() - 400.0)
    report, _ = triaged([str(tmp_path / "logs")], late, started=time.monotonic())
    assert report.verdict is Verdict.INCOMPLETE
    assert report.exit_code(Severity.ERROR) == 3
    assert any("job.log: not read to its end within --timeout" in each for each in report.failures)
