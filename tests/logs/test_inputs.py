"""Every input is accounted for: what it is, and why it was not understood; and none can block triage."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from commandline import doctor, environment
from job_folders import banner, died, judged, raised, steps, write

from ddpdoctor.app.request import Request
from ddpdoctor.app.triage import triaged
from ddpdoctor.collectors.log import inputs
from ddpdoctor.facts.codec import encode
from ddpdoctor.facts.hang import Hang, RankProcess
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.findings import Verdict

BAD = banner() + steps() + raised() + died()
SMI = """Sat Apr 12 09:00:00 2025
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
|=========================================+========================+======================|
"""
SHOWS_NO_JOB = {
    "empty.log": b"",
    "hostname": b"gpu-07\n",
    "README.md": b"# My model\n\nInstall it, then run torchrun train.py.\n",
    "binary.log": bytes(range(256)) * 40,
    "smi.txt": SMI.encode(),
    "smi.xml": b'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n',
    "ibstat.txt": b"CA 'mlx5_0'\n\tCA type: MT4129\n\tNumber of ports: 1\n",
    "lspci.txt": b"00:00.0 Host bridge: Intel Corporation Device 09a2\n3b:00.0 3D controller: NVIDIA Corporation GH100\n",
    "dcgmi.txt": b"Successfully ran diagnostic for group.\n| Diagnostic                | Result |\n",
    "all_reduce.txt": b"# nThread 1 nGpus 8 minBytes 8 maxBytes 128\n#\n# Avg bus bandwidth    : 12.3\n",
    "train.py": b"import torch\nraise ValueError('x')\n",
    "job.yaml": b"apiVersion: v1\nkind: Pod\n",
    "data.json": b'{\n  "name": "model",\n  "layers": 12\n}\n',
    "plot.png": b"\x89PNG\r\n\x1a\n" + bytes(60),
    "model.pt": b"PK\x03\x04" + bytes(20) + b"archive/data.pkl" + bytes(60),
    "model.safetensors": (60).to_bytes(8, "little")
    + b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    + bytes(20),
}


@pytest.mark.parametrize("name", SHOWS_NO_JOB)
def test_what_shows_no_job_is_not_a_pass(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(SHOWS_NO_JOB[name])
    done = doctor("triage", "--format", "json", str(tmp_path / name))
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (3, "incomplete")
    (only,) = report["inputs"]
    assert not only["understood"]
    assert only["reason"]
    assert report["jobs"] == []


def test_a_file_that_does_not_exist_is_said(tmp_path: Path) -> None:
    done = doctor("triage", "--format", "json", str(tmp_path / "nope.log"))
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"], report["inputs"][0]["reason"]) == (3, "incomplete", "no such file")


def test_in_a_folder_they_are_counted_and_the_job_is_judged(tmp_path: Path) -> None:
    for name, data in SHOWS_NO_JOB.items():
        (tmp_path / name).write_bytes(data)
    report = judged(tmp_path, {"slurm-5.out": BAD})
    assert [job.name for job in report.jobs] == ["slurm-5"]
    assert sorted(Path(each.path).name for each in report.inputs if not each.is_understood) == sorted(SHOWS_NO_JOB)
    assert report.not_understood == ()


def test_a_log_that_begins_with_the_output_of_a_tool_is_a_log(tmp_path: Path) -> None:
    report = judged(tmp_path, {"train.log": SMI + BAD})
    assert [(each.kind, each.is_understood) for each in report.inputs] == [("log", True)]
    assert report.verdict is Verdict.FAIL


def test_a_log_without_an_end_has_no_known_outcome(tmp_path: Path) -> None:
    report = judged(tmp_path, {"train.log": "starting train.py on cuda:0\n"})
    assert [job.outcome for job in report.jobs] == ["unknown"]
    assert report.verdict is Verdict.INCOMPLETE
    assert report.subject.endswith("1 line, outcome unknown")
    assert [job.outcome for job in judged(tmp_path, {"train.log": steps(40)}).jobs] == ["unknown"]


def test_pipes_sockets_and_loops_in_a_folder_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "again.log").symlink_to("train.log")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        report = judged(tmp_path, {"train.log": BAD})
    told = {Path(each.path).name: each.reason for each in report.inputs}
    assert told["pipe.log"] == "a named pipe"
    assert told["s"] == "a socket"
    assert "loop" in told
    assert "again.log" not in told
    assert report.verdict is Verdict.FAIL


def test_folders_that_are_not_read_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"logs/train.log": BAD, "logs/private/b.log": BAD, "elsewhere/a.log": BAD})
    (tmp_path / "logs" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "logs" / "latest").symlink_to(tmp_path / "logs" / "private")
    listed = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("private"):
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = {Path(each.name).name: each.problem for each in inputs.inputs_of([str(tmp_path / "logs")])}
    assert found == {"train.log": None, "link": "a link to a folder", "private": "permission denied"}


def test_a_pipe_that_nobody_writes_to_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "ANSWER_SECONDS", 0.2)
    os.mkfifo(tmp_path / "pipe")
    (found,) = inputs.inputs_of([str(tmp_path / "pipe")])
    with pytest.raises(TimeoutError, match="no answer"), inputs.opened(found):
        pass


def test_what_a_pipe_said_before_it_went_silent_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "ANSWER_SECONDS", 0.5)
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)  # opened for both, so that nobody waits for the other end
    try:
        os.write(writer, BAD.encode())
        report, _ = triaged([pipe], Request(), started=time.monotonic())
    finally:
        os.close(writer)
    assert report.verdict is Verdict.FAIL
    (only,) = report.inputs
    assert only.is_understood
    assert only.reason is not None
    assert "no answer" in only.reason


def test_standard_input_that_never_ends_is_bounded_by_the_timeout() -> None:
    waiting = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE)
    try:
        argv = ["python", "-m", "ddpdoctor", "triage", "--timeout", "2", "--format", "json", "-"]
        done = subprocess.run(argv, stdin=waiting.stdout, capture_output=True, timeout=50, env=environment())
    finally:
        waiting.kill()
        waiting.communicate()
    assert done.returncode == 3
    assert json.loads(done.stdout)["verdict"] == "incomplete"


def test_a_device_without_end_is_bounded() -> None:
    done = doctor("triage", "--format", "json", "/dev/zero")
    assert done.returncode == 3
    assert not json.loads(done.stdout)["inputs"][0]["understood"]


def test_hang_names_the_facts_that_it_read(tmp_path: Path) -> None:
    ranks = Hang(processes=(RankProcess(pid=7, rank=3),))
    facts = Facts(schema=SCHEMA, collected_at="", hostname="gpu-07", hang=ranks)
    for name, saved in (("stuck.json", facts), ("other.json", replace(facts, hang=None))):
        (tmp_path / name).write_text(json.dumps(encode(saved)))
    found = json.loads(doctor("hang", "--facts", str(tmp_path / "stuck.json"), "--format", "json").stdout)["inputs"]
    assert [(each["kind"], each["understood"], each["ranks"]) for each in found] == [("facts", True, [3])]
    done = doctor("hang", "--facts", str(tmp_path / "other.json"), "--format", "json")
    assert done.returncode == 3
    assert not json.loads(done.stdout)["inputs"][0]["understood"]
