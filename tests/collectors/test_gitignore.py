"""Folders are searched as git sees them: held against git itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpdoctor.collectors.script import find

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

TREE = ("a.py", "b/a.py", "b/c/d.py", "b/c/a.py", "x/b/a.py", "x/e.py", "out/run.py", "x/out/run.py", "foo.bar/z.py")
CASES = {
    "a name anywhere": {".gitignore": "a.py\n"},
    "a name at the top only": {".gitignore": "/a.py\n"},
    "a folder": {".gitignore": "out/\n"},
    "a path": {".gitignore": "b/c\n"},
    "a star stays in a folder": {".gitignore": "b/*.py\n"},
    "two stars cross folders": {".gitignore": "**/b/a.py\nx/**/run.py\n"},
    "everything inside": {".gitignore": "b/**\n"},
    "taken back": {".gitignore": "*.py\n!a.py\n"},
    "taken back by a nested file": {".gitignore": "*.py\n", "b/.gitignore": "!c/\n!d.py\n"},
    "not taken back inside of an ignored folder": {".gitignore": "b/\n!b/a.py\n"},
    "nested": {"b/.gitignore": "/a.py\n", "x/.gitignore": "out\n"},
    "a class of characters": {".gitignore": "[a-c].py\nfoo[.]bar\n"},
    "a comment, a blank, an escape": {".gitignore": "# a.py\n\n\\#x\na.py \n"},
    "a folder's name does not match a file": {".gitignore": "a.py/\n"},
    "all folders but not what is in them again": {".gitignore": "*/\n!b/\n"},
    "an escaped slash": {".gitignore": "?\\/a.p?\n"},
    "what no path matches": {".gitignore": "[\n!\n/\n"},
}


def _tree(top: Path, files: dict[str, str]) -> None:
    for name in TREE:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("")
    for name, text in files.items():
        (top / name).write_text(text)


def _git(top: Path) -> list[str]:
    subprocess.run(["git", "init", "-q", str(top)], check=True, capture_output=True, timeout=30)
    command = ["git", "-C", str(top), "-c", "core.excludesFile=", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
    return sorted(name for name in listed.split("\n") if name.endswith(".py"))


def _ours(top: Path) -> list[str]:
    return sorted(str(Path(p).relative_to(top)) for p in find([str(top)]).paths)


@needs_git
@pytest.mark.parametrize("files", CASES.values(), ids=CASES)
def test_what_git_ignores_is_passed_over(files: dict[str, str], tmp_path: Path) -> None:
    _tree(tmp_path, files)
    assert _git(tmp_path) == _ours(tmp_path)


@needs_git
def test_a_folder_of_a_repository_obeys_the_files_above_it(tmp_path: Path) -> None:
    _tree(tmp_path, {".gitignore": "d.py\n", "b/.gitignore": "/c/a.py\n"})
    _git(tmp_path)
    assert find([str(tmp_path / "b" / "c")]).paths == []
    assert find([str(tmp_path / "b" / "c" / "d.py")]).paths == [str(tmp_path / "b" / "c" / "d.py")]


def test_outside_of_a_repository_the_files_above_do_not_count(tmp_path: Path) -> None:
    _tree(tmp_path, {".gitignore": "d.py\n"})
    assert find([str(tmp_path / "b" / "c")]).paths == [str(tmp_path / "b" / "c" / n) for n in ("a.py", "d.py")]


def _classes(line: str) -> str:
    """What stands in brackets: pathspec splits at a slash before it reads a class of characters, git does not."""
    return line.partition("[")[2]


@needs_git
@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.text(alphabet="ab*/!?.[]-py\\ ", max_size=8).filter(lambda line: "/" not in _classes(line)), max_size=4)
)
def test_any_pattern_is_read_as_git_reads_it(tmp_path: Path, lines: list[str]) -> None:
    top = tmp_path / str(len(list(tmp_path.iterdir())))
    _tree(top, {".gitignore": "\n".join(lines) + "\n"})
    assert _git(top) == _ours(top)
