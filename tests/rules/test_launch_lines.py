"""Wrong launch lines get exactly the codes beside them and a line that is clean; legal ones get silence."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cases import Case, all_cases, named
from launches import LEGAL, NODES, TRAIN, WRONG, lint, write_files

from ddpdoctor.findings import Finding, NodeCommand, Severity
from ddpdoctor.rules import Rule, load
from ddpdoctor.rules.views import line_rules

CHECK_ONLY = {"LAUNCH022", "LAUNCH065", "LAUNCH071", "LAUNCH075", "LAUNCH082", "LAUNCH087"}
"""Causes that need this machine or the other nodes, not only a line."""


def _codes(report: Any) -> list[str]:
    assert not report.crashed, report.crashed
    return sorted({f.code for f in report.findings})


def _reads_well(report: Any) -> None:
    """Headlines fit one line of 80 columns after the severity and the code, and every caret has a short label."""
    for finding in report.findings:
        if finding.code.startswith("LAUNCH"):
            assert len(finding.message) <= 62, finding.message
            assert len(finding.message.split()) <= 16, finding.message
            assert finding.where.column is None or 0 < len(finding.label.split()) <= 6, (finding.message, finding.label)


@pytest.mark.parametrize("case", WRONG, ids=lambda c: c.id)
def test_a_wrong_line_gets_its_codes_and_a_clean_line(case: Case, tmp_path: Path) -> None:
    write_files(tmp_path, case.files)
    torch = case.keys.get("torch", "2.13")
    report = lint([case.text], cwd=tmp_path, torch=torch)
    assert _codes(report) == sorted(case.codes), [f.message for f in report.findings]
    first = next(f for f in report.findings if f.code == case.codes[-1])
    assert first.where.column is not None or first.code.startswith("ENV")
    _reads_well(report)
    if "fix" in case.keys:
        assert (first.fix_command or "none") == case.keys["fix"]
    if first.fix_command is not None and not first.fix_command.startswith(("unset", "export")):
        again = lint([first.fix_command], cwd=tmp_path, torch=torch)
        assert first.code not in _codes(again), "the corrected line still has the mistake"


@pytest.mark.parametrize("case", NODES, ids=lambda c: c.id)
def test_the_nodes_of_a_job_are_held_against_each_other(case: Case, tmp_path: Path) -> None:
    write_files(tmp_path, {})
    report = lint(case.text.splitlines(), cwd=tmp_path)
    assert _codes(report) == sorted(case.codes), [f.message for f in report.findings]
    _reads_well(report)
    for each in report.findings:
        if each.where.node is not None and each.fix_command is not None:
            assert each.commands == (NodeCommand(f"node {each.where.node}", each.fix_command),)
    if "severity" in case.keys:
        assert report.findings[0].worst is Severity(case.keys["severity"])
    for name, value in case.where.items():
        assert getattr(report.findings[0].where, name) == value


def _corrected(lines: list[str], findings: tuple[Finding, ...]) -> list[str]:
    """The lines as the errors among the findings tell to correct them: each node is told one command only."""
    told: dict[str, set[str]] = {}
    for each in findings:
        for command in each.commands if each.worst is Severity.ERROR else ():
            told.setdefault(command.on, set()).add(command.command)
    assert all(len(commands) == 1 for commands in told.values()), told
    return [next(iter(told.get(f"node {i}", {line}))) for i, line in enumerate(lines)]


@pytest.mark.parametrize("case", NODES, ids=lambda c: c.id)
def test_corrections_of_several_nodes_agree_with_each_other(case: Case, tmp_path: Path) -> None:
    write_files(tmp_path, {})
    lines = case.text.splitlines()
    report = lint(lines, cwd=tmp_path)
    better = _corrected(lines, report.findings)
    if better != lines:
        left = {f.code for f in lint(better, cwd=tmp_path).findings if f.worst is Severity.ERROR}
        assert not left & {f.code for f in report.findings if f.fix_commands}


@pytest.mark.parametrize(
    ("lines", "corrected"),
    [
        (
            [
                "torchrun --nnodes 2 --node_rank 0 train.py",
                "torchrun --nnodes 2 --node_rank 0 --master_addr a train.py",
            ],
            [
                "torchrun --nnodes 2 --node_rank 0 --master_addr=a train.py",
                "torchrun --nnodes 2 --node_rank 1 --master_addr a train.py",
            ],
        ),
        (
            [
                "torchrun --nnodes 2 --node_rank 0 --nproc_per_nodes 4 --master_addr a train.py",
                "torchrun --nnodes 2 --node_rank 1 --master_addr b train.py --lr 1 --nproc_per_node 4",
            ],
            [
                "torchrun --nnodes 2 --node_rank 0 --nproc_per_node 4 --master_addr a train.py",
                "torchrun --nnodes 2 --node_rank 1 --master_addr a --nproc_per_node 4 train.py --lr 1",
            ],
        ),
    ],
)
def test_two_wrong_lines_become_two_that_work_together(lines: list[str], corrected: list[str], tmp_path: Path) -> None:
    write_files(tmp_path, {})
    assert _corrected(lines, lint(lines, cwd=tmp_path).findings) == corrected
    assert _codes(lint(corrected, cwd=tmp_path)) == []


PROGRAMS = ("train.py", "spawn.py", "pretrain_gpt.py", "run.sh", "train_mpi.py", "tools/train.py")


FILES = {
    "hosts": "worker-0 slots=8\nworker-1 slots=8\n",
    "hostfile": "worker-0 slots=8\nworker-1 slots=8\n",
    "fsdp.yaml": "compute_environment: LOCAL_MACHINE\n",
    "x.yaml": "compute_environment: LOCAL_MACHINE\n",
    "ds.json": "{}\n",
}
"""Files that the options of legal lines name."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs that legal lines name."""
    folder = tmp_path_factory.mktemp("programs")
    for name in PROGRAMS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(TRAIN)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "run.sh").chmod(0o755)
    return folder


@pytest.mark.parametrize("torch", ["2.13", "2.10"])
@pytest.mark.parametrize("case", LEGAL, ids=lambda c: c.id)
def test_legal_lines_are_silent(case: Case, torch: str, programs: Path) -> None:
    if "--shutdown-timeout" in case.text and torch == "2.10":
        return
    report = lint([case.text], cwd=programs, torch=torch)
    found = [f for f in report.findings if not (f.code == "LAUNCH003" and "/job" in f.message)]
    assert not found, [f.message for f in found]
    assert not report.crashed, report.crashed


def test_there_are_enough_legal_lines() -> None:
    assert len(LEGAL) >= 80


FIRED = {code for case in (*WRONG, *NODES, *all_cases("job-file")) for code in case.codes}
"""The codes for which a line, the lines of several nodes, a job file or a manifest is given."""


@pytest.mark.parametrize("code", [r.code for r in line_rules()])
def test_every_cause_of_a_machine_that_lines_show_has_a_line_or_a_file(code: str) -> None:
    assert code in FIRED, f"{named(code)} has no `launch-line`, `launch-nodes` or `job-file` case that fires"


@pytest.mark.parametrize("code", [r.code for r in load(("launch",)) if r.needs == ("launch",)])
def test_every_cause_of_a_line_has_a_line_or_a_file(code: str) -> None:
    assert code in FIRED | CHECK_ONLY, f"{named(code)} has no `launch-line` or `job-file` case that fires"


def test_two_mistakes_give_one_line_without_either(tmp_path: Path) -> None:
    write_files(tmp_path, {})
    report = lint(["torchrun -nproc_per_node=cuda train.py --nnodes=1"], cwd=tmp_path)
    assert report.findings[0].fix_command is not None
    assert _codes(lint([report.findings[0].fix_command], cwd=tmp_path)) == []


def test_the_corrected_line_keeps_spelling_order_and_quotes(tmp_path: Path) -> None:
    write_files(tmp_path, {})
    line = "A='x  y' torchrun   --nproc=2 \"train.py\" --name 'a b' $MORE   # comment"
    report = lint([line], cwd=tmp_path)
    assert report.findings[0].fix_command == line.replace("--nproc=2", "--nproc-per-node=2")


def test_the_place_is_the_word() -> None:
    report = lint(["cd /x && torchrun --nnodes=0 -m train"])
    where = report.findings[0].where
    assert (where.node, where.line, where.column) == (0, 1, len("cd /x && torchrun ") + 1)


def test_a_line_after_two_dashes_says_which_argument() -> None:
    report = lint(argv=["torchrun", "--nnodes", "0", "-m", "x"])
    assert report.findings[0].evidence[0].path == "launch.argv[2]"
    assert report.findings[0].fix_command == "torchrun --nnodes 1 -m x"


@pytest.mark.parametrize("launcher", ["jsrun -n 2 -g 6", "ray job submit --working-dir . --"])
def test_of_jsrun_and_ray_only_the_program_is_judged_and_lint_says_so(launcher: str, tmp_path: Path) -> None:
    legal = lint([f"{launcher} torchrun --nproc_per_node=6 -m pkg.train"], cwd=tmp_path)
    assert not legal.findings
    said = f"{launcher.split()[0]}: options not judged"
    assert {s.code for s in legal.skipped if s.reason == said} == {"LAUNCH009", "LAUNCH070"}
    wrong = lint([f"{launcher} torchrun train.py --nproc_per_node=6"], cwd=tmp_path)
    assert wrong.findings[0].fix_command == f"{launcher} torchrun --nproc_per_node=6 train.py"
    unknown = lint([f"{launcher} torchrun --nproc_per_nodes=6 train.py"], cwd=tmp_path)
    assert said in {s.reason for s in unknown.skipped}


def test_importing_the_rules_of_lines_brings_nothing_heavy() -> None:
    code = "import sys; from ddpdoctor.rules import load; load(('launch', 'environ')); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert out.stdout.strip() == "False"


def test_each_node_is_told_its_own_command() -> None:
    lines = [f"torchrun --nnodes=2 --master_addr=n0 --node_rank={rank} train.py" for rank in (1, 2)]
    found = next(each for each in lint(lines).findings if each.code == "LAUNCH037")
    assert [(each.on, each.command) for each in found.commands] == [
        (f"node {index}", f"torchrun --nnodes=2 --master_addr=n0 --node_rank={index} train.py") for index in (0, 1)
    ]


def test_one_line_is_not_told_which_node_it_is_for() -> None:
    assert all(not each.commands for each in lint(["torchrun --nproc_per_node=2 --nnodes=two train.py"]).findings)


def test_a_correction_for_every_node_says_so() -> None:
    finding = next(f for f in lint(argv=["torchrun", "--nnodes", "2", "train.py"]).findings if f.code == "LAUNCH025")
    command = "torchrun --nnodes 2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py"
    assert finding.commands == (NodeCommand("all nodes", command),)
    line = "torchrun --nnodes=2 --node-rank=1 --rdzv-endpoint=localhost:29400 train.py"
    assert [f.commands for f in lint([line]).findings if f.code == "LAUNCH032"] == [()]
    under_srun = lint(["srun -N 2 --ntasks-per-node=1 torchrun --nnodes 2 train.py"]).findings
    assert [f.commands for f in under_srun if f.code == "LAUNCH025"] == [()]


RULES = [r for r in load(("launch",)) if r.code.startswith("LAUNCH")]
SHOWN_BY_MORE_THAN_LINES = {
    "LAUNCH020", "LAUNCH022", "LAUNCH040", "LAUNCH041", "LAUNCH050", "LAUNCH051", "LAUNCH054", "LAUNCH056", "LAUNCH061",
    "LAUNCH063", "LAUNCH065", "LAUNCH071", "LAUNCH075", "LAUNCH077", "LAUNCH078", "LAUNCH081", "LAUNCH082", "LAUNCH084",
    "LAUNCH085", "LAUNCH086", "LAUNCH087", "LAUNCH500", "LAUNCH502", "LAUNCH521", "LAUNCH522", "LAUNCH523", "LAUNCH525",
    "LAUNCH526", "LAUNCH527", "LAUNCH528", "LAUNCH530", "LAUNCH531",
    "LAUNCH540", "LAUNCH541", "LAUNCH542", "LAUNCH543", "LAUNCH544", "LAUNCH545", "LAUNCH546", "LAUNCH548", "LAUNCH549",
    "LAUNCH554", "LAUNCH597",
}  # fmt: skip
"""Causes whose examples need a script, a batch script, a manifest or a machine."""


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.code)
def test_a_manual_page_is_short_and_has_an_example(rule: Rule) -> None:
    assert len(re.findall(r"[.?!](?=\s|$)", re.sub(r"``?.*?``?", "", rule.why))) <= 2, rule.why
    assert len(rule.fix) <= 70, rule.fix
    assert rule.fix.endswith("."), rule.fix
    shown, _, commands = rule.section("Example").partition("# before\n")
    assert shown.strip()
    assert all(part.strip() for part in commands.partition("# after\n"))


@pytest.mark.parametrize(
    "rule",
    [r for r in RULES if r.code not in SHOWN_BY_MORE_THAN_LINES and "submission" not in r.needs],
    ids=lambda r: r.code,
)
def test_the_example_of_a_manual_page_is_true(rule: Rule, tmp_path: Path) -> None:
    write_files(tmp_path, {})
    shown, _, commands = rule.section("Example").replace("<NBSP>", "\u00a0").partition("# before\n")
    before, _, after = commands.partition("# after\n")
    found = [f for f in lint(_lines(before), cwd=tmp_path).findings if f.code == rule.code]
    assert found
    if rule.code in shown:
        assert found[0].message == shown.strip().partition("]: ")[2]
    assert rule.code not in {f.code for f in lint(_lines(after), cwd=tmp_path).findings}


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
