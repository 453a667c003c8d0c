"""`explain`, `rules`, `help` and `--version`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commandline import doctor, inside

from ddpdoctor import __version__
from ddpdoctor.app.rule_search import search
from ddpdoctor.cli.app import COMMANDS
from ddpdoctor.cli.help import EXAMPLES, GROUPS


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


@pytest.mark.parametrize("words", [["--version"], ["-V"], ["--version", "env"]])
def test_version(words: list[str]) -> None:
    done = doctor(*words)
    assert (done.returncode, done.stdout) == (0, f"ddpdoctor {__version__}\n")


def test_help_that_was_asked_for_is_no_wrong_use() -> None:
    assert doctor("--help").returncode == 0
    assert doctor("-h").returncode == 0
    assert doctor("check", "--help").returncode == 0
    assert doctor("help").stdout == doctor("--help").stdout
    assert doctor("help", "check").stdout == doctor("check", "--help").stdout


def test_the_overview_groups_all_commands_in_80_columns() -> None:
    said = doctor("--help").stdout
    assert max(map(len, said.splitlines())) <= 80
    listed = [name for commands in GROUPS.values() for name in commands]
    assert sorted(listed) == sorted([*COMMANDS, "help"])
    assert all(f"\n  {name} " in said for name in listed)
    assert said.index("Before the job:") < said.index("During the job:") < said.index("After the job:")
    assert len(EXAMPLES[""]) == 3


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_its_own_options_first_and_fits(name: str) -> None:
    done = inside(name, "--help")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    own, heading, common = done.stdout.partition("\nCommon options:\n")
    assert heading
    for option in ("--format", "--select", "--timeout", "--verbose", "--no-color"):
        assert option in common
        assert option not in own


@pytest.mark.parametrize(
    ("words", "first", "more"),
    [
        (["address already in use"], "NET001", []),
        (["CUDA", "out", "of", "memory"], "LOG012", ["LOG013"]),
        (["port in use"], "NET001", []),
        (["launch00"], "LAUNCH001", ["LAUNCH002"]),
        (["nccl", "ib", "disabled"], "ENV034", []),
        (["[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB."], "LOG012", []),
    ],
)
def test_explain_searches_names_titles_errors_and_texts(words: list[str], first: str, more: list[str]) -> None:
    found = [each.code for each in search(" ".join(words))]
    assert found[0] == first
    assert {*more} <= {*found}
    assert doctor("explain", *words).stdout.startswith(first)


def test_a_search_lists_the_best_matches_first_and_says_how_to_go_on() -> None:
    lines = doctor("explain", "nccl").stdout.splitlines()
    assert "nccl" in lines[0]
    assert re.fullmatch(r"\d+ more; add a word\. ddpdoctor explain [A-Z]+\d+ shows the first one\.", lines[-1])
    assert [each["code"] for each in json.loads(doctor("explain", "nccl", "--format", "json").stdout)] == [
        each.code for each in search("nccl")
    ]


def test_what_nothing_speaks_of_is_wrong_use() -> None:
    done = doctor("explain", "qwertyuiop")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown rule 'qwertyuiop'; `ddpdoctor rules` lists all\n"
