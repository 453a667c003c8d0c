"""Shell completion: what the program answers, the scripts of the shells, and bash with its script."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import SECONDS, doctor, environment

from ddpdoctor.cli.app import COMMANDS
from ddpdoctor.cli.completion import candidates
from ddpdoctor.cli.completion_scripts import SCRIPTS


@pytest.mark.parametrize(
    ("words", "some"),
    [
        ([""], {*COMMANDS, "help"}),
        (["ch"], {"check"}),
        (["help", "tr"], {"triage"}),
        (["check", "--no-"], {"--no-probe", "--no-meet", "--no-color"}),
        (["check", "--format", "ju"], {"junit"}),
        (["check", "--format=ju"], {"--format=junit"}),
        (["check", "--format", "=", "ju"], {"junit"}),
        (["check", "--fail-on", ""], {"error", "warning", "never"}),
        (["env", "--select", "ENV,NET00"], {"ENV,NET001"}),
        (["explain", "LAU"], {"LAUNCH"}),
        (["explain", "LAUNCH00"], {"LAUNCH001", "LAUNCH009"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_words_are_completed(words: list[str], some: set[str]) -> None:
    found = candidates(words)
    assert some <= {*found}
    assert all(each.startswith(words[-1]) for each in found)


@pytest.mark.parametrize("words", [["check", "--", "torch"], ["triage", "slu"], ["check", "--output", "r"], ["x", "-"]])
def test_files_are_left_to_the_shell(words: list[str]) -> None:
    assert candidates(words) == []


def test_the_program_answers_one_candidate_per_line() -> None:
    done = doctor("check", "--no-p", env={"_DDPDOCTOR_COMPLETE": "1"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "--no-probe\n", "")


@pytest.mark.parametrize("shell", SCRIPTS)
def test_scripts_are_shown_and_installed_once(shell: str, tmp_path: Path) -> None:
    assert doctor("--show-completion", shell).stdout == SCRIPTS[shell] + "\n"
    env = {"HOME": str(tmp_path), "SHELL": f"/bin/{shell}"}
    first, second = doctor("--install-completion", env=env), doctor("--install-completion", env=env)
    assert (first.returncode, second.returncode) == (0, 0)
    (written,) = [path for path in tmp_path.rglob("*ddpdoctor*") if path.is_file()]
    assert str(written) in first.stdout
    assert written.read_text() == SCRIPTS[shell] + "\n"
    loading = tmp_path / f".{shell}rc"
    if shell != "fish":
        assert len(loading.read_text().splitlines()) == 1


@pytest.mark.parametrize("shell", [shell for shell in SCRIPTS if shutil.which(shell) is not None])
def test_scripts_have_the_shells_syntax(shell: str, tmp_path: Path) -> None:
    file = tmp_path / "script"
    file.write_text(SCRIPTS[shell])
    done = subprocess.run([shell, "-n", str(file)], capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes(tmp_path: Path) -> None:
    (tmp_path / "ddpdoctor").write_text(f'#!/bin/sh\nexec {sys.executable} -m ddpdoctor "$@"\n')
    (tmp_path / "ddpdoctor").chmod(0o755)
    line = (
        'eval "$(ddpdoctor --show-completion bash)"; COMP_WORDS=(ddpdoctor explain NET00); COMP_CWORD=2; '
        '_ddpdoctor; echo "${#COMPREPLY[@]} ${COMPREPLY[0]}"; '
        "COMP_WORDS=(ddpdoctor check -- to); COMP_CWORD=3; _ddpdoctor; echo ${#COMPREPLY[@]}"
    )
    env = environment()
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=SECONDS, env=env)
    assert done.stdout == "9 NET001\n0\n", done.stderr
