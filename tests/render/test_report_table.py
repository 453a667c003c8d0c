"""The table on a pinned console: what a person reads, in every width."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import CAUSE, CLEAN, FOLLOWS, NOTE, REPORT, reports
from rich.cells import cell_len

from ddpdoctor.examined import CheckedSection, ExaminedInput, ExaminedJob, Excerpt, SectionState, Verdict
from ddpdoctor.findings import Evidence, Finding, NodeCommand, Report, Severity, Skipped, Where
from ddpdoctor.render import render
from ddpdoctor.render.plain import printable


def test_it_reads_like_this() -> None:
    report = Report("check", "n", "t", 1.0, findings=(CAUSE, FOLLOWS), passed=("ENV001",), skipped=REPORT.skipped)
    assert render(report, "table", width=80) == (
        "jobs/train.sbatch:12:1 error[ENV021]: NCCL_SOCKET_IFNAME=eth9 matches no\n"
        "  running interface (eth0, lo)\n"
        "  fix: Name an interface that runs, or unset the variable\n"
        "export NCCL_SOCKET_IFNAME=eth0\n"
        "  then rank 7 did not join the process group PROBE001\n"
        '  = NCCL stops at once with "Bootstrap : no socket interface found".\n'
        "\n"
        "unknown: net: no answer within 8 s (NET010)\n"
        "2 errors · 1.0 s · ddpdoctor explain ENV021\n"
    )


def test_a_finding_about_a_line_shows_it_with_a_caret_and_a_label() -> None:
    excerpt = Excerpt(17, ("if dist.get_rank() == 0:", "    dist.barrier()"), 18, 5, 14)
    where = Where(file="bad.py", line=18, column=5)
    found = replace(CAUSE, where=where, message="dist.barrier() is called by rank 0 only", excerpt=excerpt)
    found = replace(
        found, label="the other ranks never get here", fix_command=None, fix="Call it on all ranks.", why=""
    )
    said = render(replace(CLEAN, findings=(found,)), "table", width=80)
    assert said.splitlines()[:5] == [
        "bad.py:18:5 error[ENV021]: dist.barrier() is called by rank 0 only",
        " 17 | if dist.get_rank() == 0:",
        " 18 |     dist.barrier()",
        "    |     ^^^^^^^^^^^^^^ the other ranks never get here",
        "  fix: Call it on all ranks.",
    ]


@pytest.mark.parametrize("width", [40, 80, 100])
def test_a_long_line_is_cut_around_its_caret(width: int) -> None:
    line = "torchrun " + "--x 1 " * 40 + "--nnodes=2 " + "--y 2 " * 40
    excerpt = Excerpt(1, (line,), 1, line.index("--nnodes") + 1, len("--nnodes=2"), is_numbered=False)
    said = render(replace(CLEAN, findings=(replace(CAUSE, excerpt=excerpt),)), "table", width=width).splitlines()
    shown, carets = next((said[i - 1], row) for i, row in enumerate(said) if "^^^" in row)
    assert shown[carets.index("^") : carets.rindex("^") + 1] == "--nnodes=2"
    assert shown.startswith("  | …")
    assert cell_len(shown) <= width


def test_findings_about_one_thing_are_one_block() -> None:
    gpu = [
        replace(CAUSE, code=f"GPU00{i}", message=f"fault {i}", group="GPU 3", where=Where(gpu=3), ranks=())
        for i in (1, 2)
    ]
    said = render(replace(CLEAN, findings=tuple(gpu)), "table")
    assert said.startswith("GPU 3: 2 findings\n")
    assert "  also error[GPU002]: fault 2" in said


def test_sections_that_failed_stand_first_and_the_others_together() -> None:
    rows = (
        CheckedSection("host", "host", SectionState.OK, "8 CPUs"),
        CheckedSection("gpu", "GPUs", SectionState.SKIPPED, "none"),
        CheckedSection("nodes", "nodes", SectionState.ERROR, "1 of 2 joined"),
        CheckedSection("versions", "versions", SectionState.OK, "torch 2.13"),
    )
    said = render(replace(CLEAN, sections=rows), "table").splitlines()
    assert said[:2] == ["✗ nodes     1 of 2 joined", "✓ host  ✓ versions  – GPUs: none"]
    healthy = render(replace(CLEAN, sections=rows[:2]), "table").splitlines()
    assert healthy[:2] == ["✓ host  8 CPUs", "– GPUs  none"]


def test_of_one_job_the_cause_comes_first_with_its_line() -> None:
    found = replace(
        CAUSE, message="rank 1 raised KeyError", quote="KeyError: 'x'", where=Where(rank=1), fix_command=None
    )
    found = replace(found, evidence=(Evidence("slurm.out:14", "KeyError: 'x'"),))
    report = replace(CLEAN, command="triage", subject="slurm.out: 2 ranks, exit 1", findings=(found,))
    assert render(report, "table").splitlines()[:4] == [
        "slurm.out: 2 ranks, exit 1",
        "CAUSE[ENV021] rank 1 raised KeyError",
        "  fix: Name an interface that runs, or unset the variable.",
        "  slurm.out:14 | KeyError: 'x'",
    ]


def _job(number: int, outcome: str = "failed") -> ExaminedJob:
    return ExaminedJob(f"slurm-{number}", outcome, Verdict.FAIL, ranks=(0, 1), exit_code=1)


def test_many_jobs_are_a_table() -> None:
    jobs = tuple(_job(number) for number in range(5))
    findings = tuple(replace(CAUSE, job=job.name, message=f"fault of {job.name}") for job in jobs)
    said = render(replace(CLEAN, command="triage", jobs=jobs, findings=findings), "table").splitlines()
    assert said[0] == "one job in full: add --job NAME"
    assert said[1] == "✗ slurm-0  failed, exit 1  fault of slurm-0  ENV021"
    assert not any("fix:" in line for line in said)


def test_few_jobs_are_told_one_after_the_other() -> None:
    jobs = (_job(1), _job(2))
    findings = tuple(replace(CAUSE, job=job.name, message=f"fault of {job.name}") for job in jobs)
    said = render(replace(CLEAN, command="triage", jobs=jobs, findings=findings), "table")
    assert "slurm-1: 2 ranks, failed, exit 1\nCAUSE[ENV021] fault of slurm-1" in said
    assert "slurm-2: 2 ranks, failed, exit 1\nCAUSE[ENV021] fault of slurm-2" in said


def test_what_was_not_understood_is_named_and_what_was_passed_over_counted() -> None:
    inputs = (
        ExaminedInput("a.log", "log", lines=3),
        ExaminedInput("b.bin", "unknown", False, reason="not a text"),
        *(ExaminedInput(f"d/{i}", "unknown", False, reason="empty", is_named=False) for i in range(2)),
    )
    report = replace(CLEAN, inputs=inputs)
    said = render(report, "table")
    assert "not judged: b.bin: not a text\n" in said
    assert "skipped 2 files (empty: 2)\n" in said
    assert "incomplete · checked 1 log" in said
    assert report.exit_code(Severity.ERROR) == 3


def test_after_an_input_that_was_not_understood_the_next_step_stands() -> None:
    report = replace(CLEAN, command="triage", inputs=(ExaminedInput("a.log", "unknown", False, reason="empty"),))
    said = render(report, "table").splitlines()
    assert said[0] == "not judged: a.log: empty"
    assert said[1].startswith("next: name the output of the job: slurm-JOBID.out")


def test_a_preflight_that_passed_says_so_in_its_first_line() -> None:
    sections = (CheckedSection("host", "host", SectionState.OK, "2 CPUs"),)
    report = replace(CLEAN, sections=sections, subject="this machine: vm")
    assert render(report, "table").splitlines()[0] == "this machine: vm · pass"
    unfinished = replace(report, failures=("probe: not started",))
    assert render(unfinished, "table").splitlines()[0] == "this machine: vm"


def test_what_an_interrupt_left_undone_stands_before_the_findings() -> None:
    undone = "the other nodes: interrupted after 6 s of waiting"
    report = replace(REPORT, failures=(undone,), crashed=(), subject="torchrun: 2 nodes")
    assert f"error: {undone}" not in render(report, "table").splitlines()[:2]
    interrupted = render(replace(report, is_interrupted=True), "table")
    assert interrupted.splitlines()[:2] == ["torchrun: 2 nodes", f"error: {undone}"]
    assert interrupted.count(undone) == 1


def test_harmless_messages_are_counted_and_shown_on_request() -> None:
    report = replace(REPORT, findings=(CAUSE, NOTE))
    assert "1 harmless message hidden (-v shows them)" in render(report, "table")
    assert "it is late" not in render(report, "table")
    assert "it is late" in render(report, "table", verbose=True)


@pytest.mark.parametrize("width", [40, *(pytest.param(w, marks=pytest.mark.slow) for w in (80, 100))])
@given(report=reports)
@settings(max_examples=25, deadline=None)
def test_nothing_but_commands_is_wider_than_the_terminal(width: int, report: Report) -> None:
    commands = {
        printable(line).expandtabs().rstrip() for f in report.findings for line in (f.fix_command or "").splitlines()
    }
    for line in render(report, "table", width=width).split("\n"):
        assert cell_len(line) <= width or line in commands


@given(reports, st.booleans())
@settings(max_examples=25, deadline=None)
def test_no_text_steers_the_terminal(report: Report, quiet: bool) -> None:
    assert "\x1b" not in render(report, "table", quiet=quiet)


def test_colours_only_when_asked_for() -> None:
    assert "\x1b[" in render(REPORT, "table", colour=True)
    assert "\x1b[" not in render(REPORT, "table", colour=False)


def test_a_command_stands_alone_on_its_line_however_long() -> None:
    command = "torchrun --nnodes 2 " + "--rdzv-conf " + "x" * 200 + " train.py"
    assert f"\n{command}\n" in render(
        replace(REPORT, findings=(replace(CAUSE, fix_command=command),)), "table", width=40
    )


def test_markup_of_rich_is_text() -> None:
    found = replace(CAUSE, message="[bold]x[/bold] :smile:")
    assert "[bold]x[/bold] :smile:" in render(replace(REPORT, findings=(found,)), "table")


def test_why_and_fix_are_told_once_for_many_places() -> None:
    many = tuple(replace(CAUSE, where=Where(gpu=i)) for i in range(8))
    said = render(replace(REPORT, findings=many), "table")
    assert said.count("  = NCCL stops") == said.count("fix:") == said.count("export NCCL_SOCKET_IFNAME=eth0") == 1
    assert all(f"GPU {i} error[ENV021]" in said for i in range(8))


def test_each_node_has_its_own_command() -> None:
    commands = (NodeCommand("node 0", "export A=1"), NodeCommand("node 1", "export A=2"))
    said = render(replace(REPORT, findings=(replace(CAUSE, fix_command=None, fix_commands=commands),)), "table")
    assert "  on node 0:\nexport A=1\n  on node 1:\nexport A=2\n" in said


def test_a_consequence_of_nothing_that_was_found_is_told_by_itself() -> None:
    said = render(replace(REPORT, findings=(FOLLOWS,)), "table")
    assert "error[PROBE001] (follows from ENV021): rank 7 did not join" in said


def test_counts_of_rules_are_for_a_verbose_screen() -> None:
    skipped = tuple(Skipped(f"GPU{i:03}", f"reason number {i % 30}") for i in range(200))
    report = replace(CLEAN, skipped=skipped)
    assert "passed" not in render(report, "table")
    said = render(report, "table", verbose=True)
    assert "1 rule passed, 200 checks skipped (reason number 0: 7, reason number 1: 7, reason number 2: 7" in said


def test_quiet_leaves_only_findings() -> None:
    assert render(CLEAN, "table", quiet=True) == ""
    assert "passed" not in render(REPORT, "table", quiet=True)


def test_what_the_doctor_could_not_do_is_said() -> None:
    said = render(REPORT, "table")
    assert "error: the rule TOPO001 crashed: KeyError: 'x' (a bug in ddpdoctor, not in the job)" in said
    assert "error: facts.json: not JSON" in said


def test_many_ranks_are_cut_short() -> None:
    found = Finding("x", ranks=tuple(range(64)), severity=Severity.ERROR, code="PROBE001", name="y")
    assert "14, 15 and 48 more" in render(replace(REPORT, findings=(found,)), "table")
