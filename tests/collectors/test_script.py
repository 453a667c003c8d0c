"""Reading scripts: encodings as Python reads them, notebooks, folders with traps in them, and the modules beside a script."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.collectors.script import MAX_BYTES, find, is_script, read, with_modules
from ddpdoctor.launch.ignore_comments import comments
from ddpdoctor.scripts.notebook import NotebookError, read_notebook
from ddpdoctor.scripts.source_text import decode

SOURCES = {
    "plain": b"x = 1\n",
    "a byte order mark": b"\xef\xbb\xbfx = 1\n",
    "latin-1, declared": b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
    "declared on the second line": b"#!/usr/bin/env python\n# coding: cp1252\nx = '\x80'\n",
    "latin-1, not declared": b"x = 1\ny = '\xe9'\n",
    "declared as another": b"# coding: ascii\n\nx = '\xe9'\n",
    "an encoding that there is not": b"# coding: klingon\nx = 1\n",
    "a codec that is no encoding": b"# coding: rot13\nk = 1\n",
    "a mark that contradicts": b"\xef\xbb\xbf# coding: latin-1\nx = 1\n",
    "UTF-16": "x = 1\n".encode("utf-16"),
    "null bytes": b"x = 1\n\0\n",
    "old line ends": b"x = 1\rif x:\r    y = 2\r\n",
}


@pytest.mark.parametrize("data", SOURCES.values(), ids=SOURCES)
def test_bytes_are_refused_when_python_refuses_them(data: bytes) -> None:
    try:
        compile(data, "x.py", "exec")
    except (SyntaxError, ValueError):
        assert decode(data).trouble is not None
    else:
        decoded = decode(data)
        assert decoded.trouble is None
        assert compile(decoded.text, "x.py", "exec") is not None


def test_the_line_that_cannot_be_read_is_named() -> None:
    assert decode(SOURCES["latin-1, not declared"]).line == 2
    assert decode(SOURCES["null bytes"]).line == 2


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    decode(data)


def notebook(*cells: str | list[str], language: str = "python") -> str:
    shown = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": cell} for cell in cells]
    return json.dumps({"cells": shown, "metadata": {"language_info": {"name": language}}, "nbformat": 4}, indent=1)


def test_the_cells_of_a_notebook_are_one_text() -> None:
    found = read_notebook(notebook(["import os\n", "x = 1"], "y = x"))
    assert found.text == "import os\nx = 1\ny = x\n"
    assert [(c.number, c.first_line, c.last_line) for c in found.cells] == [(1, 1, 2), (2, 3, 3)]


@pytest.mark.parametrize(
    ("cell", "python"),
    [
        ("%matplotlib inline\nx = 1", "pass\nx = 1"),
        ("if x:\n    !pip install \\\n      torch\ny = 1", "if x:\n    pass\n\ny = 1"),
        ("files = !ls\nprint(files)", "pass\nprint(files)"),
        ("x = %timeit -o f()\n?x\nx??", "pass\npass\npass"),
        ("x = (7\n%2)", "x = (7\n%2)"),
        ("s = '''\n!no\n%no\n'''", "s = '''\n!no\n%no\n'''"),
        ("ls ../out/\npip install langchain\ncat = 3", "pass\npass\ncat = 3"),
        ("x == 1 != 2", "x == 1 != 2"),
        ("%%bash\nls", "\n"),
        ("%%time\nx = 1", "pass\nx = 1"),
        ("\n%%writefile a.py\nimport os", "\n\n"),
    ],
)
def test_what_only_ipython_understands_is_taken_out(cell: str, python: str) -> None:
    assert read_notebook(notebook(cell)).text == python + "\n"


def test_a_notebook_in_another_language_has_no_python() -> None:
    assert read_notebook(notebook("x <- 1", language="R")).text == ""


def test_notebooks_before_format_4_are_read() -> None:
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["x = 1"]}]}], "nbformat": 3}
    assert read_notebook(json.dumps(old)).text == "x = 1\n"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": 3}', "[" * 100_000])
def test_what_is_no_notebook_is_said(text: str) -> None:
    with pytest.raises(NotebookError, match="is no notebook"):
        read_notebook(text)


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
    with pytest.raises(OSError, match="no regular file"):
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
