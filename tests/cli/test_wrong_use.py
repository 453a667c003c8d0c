"""Wrong use of ddpdoctor: exit code 2, the value that was given, what was expected, no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import doctor


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["env", "--timeout", "abc"], "'abc'"),
        (["env", "--timeout", "nan"], "'nan'"),
        (["env", "--timeout", "0"], "'0'"),
        (["env", "--timeout", "-1"], "'-1'"),
        (["check", "--join-timeout", "inf"], "'inf'"),
        (["env", "--format", "xml"], "'xml'"),
        (["env", "--fail-on", "always"], "'always'"),
        (["env", "--select", "FOO"], "--select 'FOO'"),
        (["env", "--ignore", "ENV0001"], "--ignore 'ENV0001'"),
        (["env", "--select", ","], "--select ','"),
        (["env", "--select", "ENV0①"], "--select 'ENV0①'"),
        (["env", "--output", "/missing/folder/x"], "/missing/folder does not exist"),
        (["env", "--output", "/tmp"], "is a folder"),
        (["collect", "-o", "/missing/x"], "/missing does not exist"),
        (["env", "--colour"], "--colour"),
        (["enf"], "'enf'"),
        (["explain", "nonsense-here"], "'nonsense-here'"),
        (["explain", "x" * 5000], "is no code and no name"),
        (["explain"], "CODE-or-name"),
        (["rules", "--format", "sarif"], "table, markdown, json"),
        (["env", "--", "torchrun", "x.py"], "env takes no launch line"),
        (["check", "--"], "nothing stands after --"),
        (["probe", "--nproc-per-node", "99999"], "--nproc-per-node 99999: expected 1 to "),
        (["probe", "--nproc-per-node", "9" * 5000], "expected 1 to "),
        (["probe", "--nproc-per-node", "0"], "'0'"),
        (["probe", "--facts", "facts.json"], "--facts with probe"),
        (["check", "--facts", "facts.json", "--", "torchrun", "train.py"], "ddpdoctor lint -- "),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_it_is_refused_with_the_value_that_was_given(words: list[str], said: str) -> None:
    done = doctor(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.startswith("ddpdoctor: ")


def test_a_launch_line_without_its_dashes_is_corrected() -> None:
    done = doctor("check", "--no-probe", "torchrun", "--nproc-per-node", "8", "train.py")
    assert done.returncode == 2
    assert "ddpdoctor check --no-probe -- torchrun --nproc-per-node 8 train.py" in done.stderr.split("\n")


def test_a_near_miss_is_answered_with_what_was_meant() -> None:
    assert "did you mean ENV001" in doctor("explain", "ENV001X").stderr


def test_no_words_at_all_is_answered_with_the_help() -> None:
    done = doctor()
    assert done.returncode == 2
    assert "check" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[tool.ddpdoctor]\nselct = []", "selct is unknown"),
        ('[tool.ddpdoctor]\nselect = "ENV"', "expected a list of codes"),
        ("[tool.ddpdoctor]\nignore = [1]", "expected a list of codes"),
        ('[tool.ddpdoctor]\nignore = ["FOO"]', "[tool.ddpdoctor] ignore 'FOO'"),
        ("[tool]\nddpdoctor = 3", "is no table"),
    ],
)
def test_broken_settings_are_refused(tmp_path: Path, toml: str, said: str) -> None:
    (tmp_path / "pyproject.toml").write_text(toml)
    done = doctor("env", cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
