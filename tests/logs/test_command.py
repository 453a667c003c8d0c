"""`ddpdoctor triage` as a user runs it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from commandline import ROOT, doctor

SCHEMA = json.loads((ROOT / "ddpdoctor" / "render" / "report.schema.json").read_text())
LOGS = ROOT / "fixtures" / "situations" / "logs"
RANKS = 4


def _triage(*words: str, stdin: bytes = b"") -> tuple[int, dict[str, Any]]:
    done = doctor("triage", "--format", "json", *words, stdin=stdin)
    report = json.loads(done.stdout)
    jsonschema.validate(report, SCHEMA)
    assert report["command"] == "triage"
    return done.returncode, report


def _interleaved(steps: int) -> bytes:
    """Rank 3 runs out of memory early; the others print on, and are ended by their watchdogs at the end."""
    dice = random.Random(4)
    lines = [f"[rank{r}]: step {s} loss {dice.random():.4f}" for s in range(20) for r in range(RANKS)]
    lines += [f"[rank3]: {line}" for line in (LOGS / "oom_without_rank_prefix.txt").read_text().splitlines()[64:77]]
    lines += [
        f'[rank{s % 3}]:[W412 09:3{s % 10}:01.1 ProcessGroupNCCL.cpp:1771] Failed to check the "should dump" flag on TCPStore, '
        f"(maybe TCPStore server has shut down too early), with error: Broken pipe {s}"
        for s in range(steps)
    ]
    lines += [line for line in (LOGS / "hang_nobody_named.txt").read_text().splitlines() if line.startswith("[rank")][
        :15
    ]
    return "\n".join(lines).encode() + b"\n"


def test_the_cause_is_found_40_000_lines_up() -> None:
    code, report = _triage("-", stdin=_interleaved(40_000))
    first, *others = report["findings"]
    assert (code, first["code"], first["role"], first["ranks"]) == (1, "LOG012", "cause", [3])
    assert (first["where"]["file"], first["where"]["line"]) == ("/home/ana/proj/model/block.py", 64)
    roles = {each["code"]: (each["role"], each["caused_by"]) for each in others}
    assert roles["LOG001"] == roles["LOG007"] == ("consequence", "LOG012")


def test_512_rank_files_are_one_job(tmp_path: Path) -> None:
    for rank in range(512):
        lines = [f"step {step} loss {rank / (step + 1):.4f}" for step in range(20)]
        if rank == 311:
            lines += (LOGS / "oom_without_rank_prefix.txt").read_text().splitlines()[64:77]
        (tmp_path / f"rank{rank}.txt").write_text("\n".join(lines) + "\n")
    _, report = _triage(str(tmp_path))
    assert (report["findings"][0]["code"], report["findings"][0]["ranks"]) == ("LOG012", [311])


def test_an_input_that_cannot_be_read_is_said_and_the_others_are_judged(tmp_path: Path) -> None:
    code, report = _triage(str(tmp_path / "missing.txt"), str(LOGS / "duplicate_gpu.txt"))
    assert code == 1
    assert report["findings"][0]["code"] == "GPU005"
    (missing,) = [each for each in report["inputs"] if not each["understood"]]
    assert (missing["path"], missing["reason"]) == (str(tmp_path / "missing.txt"), "no such file")
    code, report = _triage(str(tmp_path / "missing.txt"), str(LOGS / "healthy_exit_noise.txt"))
    assert (code, report["verdict"]) == (3, "incomplete")


def test_a_good_job_passes() -> None:
    code, report = _triage(str(LOGS / "healthy_exit_noise.txt"))
    assert (code, report["verdict"]) == (0, "pass")


def test_without_a_path_it_says_what_it_takes() -> None:
    done = doctor("triage")
    assert done.returncode == 2
    assert "standard input" in done.stderr


@pytest.mark.parametrize("form", ["table", "markdown", "junit", "sarif", "github"])
def test_every_format_tells_it(form: str) -> None:
    done = doctor("triage", "--format", form, str(LOGS / "oom_on_one_of_four.txt"))
    assert done.returncode == 1
    assert "LOG012" in done.stdout


def test_selected_codes_alone_are_judged() -> None:
    _, report = _triage("--select", "LOG001", str(LOGS / "oom_on_one_of_four.txt"))
    assert [each["code"] for each in report["findings"]] == ["LOG001"]


def test_what_a_log_prints_of_secrets_is_not_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        'Traceback (most recent call last):\n  File "/job/train.py", line 3, in <module>\n    login()\n'
        "RuntimeError: 401 for https://ana:PLANTED1@hub/x?token=PLANTED2 with {'Authorization': 'Bearer PLANTED3PLANTED3'}\n"
        "subprocess.CalledProcessError: Command '['train.py', '--wandb-key', 'PLANTED4']' died with <Signals.SIGSEGV: 11>.\n"
    )
    code, report = _triage(str(tmp_path / "job.log"))
    assert code == 1
    assert report["findings"]
    assert "PLANTED" not in json.dumps(report)
