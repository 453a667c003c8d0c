"""`ddpdoctor check` as a user types it: on one machine, before a launch line, and as the ranks of a job."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

CHECK = [sys.executable, "-m", "ddpdoctor", "check"]
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("SLURM_", "OMPI_", "PMI", "TORCHELASTIC_", "PET_"))
    and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
}

pytestmark = pytest.mark.torch


def _check(*words: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CHECK, *words], capture_output=True, text=True, timeout=120, cwd=cwd, env={**CLEAN, **variables}
    )


def _report(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(done.stdout)
    assert not report["crashed"], report["crashed"]
    return report


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_healthy_machine_is_looked_at_and_probed() -> None:
    done = _check("--format", "json")
    report = _report(done)
    assert report["verdict"] in ("pass", "warn"), report["findings"]
    assert {"PROBE001", "PROBE006", "PROBE017", "HOST004", "NET014"} <= set(report["passed"])
    assert done.returncode == 0


def test_the_table_has_a_line_a_part_and_progress_goes_to_standard_error() -> None:
    done = _check()
    for part in ("environment", "host", "network", "GPUs", "topology", "versions", "probe"):
        assert any(line[2:].startswith(part) for line in done.stdout.splitlines()), f"{part}\n{done.stdout}"
    assert "all collectives returned correct values" in " ".join(done.stdout.split())
    assert "ddpdoctor: probing the local ranks" in done.stderr
    assert "probing" not in done.stdout


def test_without_a_probe_no_rule_of_the_probe_is_judged() -> None:
    report = _report(_check("--no-probe", "--format", "json"))
    told = [*report["passed"], *(s["code"] for s in report["skipped"])]
    assert not [code for code in told if code.startswith("PROBE")]


def test_a_line_that_cannot_work_is_corrected_and_not_probed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    done = _check("--format", "json", "--", "torchrun", "train.py", "--nproc_per_node", "2", cwd=tmp_path)
    report = _report(done)
    assert done.returncode == 1
    assert report["findings"][0]["code"] == "LAUNCH001"
    assert report["findings"][0]["fix_command"] == "torchrun --nproc_per_node 2 train.py"
    assert any(s["code"] == "PROBE009" and "LAUNCH001" in s["reason"] for s in report["skipped"])


def test_a_line_that_works_is_probed_with_its_own_number_of_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    done = _check("-v", "--", "torchrun", "--nproc-per-node", "3", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "3 ranks" in done.stdout
    assert "3 ranks, gloo" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("module", ["random", "signal", "json", "torch"])
def test_a_file_that_hides_a_module_is_named_and_disturbs_nobody_else(tmp_path: Path, module: str) -> None:
    file = tmp_path / f"{module}.py"
    file.write_text("x = 1\n")
    done = _check("--format", "json", cwd=tmp_path)
    report = _report(done)
    assert done.returncode == 1, done.stderr
    found = report["findings"][0]
    assert (found["code"], found["where"]["file"]) == ("PROBE005", str(file))
    assert f"{file} shadows the module {module}" in found["message"]


@pytest.mark.slow
def test_a_file_with_the_name_of_a_module_that_does_no_harm_is_no_finding(tmp_path: Path) -> None:
    (tmp_path / "ftplib.py").write_text("x = 1\n")  # torch needs none of it
    (tmp_path / "string.py").write_text(
        "import sys\nsys.path.remove('')\ndel sys.modules['string']\nfrom string import *\n"
        "from string import Template, Formatter\n"
    )
    done = _check("--format", "json", cwd=tmp_path)
    assert [c for c in _report(done)["findings"] if c["code"].startswith("PROBE")] == [], done.stderr


@pytest.mark.slow
def test_a_busy_machine_takes_its_time_to_show_that_a_file_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "traceback.py").write_text(  # the ranks have the right one already, and only try what this one does
        "import sys, time\ntime.sleep(24)\nsys.path.remove('')\ndel sys.modules['traceback']\nimport traceback\n"
    )
    done = _check("--format", "json", cwd=tmp_path)
    assert [c for c in _report(done)["findings"] if c["code"].startswith("PROBE")] == [], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "launcher", "harms"),
    [
        ("sub/random.py", ["torchrun"], True),
        ("random.py", ["torchrun"], False),  # Python looks beside the script, not here
        ("random.py", ["python", "-m", "torch.distributed.run"], True),
    ],
)
def test_a_file_hides_modules_where_the_job_looks_for_them(
    tmp_path: Path, hidden: str, launcher: list[str], harms: bool
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    (tmp_path / hidden).write_text("x = 1\n")
    done = _check("--format", "json", "--", *launcher, "--nproc-per-node", "2", "sub/train.py", cwd=tmp_path)
    found = [f["where"]["file"] for f in _report(done)["findings"] if f["code"] == "PROBE005"]
    assert done.returncode == int(harms), done.stderr
    assert set(found) == ({str(tmp_path / hidden)} if harms else set())


@pytest.mark.slow
def test_a_probe_that_could_not_be_done_never_passes() -> None:
    check = subprocess.Popen([*CHECK, "--format", "json"], stdout=subprocess.PIPE, text=True, env=CLEAN)
    probes: list[psutil.Process] = []
    end = time.monotonic() + 30
    while not probes and time.monotonic() < end:
        probes = [each for each in psutil.Process(check.pid).children() if "ddpdoctor.probe.local" in each.cmdline()]
    probes[0].kill()
    out, _ = check.communicate(timeout=60)
    assert check.returncode == 3
    report = json.loads(out)
    assert report["verdict"] == "incomplete"
    assert "the probe failed to run" in report["crashed"][0]["error"]


def test_ranks_that_a_launcher_started_meet_and_the_first_one_tells(tmp_path: Path) -> None:
    port = str(_free_port())
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [*CHECK, "--output", str(tmp_path / f"{rank}.json"), "--format", "json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**CLEAN, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told
    assert "2 ranks, gloo" in told[0][0]
    assert told[1][0] == ""
    assert json.loads((tmp_path / "0.json").read_text())["verdict"] in ("pass", "warn")
    assert not (tmp_path / "1.json").exists()


def test_a_rank_that_never_comes_is_named_within_the_join_timeout() -> None:
    begin = time.monotonic()
    done = _check(
        *("--format", "json", "--join-timeout", "2"),
        RANK="0",
        WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(_free_port()),
    )
    report = _report(done)
    assert done.returncode == 1
    causes = [f for f in report["findings"] if f["role"] == "cause" and f["severity"] == "error"]
    assert [(f["code"], f["where"]["rank"]) for f in causes] == [("PROBE001", 1)]
    assert time.monotonic() - begin < 30


def test_no_meet_probes_this_node_alone() -> None:
    done = _check(
        "--no-meet",
        RANK="0",
        WORLD_SIZE="4",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(_free_port()),
    )
    assert "2 ranks, gloo" in done.stdout, done.stdout
    assert "meeting" not in done.stderr


@pytest.mark.parametrize("delay", [0.9, *(pytest.param(each, marks=pytest.mark.slow) for each in (0.3, 1.5))])
def test_ctrl_c_while_ranks_run_leaves_no_process_behind(delay: float) -> None:
    check = subprocess.Popen(
        CHECK, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=CLEAN, start_new_session=True
    )
    time.sleep(delay)
    try:
        family = psutil.Process(check.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    with contextlib.suppress(ProcessLookupError):
        os.kill(check.pid, signal.SIGINT)
    out, err = check.communicate(timeout=30)
    assert check.returncode in (130, 0), err  # 0: it was through already
    assert "Traceback" not in out + err
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive
