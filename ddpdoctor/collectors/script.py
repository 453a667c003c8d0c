"""Reads training scripts: Python files, notebooks and folders of them, and the project's modules that they import."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from functools import lru_cache

from ddpdoctor.collectors.gitignore import IgnoreRules, rules_above
from ddpdoctor.facts.script import SourceFile, SourceProblem
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.scripts.notebook import Cell, NotebookError, read_notebook, readable
from ddpdoctor.scripts.source_text import decode
from ddpdoctor.scripts.syntax.parsing import concerns
from ddpdoctor.system.regular_file import read_regular

__all__ = ["ScriptText", "Scripts", "find", "is_script", "read", "with_modules"]

MAX_BYTES = {".py": 16 << 20, ".ipynb": 128 << 20}
"""Larger files are data, not source. Notebooks contain the images that their cells drew."""
SUFFIXES = (".py", ".ipynb")
MAX_BESIDE = 60
MAX_DEPTH = 4
SKIPPED = frozenset(
    (
        *(".bzr", ".direnv", ".eggs", ".git", ".hg", ".ipynb_checkpoints", ".mypy_cache", ".nox", ".pytest_cache"),
        *(".ruff_cache", ".svn", ".tox", ".venv", ".vscode", "__pycache__", "__pypackages__", "_build", "build"),
        *("buck-out", "dist", "node_modules", "site-packages", "venv"),
    )
)
"""Folders without source code of the project itself."""

_SHEBANG = re.compile(rb"#![^\n]*\bpython")
_SPEAKS_OF_RANKS = re.compile(r"\brank|world_size|[Ll]ocal_rank|process_group|distributed|\bdist\b")
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<module>\.+[\w.]*|[\w.]+)[ \t]+import[ \t]*(?P<names>\([^)]*\)|[^\n#;]*)"
    r"|import[ \t]+(?P<modules>\w[\w., \t]*))",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class ScriptText:
    """One file as it was read. `raw` is a notebook's JSON, `cells` the positions of its cells in the text.

    `concerns`: it mentions distributed training or a framework for it; other files have nothing to judge.
    """

    source: SourceFile
    concerns: bool
    raw: str | None = None
    cells: tuple[Cell, ...] = ()


@dataclass(slots=True)
class Scripts:
    """The paths to judge, in order; `given` are those that the user named, `failures` those that could not be opened.

    `others` are the other files in the named folders.
    """

    paths: list[str] = field(default_factory=list)
    given: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    others: dict[str, list[str]] = field(default_factory=dict)


def is_script(path: str) -> bool:
    """Whether this module reads a path: Python by its name or its first line, a notebook, or a folder."""
    if path.endswith((".py", ".ipynb")) or os.path.isdir(path):
        return True
    if "." in os.path.basename(path) or not os.path.isfile(path):
        return False
    try:
        return _SHEBANG.match(read_regular(path, 200)) is not None
    except OSError:
        return False  # the reader of other files reports why


def find(paths: Iterable[str], known: Scripts | None = None) -> Scripts:
    """The Python files and notebooks that these paths name; folders are searched, each file counts once.

    Args:
        known: what was found already; its files come first.
    """
    scripts = known or Scripts()
    seen = {os.path.realpath(path) for path in scripts.paths}
    for path in dict.fromkeys(paths):
        inside = os.path.isdir(path)
        others = scripts.others.setdefault(path, []) if inside else []
        for each in _walk(path, scripts.failures) if inside else (path,):
            if inside and not each.endswith(SUFFIXES):
                others.append(each)
                continue
            real = os.path.realpath(each)
            if real not in seen:
                seen.add(real)
                scripts.paths.append(each)
            if not inside:
                scripts.given.add(each)
    return scripts


MOST_DEPTH = 100
"""Folders in folders: no project has more, and each costs as much as all above it."""


def _walk(top: str, failures: list[str]) -> Iterator[str]:
    """The files below a folder, in order. Links to folders are not followed: they can form cycles."""
    waiting: list[tuple[str, str, int, IgnoreRules]] = [(top, os.path.realpath(top), 0, rules_above(top))]
    while waiting:
        folder, base, depth, ignored = waiting.pop()
        if depth > MOST_DEPTH:
            failures.append(f"{folder[:200]}…: not read: nested more than {MOST_DEPTH} deep")
            continue
        ignored = ignored.inside(base)
        try:
            entries = sorted(os.scandir(folder), key=lambda e: e.name)
        except OSError as error:
            failures.append(f"{folder}: not read: {error.strerror}")
            continue
        files: list[str] = []
        folders: list[tuple[str, str, int, IgnoreRules]] = []
        for entry in entries:
            path = os.path.join(folder, entry.name) if folder != "." else entry.name
            real = os.path.join(base, entry.name)
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in SKIPPED and not ignored.matches(real, True):
                    folders.append((path, real, depth + 1, ignored))
            elif not entry.name.endswith(SUFFIXES) or os.path.isfile(path):
                files += [] if ignored.matches(real, False) else [path]
        yield from files
        waiting += reversed(folders)


def read(path: str) -> ScriptText:
    """One file.

    Raises:
        OSError: it cannot be read, or it is not a regular file.
    """
    most = MAX_BYTES[".ipynb" if path.endswith(".ipynb") else ".py"]
    data = read_regular(path, most + 1)
    if len(data) > most:
        is_meant = concerns(data.decode("utf-8", "replace"))
        problem = SourceProblem(f"larger than {most >> 20} MiB", is_unread=True)
        return ScriptText(SourceFile(path, problem=problem), is_meant)
    decoded = decode(data)
    is_meant = concerns(decoded.text) or "ddpdoctor:" in decoded.text
    if path.endswith(".ipynb"):
        try:
            notebook = read_notebook(decoded.text)
        except NotebookError as error:
            return ScriptText(SourceFile(path, problem=SourceProblem(str(error))), is_meant)
        text, broken = readable(notebook) if is_meant else (notebook.text, None)
        return ScriptText(SourceFile(path, text, broken), is_meant, raw=decoded.text, cells=notebook.cells)
    if decoded.trouble is not None:
        return ScriptText(SourceFile(path, problem=SourceProblem(decoded.trouble, decoded.line, 1)), is_meant)
    return ScriptText(SourceFile(path, decoded.text), is_meant)


def with_modules(sources: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
    """The judged scripts, and the modules of the same project that they import and that may deal with ranks."""
    found = {os.path.normpath(source.path): source for source in sources if source.can_be_judged}
    waiting = deque((path, 1) for source in sources for path in _imported(source))
    room = len(found) + MAX_BESIDE * len(sources)
    while waiting and len(found) < room:
        path, depth = waiting.popleft()
        if path in found:
            continue
        module, imports = _module(path)
        if module is not None:
            found[path] = module
            waiting.extend((each, depth + 1) for each in imports if depth < MAX_DEPTH)
    return tuple(found.values())


@lru_cache(maxsize=2048)
def _module(path: str) -> tuple[SourceFile | None, tuple[str, ...]]:
    """A project module that may deal with ranks, and its own imports. Cached, because many scripts import the same modules."""
    try:
        module = read(path).source
    except OSError:
        return None, ()  # an unreadable module is unknown, like an installed package
    if module.problem is not None or not (concerns(module.text) or _SPEAKS_OF_RANKS.search(module.text)):
        return None, ()
    return module, _imported(module)


def _imported(source: SourceFile) -> tuple[str, ...]:
    """Files of the modules that a text imports, if they are in its own project."""
    folder = os.path.dirname(source.path)
    bases = _bases(folder)
    found: list[str] = []
    for match in _IMPORT.finditer(source.text):
        if match["modules"] is not None:
            for word in match["modules"].split(","):
                found += _file(word.split(" as ")[0].strip(), bases)
            continue
        module = match["module"]
        dots = len(module) - len(module.lstrip("."))
        inside = (os.path.normpath(os.path.join(folder, *[".."] * (dots - 1))),) if dots else bases
        found += _file(module[dots:], inside)
        for name in match["names"].strip("()").split(","):
            word = name.split(" as ")[0].strip()
            if word.isidentifier():
                found += _file(f"{module[dots:]}.{word}".lstrip("."), inside)
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=256)
def _bases(folder: str) -> tuple[str, ...]:
    """The folders that absolute imports start from: the script's, the parent of its top package, and the working directory.

    They are relative or absolute like the script's path.
    """
    top = folder
    while os.path.isfile(os.path.join(top, "__init__.py")) and os.path.dirname(top) != top:
        top = os.path.dirname(top)
    here = os.getcwd() if os.path.isabs(folder) else ""
    return tuple(dict.fromkeys((folder, top, here)))


@lru_cache(maxsize=8192)
def _file(module: str, bases: tuple[str, ...]) -> tuple[str, ...]:
    """The file of a dotted name in the first of these folders that has it; () if none has it."""
    if not module or module.partition(".")[0] == "torch":
        return ()
    for base in bases:
        stem = os.path.join(base, *module.split("."))
        for path in (f"{stem}.py", os.path.join(stem, "__init__.py")):
            if os.path.isfile(path):
                return (os.path.normpath(path),)
    return ()
