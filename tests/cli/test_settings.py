"""`[tool.ddpdoctor]` in pyproject.toml, and how the command line stands above it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commandline import doctor


def _judged(folder: Path, *words: str) -> set[str]:
    done = doctor("env", "--format", "json", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    return set(report["passed"]) | {s["code"] for s in report["skipped"]}


def test_ignore_is_found_above_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.ddpdoctor]\nignore = ["ENV001"]\n')
    below = tmp_path / "src" / "deep"
    below.mkdir(parents=True)
    (below / "pyproject.toml").write_text('[project]\nname = "x"\n')
    assert "ENV001" not in _judged(below)


def test_select_on_the_command_line_replaces_that_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.ddpdoctor]\nselect = ["ENV001"]\n')
    assert _judged(tmp_path) == {"ENV001"}
    assert _judged(tmp_path, "--select", "env003") == {"ENV003"}


def test_both_ignore_lists_count(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.ddpdoctor]\nignore = ["ENV001"]\n')
    assert not {"ENV001", "ENV003"} & _judged(tmp_path, "--ignore", "ENV003")


@pytest.mark.parametrize("text", ["[tool", "tool = 3", "\x00", "a = " + "[" * 3000])
def test_a_file_that_is_not_ours_to_mend_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    assert "ENV001" in _judged(tmp_path)
