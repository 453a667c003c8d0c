"""Settings: `[tool.ddpdoctor]` in pyproject.toml, the site-wide file, and the command line, which comes first."""

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
    (tmp_path / "pyproject.toml").write_text(f"# ddpdoctor\n{text}")
    assert "ENV001" in _judged(tmp_path)


def _site(folder: Path, text: str) -> dict[str, str]:
    (folder / "site.toml").write_text(text)
    return {"DDPDOCTOR_SITE_CONFIG": str(folder / "site.toml")}


def test_the_command_line_is_above_the_project_and_the_project_above_the_site(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    env = _site(tmp_path, 'format = "json"\nselect = ["ENV001"]\n')
    report = json.loads(doctor("env", cwd=tmp_path, env=env).stdout)
    assert report["passed"] == ["ENV001"]
    (project / "pyproject.toml").write_text('[tool.ddpdoctor]\nselect = ["ENV003"]\n')
    assert json.loads(doctor("env", cwd=project, env=env).stdout)["passed"] == ["ENV003"]
    assert json.loads(doctor("env", "--select", "ENV001", cwd=project, env=env).stdout)["passed"] == ["ENV001"]
    assert doctor("env", "--format", "table", cwd=project, env=env).stdout[:1] != "{"


def test_what_project_and_site_ignore_counts_together(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.ddpdoctor]\nignore = ["ENV001"]\n')
    env = _site(tmp_path, 'format = "json"\nignore = ["ENV003"]\n')
    report = json.loads(doctor("env", "--ignore", "ENV004", cwd=tmp_path, env=env).stdout)
    judged = {*report["passed"], *(each["code"] for each in report["skipped"])}
    assert judged
    assert not {"ENV001", "ENV003", "ENV004"} & judged


SICK = {"RANK": "9", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("line", "words", "code"),
    [
        ('fail-on = "never"', ["env"], 0),
        ("timeout = 0.000001", ["env"], 3),
        ("quiet = true", ["env"], 1),
        ("verbose = true\nno-color = true", ["env"], 1),
        ("no-probe = true\nno-meet = true\njoin-timeout = 2.5", ["check"], 1),
        ('torch = "2.4"', ["lint", "--", "torchrun", "--nproc_per_node", "0", "x.py"], 1),
    ],
)
def test_every_option_that_makes_sense_can_be_set(tmp_path: Path, line: str, words: list[str], code: int) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.ddpdoctor]\n{line}\n")
    done = doctor(*words, cwd=tmp_path, env=SICK)
    assert done.returncode == code, done.stderr
    assert "error:" not in done.stderr


def test_quiet_and_no_probe_of_the_file_are_obeyed(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.ddpdoctor]\nquiet = true\nno-probe = true\n")
    done = doctor("check", "--format", "json", cwd=tmp_path)
    assert done.stderr == ""
    assert not [code for code in json.loads(done.stdout)["passed"] if code.startswith("PROBE")]


def test_a_format_for_reports_leaves_the_manual_alone(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.ddpdoctor]\nformat = "sarif"\n')
    assert doctor("explain", "ENV001", cwd=tmp_path).stdout.startswith("ENV001")


def test_the_site_file_names_file_key_and_what_is_allowed(tmp_path: Path) -> None:
    done = doctor("env", env=_site(tmp_path, 'fail-on = "warnings"\n'))
    assert done.returncode == 2
    assert f"{tmp_path}/site.toml: fail-on = 'warnings': did you mean warning? expected error, warning" in done.stderr
    done = doctor("env", env=_site(tmp_path, "colour = true\n"))
    assert (done.returncode, "colour: unknown setting" in done.stderr) == (2, True)


def test_help_is_given_whatever_the_settings_are(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.ddpdoctor]\nselct = []\n")
    assert doctor("env", "--help", cwd=tmp_path).returncode == 0
    assert doctor("--version", cwd=tmp_path).returncode == 0
