"""`collect` and `--facts`: what was saved is judged elsewhere, and a broken file is told apart from a sick machine."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from commandline import doctor

GOOD = {
    "schema": "ddpdoctor.facts/1",
    "collected_at": "2026-11-21T00:00:00Z",
    "hostname": "far-away",
    "environ": {"variables": {"RANK": "9", "WORLD_SIZE": "2"}},
}


def test_saved_facts_are_judged_on_another_machine(tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text(json.dumps(GOOD))
    done = doctor("env", "--facts", "facts.json", "--format", "json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert report["host"] == "far-away"
    assert "ENV001" in {f["code"] for f in report["findings"]}


def test_facts_come_from_standard_input() -> None:
    done = doctor("env", "--facts", "-", "--format", "json", stdin=json.dumps(GOOD).encode())
    assert json.loads(done.stdout)["host"] == "far-away"


def test_what_collect_writes_can_be_judged_and_is_its_owners(tmp_path: Path) -> None:
    done = doctor("collect", "-o", "facts.json", cwd=tmp_path, env={"HF_TOKEN": "hunter2", "RANK": "0"})
    assert done.returncode == 0, done.stderr
    saved = tmp_path / "facts.json"
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert "hunter2" not in saved.read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["facts.json"]
    assert doctor("host", "--facts", "facts.json", cwd=tmp_path).returncode in (0, 1)


def test_collect_writes_to_standard_output() -> None:
    for words in (["collect"], ["collect", "-o", "-"]):
        assert json.loads(doctor(*words).stdout)["schema"] == "ddpdoctor.facts/1"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"{", "not JSON"),
        (b"\x80\x04\x95pickle\x00\xff", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b'{"a":' * 100_000, "not JSON"),
        (b"9" * 10_000, "not JSON"),
        (b"[]", "expected dict"),
        (b'{"schema": "ddpdoctor.report/1"}', "expected 'ddpdoctor.facts/1', got 'ddpdoctor.report/1'"),
        (b'{"schema": "ddpdoctor.facts/1", "hostname": 3, "collected_at": ""}', "$.hostname: expected str, got int"),
        (b" " * (65 << 20), "larger than 64 MiB"),
    ],
    ids=lambda value: repr(value[:20]) if isinstance(value, bytes) else "",
)
def test_a_file_without_facts_is_said_and_reported(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "broken.json").write_bytes(content)
    done = doctor("env", "--facts", "broken.json", "--format", "json", cwd=tmp_path)
    assert done.returncode == 3
    assert said in done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"] == "incomplete"
    assert report["passed"] == []
    assert "broken.json" in report["crashed"][0]["error"]


@pytest.mark.parametrize("name", ["missing.json", "/", "/dev/zero"])
def test_a_file_that_cannot_be_read_is_said(name: str) -> None:
    done = doctor("env", "--facts", name)
    assert done.returncode == 3
    assert name in done.stderr


@pytest.mark.parametrize(
    "command", [["lint"], ["lint", "--", "torchrun", "train.py"], ["hang"], ["check", "--no-probe"]]
)
@pytest.mark.parametrize("name", ["missing.json", "/"])
def test_every_command_reports_facts_that_cannot_be_read(command: list[str], name: str) -> None:
    done = doctor(command[0], "--facts", name, "--format", "json", *command[1:])
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"], report["passed"]) == (3, "incomplete", [])
    assert report["crashed"][0]["error"].startswith(f"read {name}: ")
    assert "internal error" not in done.stderr
