"""What is shown while it works: live rows on a terminal, which are gone in the end; one line per phase in a log."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from commandline import SECONDS, doctor, environment
from first_lines import own_address
from terminal import on_terminal, screen_of

from ddpdoctor.cli.progress import ConsoleListener, _columns, _line, _Row

SCRIPT = "import torch.distributed as dist\n" + "".join(
    f"def f{n}(x, y):\n    if dist.get_rank() == {n}:\n        return dist.all_reduce(x)\n    return [y + {n}]\n\n"
    for n in range(40)
)
MANY = 80
ROW = re.compile(r"^[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] judging scripts: \d+ done, \d+ left \d+ s", re.MULTILINE)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """So many scripts that judging them takes a while."""
    for number in range(MANY):
        (tmp_path / f"train_{number}.py").write_text(SCRIPT)
    return tmp_path


def test_a_large_tree_shows_live_rows_that_are_cleared(tree: Path, tmp_path: Path) -> None:
    done = on_terminal("lint", "--format", "json", ".", cwd=tree, out=tmp_path / "out.json")
    assert done.code in (0, 1)
    assert ROW.search(done.written.replace("\r", "\n").replace("\x1b[K", "").replace("\x1b[2K", ""))
    assert done.screen == []
    assert done.out.startswith("{")
    assert "\x1b" not in done.out


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"TERM": "dumb", "NO_COLOR": "1"}])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(tree: Path, tmp_path: Path, env: dict[str, str]) -> None:
    done = on_terminal("lint", "--format", "json", ".", cwd=tree, out=tmp_path / "out.json", env=env)
    assert "\x1b" not in done.written
    assert done.screen == [f"ddpdoctor: reading {MANY} scripts", f"ddpdoctor: judging {MANY} scripts"]


def test_no_color_takes_no_rows_away(tree: Path, tmp_path: Path) -> None:
    done = on_terminal("lint", "--format", "json", ".", cwd=tree, out=tmp_path / "out.json", env={"NO_COLOR": "1"})
    assert "judging scripts:" in done.written
    assert not re.search(r"\x1b\[[\d;]*m", done.written)


def test_a_log_gets_one_line_per_phase_and_quiet_none(tree: Path) -> None:
    done = doctor("lint", "--format", "json", ".", cwd=tree)
    assert done.stderr == f"ddpdoctor: reading {MANY} scripts\nddpdoctor: judging {MANY} scripts\n"
    assert doctor("lint", "--format", "json", "--quiet", ".", cwd=tree).stderr == ""


def test_short_work_shows_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    done = doctor("lint", "train.py", cwd=tmp_path)
    assert done.stderr == ""


def test_check_says_what_it_waits_for(tmp_path: Path) -> None:
    done = doctor("check", "--no-probe", "--format", "json")
    assert done.stderr.splitlines() == ["ddpdoctor: examining this machine"]


def test_hang_says_what_it_waits_for(tmp_path: Path) -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"],
        env=environment({"RANK": "0", "WORLD_SIZE": "2"}),
        stdout=subprocess.PIPE,
    )
    try:
        assert rank.stdout is not None
        rank.stdout.readline()
        done = on_terminal("hang", str(rank.pid), "--watch", "0.6", out=tmp_path / "out.txt")
    finally:
        rank.kill()
        rank.communicate()
    assert "watching the ranks for 0.6 s" in done.written
    assert done.screen == []
    assert "watching" not in done.out


@pytest.mark.torch
def test_the_row_of_a_probe_ends_before_its_report(tmp_path: Path) -> None:
    done = on_terminal("probe", "--nproc-per-node", "2", "--no-color", columns=120)
    assert done.code == 0
    assert "probing 2 ranks" in done.written
    assert not [row for row in done.screen if "probing 2 ranks" in row]
    assert [row for row in done.screen if row.startswith("pass")]


@pytest.mark.parametrize("columns", [20, 80, 120])
def test_a_row_is_never_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr("ddpdoctor.cli.progress._columns", lambda: columns)
    row = _Row("waiting for " + "gpu-07.cluster.example.com, " * 20)
    assert len(_line(row)) <= columns
    assert _line(row).endswith(" s")


def test_a_row_has_no_control_characters() -> None:
    assert "\x1b" not in _line(_Row("starting \x1b[2J"))
    assert _columns() > 0


def test_notices_stand_above_the_rows(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpdoctor.cli.progress._is_live", lambda: True)
    listener = ConsoleListener(is_quiet=False)
    listener.phase("first")
    listener.step("first, half done")
    deadline = time.monotonic() + 20
    text = ""
    while "half done" not in text and time.monotonic() < deadline:
        time.sleep(0.05)
        text += capfd.readouterr().err
    listener.warning("careful")
    listener.phase("second")
    while "second" not in text and time.monotonic() < deadline:
        time.sleep(0.05)
        text += capfd.readouterr().err
    rows = screen_of(text.replace("\n", "\r\n"))  # as a terminal's driver does
    assert rows[0] == "warning: careful"
    assert re.fullmatch(r"✓ first, half done \d+ s", rows[1])
    assert re.fullmatch(r". second \d+ s", rows[2])
    listener.end()
    assert screen_of((text + capfd.readouterr().err).replace("\n", "\r\n")) == ["warning: careful"]


def _interrupted(*words: str, cwd: Path, phase: str, stdin: str = "") -> tuple[int, str, str]:
    """The exit code and what was printed of a command that gets Ctrl-C when it says that this phase began, while its
    standard input, which begins like this, is open.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "ddpdoctor", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment(),
    )
    assert process.stderr is not None
    assert process.stdin is not None
    process.stdin.write(stdin)
    process.stdin.flush()
    said = ""
    while phase not in said:
        line = process.stderr.readline()
        assert line, f"it ended before {phase!r}: {said}"
        said += line
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, said + err


def test_ctrl_c_gives_what_lint_knows_so_far(tmp_path: Path) -> None:
    for number in range(400):
        (tmp_path / f"train_{number}.py").write_text(SCRIPT)
    code, out, err = _interrupted("lint", ".", cwd=tmp_path, phase="judging 400 scripts")
    assert code == 130
    assert re.search(r"\d+ of 400 scripts \(train_\d+\.py, …\) not judged: interrupted", " ".join(out.split()))
    assert "incomplete" in out or "SCRIPT" in out
    assert "Traceback" not in err


def test_files_whose_process_is_killed_are_named_and_the_others_judged(tmp_path: Path) -> None:
    for number in range(400):
        (tmp_path / f"train_{number}.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "-m", "ddpdoctor", "lint", "--format", "json", "."],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(),
    )
    assert process.stderr is not None
    while "judging" not in process.stderr.readline():
        assert process.poll() is None
    deadline = time.monotonic() + 20
    while not (judges := psutil.Process(process.pid).children()) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    judges[0].kill()
    out, _ = process.communicate(timeout=SECONDS)
    report = json.loads(out)
    assert process.returncode == 3
    (failure,) = [each["error"] for each in report["crashed"]]
    assert re.fullmatch(r"[1-4] of 400 scripts \(train_\d+\.py, …\) not judged: .* was killed .*", failure)
    assert report["seconds"] > 0.5


def test_ctrl_c_gives_what_triage_knows_so_far(tmp_path: Path) -> None:
    line = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 79 GiB\n"
    (tmp_path / "a.log").write_text(line)
    with (tmp_path / "b.log").open("w") as file:
        for number in range(500_000):
            file.write(f"[rank{number % 8}]: epoch {number} loss 0.{number:07d} {hash(str(number)):x} tokens/s\n")
    code, out, err = _interrupted("triage", "a.log", "b.log", "-", cwd=tmp_path, phase="reading logs", stdin="step 1\n")
    assert code == 130
    assert "standard input: not read: interrupted" in " ".join(out.split())
    assert "Traceback" not in err


def test_ctrl_c_while_check_waits_gives_what_it_knows_of_this_node(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    line = (
        "torchrun",
        "--nnodes",
        "2",
        "--node-rank",
        "0",
        "--master-addr",
        own_address(),
        "train.py",
        "--nproc_per_node=2",
    )
    code, out, err = _interrupted("check", "--no-probe", "--", *line, cwd=tmp_path, phase="waiting for node 1")
    assert code == 130
    text = " ".join(out.split())
    assert re.search(r"error: the other nodes: interrupted after \d+ s of waiting at \S+:29500", text)
    assert "LAUNCH001" in text
    assert "Traceback" not in err


@pytest.mark.torch
def test_ctrl_c_while_check_probes_gives_what_it_knows_of_this_machine(tmp_path: Path) -> None:
    code, out, err = _interrupted("check", cwd=tmp_path, phase="probing the local ranks")
    assert code == 130
    assert "error: the ranks were not probed: interrupted" in out
    assert "✓ versions" in out
    assert "Traceback" not in err


def test_ctrl_c_names_what_was_interrupted(tmp_path: Path) -> None:
    variables = {**environment(), "RANK": "0", "WORLD_SIZE": "2"}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], env=variables) as rank:
        words = ("hang", "--no-stacks", "--watch", "20", str(rank.pid))
        code, out, err = _interrupted(*words, cwd=tmp_path, phase="watching the ranks")
        rank.kill()
    assert (code, out) == (130, "")
    assert "ddpdoctor: interrupted while watching the ranks for 20 s" in err
