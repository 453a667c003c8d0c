"""The claims of lint, held against the real torchrun: what the wrong line does, and that the corrected line runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cases import Case
from launches import WRONG, lint, write_files

pytestmark = pytest.mark.torch

SECONDS = 60.0


def _run(line: str, folder: Path) -> tuple[int, str]:
    """Run one shell line to its end in a session of its own; its exit code and everything it printed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "MASTER_", "RANK"))}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    child = subprocess.Popen(
        ["bash", "-c", line],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = child.communicate(timeout=SECONDS)
    finally:
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    return child.returncode, out


EVERY = 25
"""One real run in so many belongs to `make test`, all of them to `make test-all`: each takes seconds."""


def _cases(key: str) -> list[Any]:
    chosen = [case for case in WRONG if key in case.keys and "torch" not in case.keys]
    return [
        pytest.param(case, id=case.id, marks=[pytest.mark.slow] if at % EVERY else []) for at, case in enumerate(chosen)
    ]


@pytest.mark.parametrize("case", _cases("runs"))
def test_the_wrong_line_does_what_the_rule_says(case: Case, tmp_path: Path) -> None:
    write_files(tmp_path, case.files)
    code, out = _run(case.text, tmp_path)
    expected, _, says = case.keys["runs"].partition(" ")
    assert code == int(expected), out
    assert says in out


@pytest.mark.parametrize("case", _cases("world"))
def test_the_corrected_line_starts_the_intended_world(case: Case, tmp_path: Path) -> None:
    write_files(tmp_path, case.files)
    finding = next(f for f in lint([case.text], cwd=tmp_path).findings if f.code == case.codes[-1])
    assert finding.fix_command is not None
    code, out = _run(finding.fix_command, tmp_path)
    assert code == 0, out
    world = int(case.keys["world"])
    ranks = {tuple(map(int, m)) for m in re.findall(r"rank (\d+) of (\d+)", out)}
    assert ranks == {(rank, world) for rank in range(world)}, out


def test_without_a_port_a_one_node_launch_gets_a_free_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('import os\nprint("port", os.environ["MASTER_PORT"])\n')
    _, out = _run("MASTER_PORT=12368 torchrun train.py", tmp_path)
    port = re.search(r"port (\d+)", out)
    assert port is not None
    assert port[1] not in ("12368", "29500")
