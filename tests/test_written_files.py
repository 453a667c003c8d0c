"""What the product writes: created exclusively, replaced whole, and never through a link that another user made."""

from __future__ import annotations

import ast
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import environment

import ddpdoctor
from ddpdoctor.app.collect import PRIVATE
from ddpdoctor.facts.probe import Probe
from ddpdoctor.probe.baseline import save
from ddpdoctor.rehearsal.stage import RehearsalFolder
from ddpdoctor.system import whole_file
from ddpdoctor.system.whole_file import write_whole

ROOT = Path(ddpdoctor.__file__).parent
STRANGER = 12345
ELSEWHERE = {
    "app/standard_input.py": "a file in a TemporaryDirectory",
    "app/standard_source.py": "a file in a TemporaryDirectory",
    "cli/completion_scripts.py": "the user's own shell settings, which they asked to change",
    "collectors/archives.py": "files in a TemporaryDirectory",
    "probe/report_output.py": "torchrun's error file, whose path torchrun chose",
    "rehearsal/hook/ending.py": "the last step, in a file of the rehearsal's folder",
    "rehearsal/hook/files.py": "what the user's script writes, in a folder of the rehearsal",
    "rehearsal/hook/start.py": "files in the rehearsal's folder, and /proc/self",
    "rehearsal/stage.py": "files in the rehearsal's folder",
    "render/manual.py": "the pages of the manual, by `make docs`",
    "system/whole_file.py": "the one place that creates files",
    "collectors/nccl_files.py": "opened to learn whether NCCL could write there; nothing is created",
    "collectors/hang/running_job.py": "a pipe of the job, without waiting",
}
"""The modules that open something to write, and what."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a link that belongs to somebody else")


def _opens_to_write(tree: ast.AST) -> Iterator[int]:
    """The lines that open or create a file to write it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("O_WRONLY", "O_CREAT", "mktemp", "mkstemp"):
            yield node.lineno
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in ("write_text", "write_bytes", "touch"):
            yield node.lineno
        modes = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
        modes += [
            each.value.value for each in node.keywords if each.arg == "mode" and isinstance(each.value, ast.Constant)
        ]
        if name == "open" and any(
            isinstance(each, str) and set("wax+") & set(each) and len(each) < 4 for each in modes
        ):
            yield node.lineno


def test_only_known_modules_write() -> None:
    writing = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if any(_opens_to_write(ast.parse(path.read_text("utf-8"))))
    }
    assert writing == set(ELSEWHERE)


def test_what_opens_a_file_to_write_is_recognized() -> None:
    for text in ("open(p, 'w')", "p.open('ab')", "open(p, mode='x')", "p.write_text(t)", "os.open(p, os.O_WRONLY)"):
        assert list(_opens_to_write(ast.parse(text))), text
    for text in ("open(p)", "open(p, 'rb')", "file.write(x)"):
        assert not list(_opens_to_write(ast.parse(text))), text


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that everybody may write to, as /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    (tmp_path / "target").write_text("mine\n")
    return folder


def _plant(link: Path, target: Path) -> None:
    os.symlink(target, link)
    os.lchown(link, STRANGER, STRANGER)


@needs_root
@pytest.mark.parametrize("is_folder", [False, True])
def test_a_link_of_another_user_is_refused(is_folder: bool, shared: Path) -> None:
    target = shared.parent / "target"
    _plant(shared / "x", target.parent if is_folder else target)
    with pytest.raises(OSError, match="another user made this link"):
        write_whole(shared / "x" / "target" if is_folder else shared / "x", "theirs")
    with pytest.raises(OSError, match="another user made this link"):
        save(Probe(), str(shared / "x" / "target" if is_folder else shared / "x"))
    assert target.read_text() == "mine\n"


@needs_root
@pytest.mark.parametrize("words", [["lint", "--output", "@", "--", "torchrun", "t.py"], ["collect", "-o", "@"]])
def test_no_command_writes_through_it(words: list[str], shared: Path) -> None:
    target = shared.parent / "target"
    _plant(shared / "x", target)
    command = [sys.executable, "-m", "ddpdoctor", *(str(shared / "x") if word == "@" else word for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=shared.parent, timeout=120)
    assert done.returncode == 3, done.stderr
    assert "another user made this link" in done.stderr
    assert target.read_text() == "mine\n"


def test_a_link_of_the_user_stays_a_link(shared: Path) -> None:
    target = shared.parent / "target"
    os.symlink(target, shared / "own")
    write_whole(shared / "own", "new")
    assert (shared / "own").is_symlink()
    assert target.read_text() == "new"


def test_a_hard_link_of_a_stranger_is_not_written_through(shared: Path) -> None:
    target = shared.parent / "target"
    os.link(target, shared / "x")
    write_whole(shared / "x", "new")
    assert target.read_text() == "mine\n"
    assert (shared / "x").read_text() == "new"


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_whole(path, "new" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_whole(path, "a" * 100_000)
    seen: set[str] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            text = path.read_text()
            seen.add(text[:1] if text == text[:1] * 100_000 else "torn")

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(50):
        write_whole(path, "ab"[turn % 2] * 100_000)
    done.set()
    reader.join()
    assert seen <= {"a", "b"}


def test_a_pipe_without_a_reader_or_with_a_slow_one_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no program reads this pipe"):
        write_whole(tmp_path / "pipe", "x")
    monkeypatch.setattr(whole_file, "ANSWER_SECONDS", 0.2)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        started = time.monotonic()
        with pytest.raises(OSError, match="took nothing"):
            write_whole(tmp_path / "pipe", "x" * 1_000_000)
        assert time.monotonic() - started < 60
    finally:
        os.close(reader)


def test_a_pipe_with_a_reader_gets_everything(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_text()))
    reader.start()
    while True:  # until the reader has opened it
        try:
            write_whole(tmp_path / "pipe", "x" * 1_000_000)
            break
        except OSError as error:
            if "no program reads" not in str(error):
                raise
            time.sleep(0.01)
    reader.join()
    assert got == ["x" * 1_000_000]


def test_collected_facts_are_private(tmp_path: Path) -> None:
    write_whole(tmp_path / "facts.json", "{}", PRIVATE)
    assert stat.S_IMODE((tmp_path / "facts.json").stat().st_mode) == 0o600


def test_the_folder_of_a_rehearsal_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = os.umask(0)
    try:
        made = RehearsalFolder()
    finally:
        os.umask(before)
    try:
        assert made.folder.parent == tmp_path
        assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
        assert made.folder.stat().st_uid == os.geteuid()
    finally:
        made.close()


def test_the_kept_output_of_a_run_is_private(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise RuntimeError('CUDA error: an illegal memory access was encountered')\n")
    command = f"umask 0; exec {sys.executable} -m ddpdoctor run --no-check -- {sys.executable} fails.py"
    kept = tmp_path / "kept"
    kept.mkdir()
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**environment(), "TMPDIR": str(kept)},
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    folders = [each for each in kept.iterdir() if each.name.startswith("ddpdoctor_output_")]
    assert len(folders) == 1, done.stderr
    assert stat.S_IMODE(folders[0].stat().st_mode) == 0o700
    for each in folders[0].iterdir():
        assert stat.S_IMODE(each.stat().st_mode) == 0o600
