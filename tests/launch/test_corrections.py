"""Edits of launch lines: the words that they change, and the commands that come of the edits of several findings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launches import LEGAL, WRONG, lint

from ddpdoctor.facts.launch.words import SpanEdit
from ddpdoctor.launch.corrections import edited
from ddpdoctor.launch.line import line_of_text

LINES = [case.text.strip() for case in (*LEGAL, *WRONG)]


@pytest.mark.parametrize(
    ("text", "edits", "expected"),
    [
        ("torchrun -nproc_per_node=2 a.py", [SpanEdit(9, 9, "-")], "torchrun --nproc_per_node=2 a.py"),
        ("A=1 torchrun a.py", [SpanEdit(0, 4, "")], "torchrun a.py"),
        ("torchrun a.py", [SpanEdit(0, 0, "srun "), SpanEdit(8, 8, " --nnodes=2")], "srun torchrun --nnodes=2 a.py"),
        ("torchrun a.py --lr 1", [SpanEdit(9, 20, "'b c.py' if")], "torchrun 'b c.py' if"),
        ("bash -c 'torchrun -x a.py'", [SpanEdit(18, 21, "")], "bash -c 'torchrun a.py'"),
        ("torchrun a.py", [SpanEdit(0, 0, "cd x && ")], "cd x && torchrun a.py"),
        (
            "N=2; torchrun --nnodes=$N a.py",
            [SpanEdit(14, 25, "--nproc-per-node=$N")],
            "N=2; torchrun --nproc-per-node=$N a.py",
        ),
    ],
)
def test_an_edited_line_is_the_line_of_the_corrected_text(text: str, edits: list[SpanEdit], expected: str) -> None:
    line = edited(line_of_text(text, {}, (2, 13), "/job"), edits, (2, 13))
    new = line_of_text(expected, {}, (2, 13), "/job")
    assert (line.source, line.argv, line.layers, line.plan) == (expected, new.argv, new.layers, new.plan)


@given(st.sampled_from(LINES), st.data())
def test_a_changed_value_changes_no_other_word(text: str, data: st.DataObject) -> None:
    line = line_of_text(text, {}, (2, 13), "/job")
    words = [word for word in line.argv if word.raw and text[word.start : word.end] == word.raw]
    if not words:
        return
    word = data.draw(st.sampled_from(words))
    found = edited(line, [SpanEdit(word.start, word.end, "changed")], (2, 13))
    new = line_of_text(found.source, {}, (2, 13), "/job")
    if [each.start for each in new.argv] == [each.start for each in found.argv]:  # else the launcher is gone
        assert found.argv == new.argv


def test_edits_of_several_findings_give_one_command() -> None:
    report = lint(["torchrun -nproc_per_node=2 –nnodes=1 a.py"])
    assert {f.fix_command for f in report.findings if f.fix_command} == {"torchrun --nproc_per_node=2 --nnodes=1 a.py"}


def test_lines_that_are_corrected_together_keep_none_of_their_own_errors() -> None:
    line = "torchrun --nnodes=2 --node_rank={} --master_addr=a --master_port=99999 a.py"
    report = lint([line.format(1), line.format(2)])
    found = next(f for f in report.findings if f.code == "LAUNCH037")
    right = line.replace("99999", "29500")
    assert found.fix_command == f"{right.format(0)}\n{right.format(1)}"
