"""docs/architecture.md is true: each path, module, class, function, parameter, option and number that it names is in the code."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

from tests.test_layers import FUNCTION_LINES, ORDER, PURE, STARTS, TOUCHES_THE_MACHINE

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ddpdoctor"
PAGE = (ROOT / "docs/architecture.md").read_text()
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
TREE = PAGE.partition("ddpdoctor/\n")[2].partition("```")[0]
QUOTED = sorted(set(re.findall(r"`([^`]+)`", " ".join(PROSE.split()))))
CLASSES = {
    "Evaluator",
    "RankEvaluator",
    "Process",
    "Job",
    "Unknown",
    "MistakeKind",
    "CausalStage",
    "Record",
    "Facts",
    "Gap",
}
NUMBERS = {
    "no function is longer than 15 lines": FUNCTION_LINES == 15,
    "two nodes with two GPUs each": ("scripts.interpreter.simulated_job", "TWO_NODES", 4),
    "32 MiB at line ends": ("collectors.log.parallel_read", "SPAN_BYTES", 32 << 20),
    "pieces of 1 MiB": ("collectors.log.windows", "CHUNK_BYTES", 1 << 20),
    "within 10 s and 512 MiB": ("system.budget", "MEBIBYTES", 512),
    "Each job file, manifest, notebook and script is read within 10 s": (
        "collectors.launch_files",
        "READ_SECONDS",
        10.0,
    ),
    "notebook and script is read within 10 s": ("app.lint_scripts", "READ_SECONDS", 10.0),
    "hosts every 0.4 s": ("probe.heartbeat", "BEAT_SECONDS", 0.4),
    "sends heartbeats to the next three hosts": ("probe.heartbeat", "NEXT", 3),
    "Only the two processes that import torch for the ranks fork on their own": len(STARTS["os.fork"]) == 2,
}
"""What the page says with a number, and where the code says it."""
OUTSIDE = {"?", "rank % 8", "env://", "source activate", "make docs", "understood: false", "os", "time.monotonic()"}
"""What the page quotes of torch, Python, shells, screens and the Makefile."""


@cache
def _code() -> tuple[frozenset[str], dict[str, set[str]]]:
    """Every identifier and short text of the package, and the members of each class and the names of each module."""
    words: set[str] = set()
    members: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        members.setdefault(path.stem, set()).update(n.name for n in tree.body if hasattr(n, "name"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                words.add(node.id)
            elif isinstance(node, ast.Attribute):
                words.add(node.attr)
            elif isinstance(node, ast.arg):
                words.add(node.arg)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                words.add(node.name)
            elif isinstance(node, ast.ClassDef):
                words.add(node.name)
                members.setdefault(node.name, set()).update(_fields(node))
    return frozenset(words), members


def _fields(node: ast.ClassDef) -> set[str]:
    targets = {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    return targets | {n.name for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}


@pytest.mark.parametrize("quoted", [q for q in QUOTED if "/" not in q and not q.endswith(".py") and q not in OUTSIDE])
def test_what_the_page_quotes_is_in_the_code(quoted: str) -> None:
    words, members = _code()
    name = quoted.removeprefix("@").removesuffix("(…)").removeprefix("NAME.")
    owner, _, member = name.partition(".")
    if quoted == "pyproject.toml":
        assert (ROOT / quoted).exists()
    elif quoted in ("ORDER", "NEVER"):
        assert f"\n{quoted} = " in (ROOT / "tests/test_layers.py").read_text()
    elif member:
        assert member in members[owner]
    else:
        for word in name.removeprefix("ddpdoctor ").replace(" -- ", " ").split():
            assert word in words or (word.isupper() and word in ("LAUNCH", "FILE")), word


def test_types_that_the_page_names_are_classes() -> None:
    _, members = _code()
    named = {q.partition(".")[0] for q in QUOTED if re.fullmatch(r"[A-Z][a-z]+\w*(\.\w+)?", q)}
    assert named <= CLASSES | {"Finding", "Report"}
    assert named <= members.keys()


@pytest.mark.parametrize("sentence", NUMBERS)
def test_numbers_of_the_page_are_those_of_the_code(sentence: str) -> None:
    assert sentence in " ".join(PAGE.split())
    source = NUMBERS[sentence]
    if isinstance(source, bool):
        assert source
    else:
        module, name, expected = source
        value = getattr(importlib.import_module(f"ddpdoctor.{module}"), name)
        assert (len(value) if isinstance(value, tuple) else value) == expected


def test_every_number_of_the_page_has_its_place_in_the_code() -> None:
    text = " ".join(re.sub(r"`[^`]*`", "", PROSE).split())
    text = re.sub(r"\(\d\)| \d\. (?=[A-Z])", " ", text)  # numbers of steps
    known = " ".join(re.sub(r"`[^`]*`", "", sentence) for sentence in NUMBERS)
    numbers = set(re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?= [a-zA-Z])", text))
    assert numbers - set(re.findall(r"\d+(?:\.\d+)?", known)) - {"0"} == set()  # "Unknown never becomes 0"


def test_paths_of_the_page_exist() -> None:
    paths = {q for q in QUOTED if re.fullmatch(r"[\w./-]+", q) and ("/" in q or q.endswith(".py")) and q != "env://"}
    drawn = set(re.findall(r"\b([a-z_]+/)(?=\s|,|;|:|\))", TREE.partition("tests/")[0]))
    assert paths
    gone = {p for p in paths if not ((PACKAGE / p).exists() or (ROOT / p).exists())}
    nested = {p.name for p in PACKAGE.rglob("*") if p.is_dir()}
    assert (gone, {d for d in drawn if d.rstrip("/") not in nested}) == (set(), set())


def test_folders_and_pages_below_the_package_exist() -> None:
    below = PAGE.partition("\ntests/ ")[2].partition("```")[0]
    text = "tests/ " + " ".join(below.split())
    folder = ""
    for word in re.findall(r"[a-z_-]+(?:/|\.(?:md|py))", text):
        folder = word if word in ("tests/", "fixtures/", "benchmarks/", "docs/") else folder
        assert any((base / word).exists() for base in (ROOT, ROOT / folder)), word


def test_areas_are_named_alike_in_facts_collectors_and_rules() -> None:
    from ddpdoctor.rules import AREAS

    rows = re.findall(r"^\| `(\w+)` \| (\w+|\(.*?\)) \|", PAGE, re.MULTILINE)
    assert {word: prefix for word, prefix in rows if prefix.isupper()} == {
        word: prefix for prefix, word in AREAS.items()
    }
    for word, prefix in rows:
        for package in ("facts", "collectors", *(("rules",) if prefix.isupper() else ())):
            assert (PACKAGE / package / word).is_dir() or (PACKAGE / package / f"{word}.py").exists(), (
                f"{package}/{word}"
            )


def test_imports_point_down_the_list_of_packages() -> None:
    drawn = [
        name.rstrip("/").removesuffix(".py") for name in re.findall(r"^  (\S+)", TREE.partition("tests/")[0], re.M)
    ]
    level = {name: number for number, names in enumerate(ORDER) for name in names}
    assert set(drawn) == level.keys() - {"", "__main__"}
    assert {"cli", "app", "render", "engine"} == set(drawn[:4])
    rank = [level[name] for name in drawn]
    below = [f"{drawn[at]} above {drawn[at + 1]}" for at in range(len(rank) - 1) if rank[at] > rank[at + 1]]
    assert below == []


def test_the_packages_that_the_page_calls_pure_are_those_of_the_layering() -> None:
    sentence = PAGE.partition("Rules never look at a machine")[2].partition("import neither")[0]
    named = {name.rstrip("/").removesuffix(".py") for name in re.findall(r"`([\w./]+)`", sentence)}
    assert named == set(PURE)
    assert {"os", "subprocess", "socket"} <= TOUCHES_THE_MACHINE
