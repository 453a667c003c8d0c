"""The Python of notebooks: cells, magics, older formats, and files that are not notebooks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.scripts.notebook import NotebookError, read_notebook


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


LEAF = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
ANY = st.recursive(LEAF, lambda each: st.lists(each, max_size=3), max_leaves=6)
CELL = st.fixed_dictionaries({}, optional={"cell_type": st.just("code") | ANY, "source": ANY, "input": ANY}) | ANY
CELLS = st.lists(CELL, max_size=4) | ANY
SHEETS = st.lists(st.fixed_dictionaries({}, optional={"cells": CELLS}) | ANY, max_size=3) | ANY
BOOK = st.fixed_dictionaries({}, optional={"cells": CELLS, "worksheets": SHEETS, "metadata": ANY}) | ANY


@given(BOOK)
def test_a_value_of_another_kind_at_any_place_is_no_crash(book: object) -> None:
    try:
        found = read_notebook(json.dumps(book))
    except NotebookError:
        return
    assert isinstance(found.text, str)


def test_worksheets_with_a_number_for_cells_have_no_cells() -> None:
    assert read_notebook('{"worksheets": [5, {"cells": 3}], "nbformat": 3}').cells == ()
