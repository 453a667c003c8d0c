"""The table on a pinned console: what a person reads, in every width."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import CAUSE, CLEAN, FOLLOWS, REPORT, reports
from rich.cells import cell_len

from ddpdoctor.findings import Finding, Report, Severity, Skipped, Where
from ddpdoctor.render import render
from ddpdoctor.render.plain import printable


def test_it_reads_like_this() -> None:
    report = Report("check", "n", "t", 1.0, findings=(CAUSE, FOLLOWS), passed=("ENV001",), skipped=REPORT.skipped)
    assert render(report, "table", width=80) == (
        "error ENV021 nccl-socket-ifname-not-found\n"
        "  NCCL_SOCKET_IFNAME=eth9 matches no running interface (eth0, lo)\n"
        "  where: host node-3, rank 7, GPU 3, jobs/train.sbatch:12:1\n"
        "  seen:  environ.NCCL_SOCKET_IFNAME = eth9, expected one of eth0, lo\n"
        '  why:   NCCL stops at once with "Bootstrap : no socket interface found".\n'
        "  fix:   Name an interface that runs, or unset the variable.\n"
        "export NCCL_SOCKET_IFNAME=eth0\n"
        "  from it follows:\n"
        "    error PROBE001 rank 7 did not join the process group (rank 7)\n"
        "\n"
        "fail: 2 errors\n"
        "1 rule passed, 4 could not look: 2 no NVIDIA driver; 2 for other reasons\n"
        "more about a finding: ddpdoctor explain ENV021\n"
    )


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
    assert said.count("why:") == said.count("fix:") == 1
    assert said.count("where:") == said.count("export NCCL_SOCKET_IFNAME=eth0") == 8


def test_a_consequence_of_nothing_that_was_found_is_told_by_itself() -> None:
    said = render(replace(REPORT, findings=(FOLLOWS,)), "table")
    assert "error PROBE001 rank-missing (follows from ENV021)" in said


def test_the_totals_count_and_give_the_reasons_in_one_line() -> None:
    skipped = tuple(Skipped(f"GPU{i:03}", f"reason number {i % 30} of many") for i in range(200))
    said = render(replace(CLEAN, skipped=skipped), "table", width=100).splitlines()
    (totals,) = [line for line in said if "could not look" in line]
    assert totals.startswith("1 rule passed, 200 could not look: 7 reason number 0 of many; ")
    assert totals.endswith("for other reasons")


def test_quiet_leaves_only_findings() -> None:
    assert render(CLEAN, "table", quiet=True) == ""
    assert "passed" not in render(REPORT, "table", quiet=True)


def test_what_the_doctor_could_not_do_is_said() -> None:
    said = render(REPORT, "table")
    assert "crashed TOPO001: KeyError: 'x' (a fault of ddpdoctor, not of the job)" in said
    assert "could not read facts.json: not JSON" in said


def test_many_ranks_are_cut_short() -> None:
    found = Finding("x", ranks=tuple(range(64)), severity=Severity.ERROR, code="PROBE001", name="y")
    assert "14, 15 and 48 more" in render(replace(REPORT, findings=(found,)), "table")
