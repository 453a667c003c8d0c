"""Reading scripts: folders with unusual files in them, files that are not read, and the modules beside a script."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpdoctor.collectors.script import MAX_BYTES, find, is_script, read, with_modules
from ddpdoctor.launch.ignore_comments import comments


def test_traps_in_a_folder_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "a.py").write_text("")
    (tmp_path / "pkg" / "up").symlink_to(tmp_path)
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nothing.py")
    (tmp_path / "again.py").symlink_to(tmp_path / "train.py")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    for name in (".venv", "build", "__pycache__", "node_modules", ".git"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.py").write_text("")
    found = find([str(tmp_path)])
    assert [os.path.relpath(p, tmp_path) for p in found.paths] == ["again.py", "pkg/a.py"]
    assert found.failures == []


def test_a_folder_that_is_named_is_searched_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "x.py").write_text("")
    assert len(find([str(tmp_path / "build")]).paths) == 1


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(OSError, match="not a regular file"):
        read(str(tmp_path / "pipe.py"))


def test_a_file_of_data_is_not_read_whole(tmp_path: Path) -> None:
    with open(tmp_path / "data.py", "wb") as file:
        file.truncate(MAX_BYTES[".py"] + 1)
    problem = read(str(tmp_path / "data.py")).source.problem
    assert problem is not None
    assert "larger than" in problem.message


def test_python_is_known_by_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "train").write_text("#!/usr/bin/env python3\n")
    (tmp_path / "run").write_text("#!/bin/bash\n")
    names = ("train", "run", "missing", "a.py", "b.ipynb", "c.sh", ".")
    assert [is_script(str(tmp_path / name)) for name in names] == [True, False, False, True, True, False, True]


def test_modules_beside_a_script_are_read_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {
        "train.py": "import utils.dist as d, numpy\nfrom pkg import (\n    comm,  # words\n    other,\n)\nfrom lone import x\n",
        "utils/dist.py": "from . import deeper\nimport torch.distributed\n",
        "utils/deeper.py": "from ..train import y\nrank = 0\n",
        "pkg/__init__.py": "import torch.distributed\n",
        "pkg/comm.py": "import torch.distributed\n",
        "pkg/other.py": "print()\n",
        "pkg/unused.py": "import torch.distributed\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    script = read("train.py").source
    beside = ["utils/dist.py", "pkg/__init__.py", "pkg/comm.py", "utils/deeper.py"]
    assert [f.path for f in with_modules([script])] == ["train.py", *beside]
    script = read(str(tmp_path / "train.py")).source
    assert [f.path for f in with_modules([script])] == [str(tmp_path / name) for name in ("train.py", *beside)]


def test_a_comment_holds_for_its_statement() -> None:
    text = 'f(\n    1,  # ddpdoctor: ignore[script014, SCRIPT02]\n)\n# ddpdoctor: ignore\ns = """\n# ddpdoctor: ignore\n"""\n'
    first, second = comments(text)
    assert (first.line, first.column, first.first, first.last) == (2, 9, 1, 3)
    assert first.silences("SCRIPT014", 1)
    assert first.silences("SCRIPT022", 3)
    assert not first.silences("SCRIPT030", 1)
    assert (second.first, second.last, second.silences("LAUNCH001", 4)) == (4, 4, True)


def test_a_folder_deeper_than_any_project_is_left_out_and_named(tmp_path: Path) -> None:
    """1,200 folders in each other took 50 s: each was resolved from the root."""
    deep = tmp_path.joinpath(*["d"] * 120)
    deep.mkdir(parents=True)
    (deep / "train.py").touch()
    (tmp_path / "d" / "near.py").touch()
    found = find([str(tmp_path)])
    assert [Path(path).name for path in found.paths] == ["near.py"]
    assert [each for each in found.failures if "nested more than 100 deep" in each] == found.failures
    assert found.failures
