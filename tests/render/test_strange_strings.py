"""What another process, a file or a stranger wrote reaches no terminal and no report format as anything but text."""

from __future__ import annotations

import dataclasses
import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from commandline import inside
from conftest import FULL
from machines import machine_json
from reports import CAUSE, REPORT

from ddpdoctor.examined import CheckedSection, ExaminedInput, SectionState
from ddpdoctor.findings import NodeCommand
from ddpdoctor.render import FORMATS, render

POISON = (
    "\x1b[31mred\x1b]0;title\x07",
    "a\rb\x08\x7f\x9b31m",
    "\u202egnp.exe\u2066x\u200f\u061c",
    "\ud800\ufeff\u2028\u2029\U000e0041",
    "x\n::error file=a::owned\n##[error]owned",
    "<script>alert(1)</script><img src=x onerror=y>",
    "[link](http://evil.example) ![i](http://evil.example/x) @somebody #1",
    "`code` | cell |\n# heading\n---",
    "[bold red]markup[/bold red] [/]",
    "]]><x/>&amp;\x00",
)
KEPT = "\n\t\u200c\u200d"
"""What may stand in a text: line ends, tabs and the joiners within words of some scripts."""
FIXED = {
    "code",
    "name",
    "severity",
    "role",
    "certainty",
    "state",
    "verdict",
    "started_at",
    "command",
    "area",
    "title",
    "caused_by",
}
"""Fields with words of the product itself, which a stranger cannot choose."""

FULL_REPORT = dataclasses.replace(
    REPORT,
    findings=(
        dataclasses.replace(
            CAUSE,
            quote="the line",
            said_by="rank 1",
            about="node 1",
            undetermined="unknown: x",
            label="add it",
            job="slurm-1",
            group="a GPU",
            fix_commands=(NodeCommand("node 1", "export A=1"),),
            where=dataclasses.replace(CAUSE.where, peer="node-9"),
        ),
        *REPORT.findings[1:],
    ),
    inputs=(ExaminedInput("a.log", "log", is_understood=False, reason="empty"),),
    sections=(CheckedSection("net", "network", SectionState.OK, "eth0 10.0.0.1", ""),),
    subject="2 files",
    notes=("a note",),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all strings in a report that others may choose."""
    if isinstance(value, str):
        if type(value) is str:
            yield path
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))
    elif dataclasses.is_dataclass(value):
        for each in dataclasses.fields(value):
            if each.name not in FIXED:
                yield from places(getattr(value, each.name), (*path, each.name))


def put(value: Any, path: tuple[Any, ...], text: str) -> Any:
    """The value with a text at a path."""
    if not path:
        return text
    key, rest = path[0], path[1:]
    if isinstance(value, tuple):
        return (*value[:key], put(value[key], rest, text), *value[key + 1 :])
    return dataclasses.replace(value, **{key: put(getattr(value, key), rest, text)})


PLACES = sorted(set(places(FULL_REPORT)), key=str)


def steering(text: str) -> list[str]:
    """The characters that a terminal or a viewer would not show as themselves."""
    harmful = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return sorted({f"U+{ord(c):04X}" for c in text if c not in KEPT and unicodedata.category(c) in harmful})


def outside_of_code(markdown: str) -> str:
    """Markdown without its fences and code spans."""
    text = re.sub(r"^(`{3,})[^\n]*\n.*?^\1$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)


def check(form: str, text: str) -> None:
    """That a text in this format is what it should be, and shows nothing of the poison as anything but text."""
    text.encode("utf-8")
    assert steering(text) == []
    if form in ("json", "sarif"):
        json.loads(text)
    elif form == "junit":
        tree = ElementTree.fromstring(text)
        assert {element.tag for element in tree.iter()} <= {
            "testsuites",
            "testsuite",
            "testcase",
            "failure",
            "error",
            "skipped",
            "system-out",
        }
    elif form == "github":
        assert not re.search(r"^(?!::(?:error|warning|notice) )", text.rstrip("\n"), re.MULTILINE)
    elif form == "markdown":
        plain = outside_of_code(text)
        assert not re.search(r"<(?!/?(?:details|summary|sub)>|!-- -->)", plain)
        assert not re.search(r"(?<!\\)\[[^\]]*(?<!\\)\]\(", plain)
        assert not re.search(r"@(?!<!--)\w", plain)
        assert not re.search(r"^# heading", plain, re.MULTILINE)


@pytest.mark.parametrize("form", FORMATS)
def test_no_string_of_a_report_is_more_than_text_in_any_format(form: str) -> None:
    for number, path in enumerate(PLACES):
        for poison in POISON if FULL else POISON[number % 3 :: 3]:
            check(form, render(put(FULL_REPORT, path, f"before {poison} after"), form))


def test_markup_of_the_screen_is_shown_as_it_is() -> None:
    for path in PLACES:
        for verbose in (False, True):
            text = render(put(FULL_REPORT, path, POISON[8]), "table", verbose=verbose)
            assert steering(text) == []
            assert "markup" not in text or "[bold red]markup[/bold red]" in " ".join(text.split()) or "red]" in text


def poisoned(value: Any, poison: str) -> Any:
    """Facts in which every string and every free key ends with the poison, as another process may write them."""
    if isinstance(value, str):
        return value + poison
    if isinstance(value, list):
        return [poisoned(item, poison) for item in value]
    if isinstance(value, dict):
        return {key: poisoned(item, poison) for key, item in value.items()}
    return value


def as_file(folder: Path, poison: str, host: str) -> Path:
    """Facts of a machine with poison in all texts; what a schema fixes is kept."""
    facts = machine_json("a100x4_sxm_direct")
    saved = {**poisoned(facts, poison), "schema": facts["schema"], "hostname": host + poison}
    path = folder / f"{host}.json"
    path.write_text(json.dumps(saved))
    return path


@pytest.mark.parametrize("poison", POISON if FULL else POISON[:3:2])
def test_facts_from_elsewhere_reach_the_terminal_as_text(poison: str, tmp_path: Path) -> None:
    good, bad = as_file(tmp_path, poison, "good"), as_file(tmp_path, poison + "b", "bad")
    (tmp_path / "keys.json").write_text(json.dumps({"schema": "x" + poison, "a" + poison: 1}))
    commands = [
        *([command, "--facts", str(good)] for command in ("check", "env", "host", "net", "gpus", "topo", "versions")),
        ["compare", str(good), str(bad)],
        *([command, "--facts", str(tmp_path / "keys.json")] for command in ("check", "env")),
        ["triage", str(good)],
    ]
    for command in commands:
        done = inside(*command, cwd=tmp_path)
        assert steering(done.stdout) == [], command
        assert steering(done.stderr) == [], command


@pytest.mark.parametrize("poison", POISON[:4] if FULL else POISON[1:3])
def test_a_name_in_a_launch_line_or_a_log_reaches_the_terminal_as_text(poison: str, tmp_path: Path) -> None:
    text = poison.replace("\0", "").encode("utf-8", "replace").decode()
    (tmp_path / "job.log").write_text(f"[rank1]: RuntimeError: CUDA out of memory {text}\n[rank1]: host {text} died\n")
    commands = [
        ["lint", "--", "torchrun", "--nnodes", "2", f"train{text}.py", "--nproc_per_node", "4"],
        ["lint", "--node", f"torchrun --nnodes 2 'train{text}.py' --nproc_per_node 4"],
        ["triage", str(tmp_path / "job.log")],
        ["explain", f"NET{text}"],
        ["lint", f"nothing{text}.py"],
    ]
    for command in commands:
        done = inside(*command, cwd=tmp_path)
        assert steering(done.stdout) == [], command
        assert steering(done.stderr) == [], command
