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
        (["explain", "x" * 5000], "unknown rule 'xxx"),
        (["explain"], "WORD"),
        (["rules", "--format", "sarif"], "table, markdown, json"),
        (["env", "--", "torchrun", "x.py"], "`env` takes no launch command"),
        (["env", "--quiet", "-v"], "contradict"),
        (["-v", "env"], "ddpdoctor env -v"),
        (["--versoin"], "did you mean --version?"),
        (["env", "--format", "jso"], "did you mean json?"),
        (["check", "--no-prob"], "did you mean --no-probe?"),
        (["env", "--timeout"], "--timeout needs a value"),
        (["chekc"], "did you mean check?"),
        (["help", "chekc"], "did you mean check?"),
        (["explain", "LAUNCH1"], "unknown rule 'LAUNCH1'; did you mean LAUNCH001?"),
        (["check", "--select", "NOPE", "--", "torchrun", "x.py"], "--select 'NOPE'"),
        (["--show-completion", "csh"], "'csh': no completion"),
        (["check", "--"], "nothing after `--`"),
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
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


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
        ("[tool.ddpdoctor]\nselct = []", "selct: unknown setting; did you mean select? allowed: format, select, "),
        ('[tool.ddpdoctor]\nselect = "ENV"', "expected a list of codes"),
        ("[tool.ddpdoctor]\nignore = [1]", "expected a list of codes"),
        ('[tool.ddpdoctor]\nignore = ["FOO"]', "[tool.ddpdoctor] ignore 'FOO'"),
        ('[tool.ddpdoctor]\nformat = "jsno"', "[tool.ddpdoctor] format = 'jsno': did you mean json? expected table, "),
        ('[tool.ddpdoctor]\ntimeout = "10"', "[tool.ddpdoctor] timeout = '10': expected a number of seconds above 0"),
        ("[tool.ddpdoctor]\nno-probe = 1", "[tool.ddpdoctor] no-probe = 1: expected true or false"),
        ('[tool.ddpdoctor]\ntorch = "new"', "[tool.ddpdoctor] torch = 'new': expected a version"),
        ("[tool]\nddpdoctor = 3", "tool.ddpdoctor = 3: expected a table"),
    ],
)
def test_broken_settings_are_refused(tmp_path: Path, toml: str, said: str) -> None:
    (tmp_path / "pyproject.toml").write_text(toml)
    done = doctor("env", cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
