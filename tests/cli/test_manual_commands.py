"""`explain`, `rules` and `--version`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commandline import doctor

from ddpdoctor import __version__


@pytest.mark.parametrize("word", ["ENV001", "env001", "rank-out-of-range", "RANK-OUT-OF-RANGE"])
def test_explain_takes_codes_and_names(word: str) -> None:
    said = doctor("explain", word).stdout
    assert said.startswith("ENV001 rank-out-of-range (error)\n")
    assert "## Why it matters" in said
    assert "## Fix" in said


def test_explain_and_rules_speak_json_and_markdown(tmp_path: Path) -> None:
    assert json.loads(doctor("explain", "ENV001", "--format", "json").stdout)["name"] == "rank-out-of-range"
    assert doctor("explain", "ENV001", "--format", "markdown").stdout.startswith("# ENV001\n")
    assert {r["code"] for r in json.loads(doctor("rules", "--format", "json").stdout)} >= {"ENV001"}
    done = doctor("rules", "--format", "markdown", "--output", "rules.md", cwd=tmp_path)
    assert "ENV001" in done.stdout
    assert (tmp_path / "rules.md").read_text().startswith("| code | severity |")


def test_rules_can_be_selected() -> None:
    assert {r["code"] for r in json.loads(doctor("rules", "--select", "ENV001", "--format", "json").stdout)} == {
        "ENV001"
    }


@pytest.mark.parametrize("words", [["--version"], ["--version", "env"]])
def test_version(words: list[str]) -> None:
    done = doctor(*words)
    assert (done.returncode, done.stdout) == (0, f"ddpdoctor {__version__}\n")


def test_help_that_was_asked_for_is_no_wrong_use() -> None:
    assert doctor("--help").returncode == 0
    assert doctor("-h").returncode == 0
    assert doctor("check", "--help").returncode == 0
