"""Inputs that unpack, nest or repeat without end: bounded memory and CPU time, and the report says what was left out."""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commandline import environment

from ddpdoctor.app import standard_input
from ddpdoctor.collectors.log.inputs import MOST_DEPTH, inputs_of

MIB = 1 << 20
IS_FULL = os.environ.get("DDPDOCTOR_FULL") == "1"
MOST_MEMORY = 900 * MIB
"""Peak of one process: Python, its libraries, and the 512 MiB of one input."""
MOST_CPU_SECONDS = 200
"""The kernel ends a process that needs more."""
SECONDS = 550.0


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_SECONDS, MOST_CPU_SECONDS))


def _report(*words: str, cwd: Path) -> tuple[int, dict[str, object]]:
    """The exit code and the report of a command with limited memory and CPU time."""
    command = [sys.executable, "-m", "ddpdoctor", words[0], "--format", "json", *words[1:]]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(),
        timeout=SECONDS,
        preexec_fn=_limited,
        input="",
    )
    assert "internal error" not in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert "RecursionError" not in done.stderr, done.stderr
    assert done.returncode >= 0, done.stderr
    return done.returncode, json.loads(done.stdout)


def _one_line(folder: Path) -> None:
    with gzip.open(folder / "input", "wb", 1) as file:
        for _ in range(1024 if IS_FULL else 48):
            file.write(b"a" * MIB)


def _archive(folder: Path) -> None:
    with zipfile.ZipFile(folder / "input.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for number in range(3):
            with packed.open(f"{number}.log", "w") as file:
                for _ in range(600):
                    file.write(b"a" * MIB)


def _ranks(folder: Path) -> None:
    with open(folder / "input", "w") as file:
        for rank in range(1_000_000):
            file.write(f"[rank{rank}]: RuntimeError: CUDA error: an illegal memory access was encountered\n")


def _tracebacks(folder: Path) -> None:
    with open(folder / "input", "w") as file:
        for rank in range(60_000):
            file.write(f"[rank{rank}]: Traceback (most recent call last):\n")
            file.write(f'[rank{rank}]:   File "/a/t{rank}.py", line {rank + 1}, in f{rank}\n')
            file.write(f"[rank{rank}]:     x\n[rank{rank}]: RuntimeError: oops {rank}\n")


def _nested(folder: Path) -> None:
    (folder / "input").write_text('{"schema": "ddpdoctor.facts/1", "x": ' + '{"a": ' * 500_000)


def _nested_dump(folder: Path) -> None:
    (folder / "input").write_text('{"entries": ' + "[" * 2_000_000)


TRIAGED: dict[str, Callable[[Path], None]] = {
    "one line": _one_line,
    "nested facts": _nested,
    "nested dump": _nested_dump,
    "archive": _archive,
    "a million ranks": _ranks,
    "many tracebacks": _tracebacks,
}
QUICK = ("one line", "nested facts")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in TRIAGED])
def test_a_large_input_has_bounded_needs_and_a_reason(name: str, tmp_path: Path) -> None:
    TRIAGED[name](tmp_path)
    (given,) = tmp_path.iterdir()
    code, report = _report("triage", given.name, cwd=tmp_path)
    inputs = report["inputs"]
    assert isinstance(inputs, list)
    assert inputs
    assert code in (1, 3)
    if code == 3:
        assert any(each["reason"] for each in inputs) or report["crashed"] == []


@pytest.mark.parametrize(
    "command", [["hang", "--facts"], pytest.param(["check", "--facts"], marks=pytest.mark.slow), ["compare", "other"]]
)
def test_json_nested_deep_is_an_unreadable_input(command: list[str], tmp_path: Path) -> None:
    _nested(tmp_path)
    (tmp_path / "other").write_text("{}")
    code, report = _report(*command, "input", cwd=tmp_path)
    assert code == 3
    assert report["verdict"] == "incomplete"


def _deep(folder: Path, levels: int) -> None:
    """Folders in each other, beyond the longest path, with a log and a script at the top and at the bottom."""
    opened = os.open(folder, os.O_RDONLY)
    for level in range(levels):
        if level in (0, levels - 1):
            for name, text in (("rank0.log", b"RuntimeError: x\n"), ("train.py", b"import torch\n")):
                made = os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=opened)
                os.write(made, text)
                os.close(made)
        os.mkdir("d", dir_fd=opened)
        inner = os.open("d", os.O_RDONLY, dir_fd=opened)
        os.close(opened)
        opened = inner
    os.close(opened)


@pytest.fixture
def deep_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with 3,000 folders in each other, removed afterwards: shutil cannot, so pytest could not."""
    folder = tmp_path / "deep"
    folder.mkdir()
    _deep(folder, 3000)
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True, timeout=60)


def test_folders_nested_deep_are_read_to_a_depth(deep_folder: Path) -> None:
    found = inputs_of([str(deep_folder)])
    assert [each.name for each in found if each.problem is None] == [
        str(deep_folder / "rank0.log"),
        str(deep_folder / "train.py"),
    ]
    assert [each.problem for each in found if each.problem] == [f"a folder nested more than {MOST_DEPTH} deep"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["triage", "lint"])
def test_commands_end_in_folders_nested_deep(command: str, deep_folder: Path) -> None:
    code, report = _report(command, "deep", cwd=deep_folder.parent)
    assert code in (0, 1, 3)
    assert report["inputs"]


def test_standard_input_is_copied_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_input, "MOST_BYTES", 3 * MIB)
    endless = io.BufferedReader(_Endless())
    copied = io.BytesIO()
    standard_input._copy(endless, copied)
    assert copied.tell() == 3 * MIB


class _Endless(io.RawIOBase):
    """Standard input that never ends."""

    def readable(self) -> bool:
        return True

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        target[:] = b"{" * len(target)
        return len(target)
