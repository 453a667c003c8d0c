"""The documents are correct: links work, commands and options exist, and named files exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from ddpdoctor.cli.app import COMMANDS

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/guides").glob("*.md")),
]


@cache
def _help(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ddpdoctor", *words, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        env={"COLUMNS": "200", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
    )
    assert done.returncode == 0, f"no such command: ddpdoctor {' '.join(words)}\n{done.stderr}"
    return done.stdout


def _lines() -> list[tuple[str, str]]:
    """Every command line that begins with ddpdoctor in a code block or in backticks: (page, line)."""
    found = []
    for page in PAGES:
        text = page.read_text()
        blocks = "\n".join(re.findall(r"```(?:bash|console|sh|)\n(.*?)```", text, re.S))
        found += [
            (page.name, m.removeprefix("$ ")) for m in re.findall(r"^(?:\$ )?(?:srun )?(ddpdoctor .*)$", blocks, re.M)
        ]
        found += [(page.name, m) for m in re.findall(r"`(ddpdoctor [a-z][^`\n]*)`", text)]
    return sorted(set(found))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_work(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize(("page", "line"), _lines(), ids=lambda x: str(x)[:60])
def test_commands_and_options_exist(page: str, line: str) -> None:
    own = line.split(" -- ")[0].split("#")[0].split("|")[0]
    words = [w for w in shlex.split(own.replace("…", " ").replace("[", " ").replace("]", " ")) if w]
    if len(words) < 2 or words[1].startswith("-"):
        return
    text = _help(words[1])
    for word in words[2:]:
        if word.startswith("--") and word != "--":
            assert word.split("=")[0] in text, f"{page}: `{line}`: ddpdoctor {words[1]} has no {word}"


def test_the_readme_lists_every_command() -> None:
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^  ([a-z]+)  ", _help(), re.M)
    assert set(commands) == {*COMMANDS, "help"}
    missing = [c for c in COMMANDS if f"`ddpdoctor {c}" not in readme]
    assert not missing, f"README.md does not explain: {missing}"


def test_the_architecture_page_draws_the_packages_that_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    tree = page.partition("ddpdoctor/\n")[2].partition("tests/")[0]
    drawn = {name.rstrip("/") for name in re.findall(r"^  (\S+)", tree, re.M)}
    real = {p.name for p in (ROOT / "ddpdoctor").iterdir() if not p.name.startswith(("__", "."))} - {"py.typed"}
    assert drawn == real


def test_the_architecture_page_names_files_that_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    named = set(re.findall(r"`((?:ddpdoctor/)?[a-z_]+(?:/[a-z_0-9]+)*(?:/|\.py))`", page))
    assert named
    gone = [n for n in sorted(named) if not ((ROOT / "ddpdoctor" / n).exists() or (ROOT / n).exists())]
    assert not gone
