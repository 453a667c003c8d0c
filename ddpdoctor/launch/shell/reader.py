"""Launch lines of shell scripts, found with a shell grammar; nothing is run.

The value of a variable at a line is known only if every path through the script to that line sets the same literal
value; otherwise it is unknown. Lines in heredocs that a shell will run are read as scripts of their own.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.layer import Layer, starts_ranks
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.facts.launch.words import UNKNOWN, Mark, Word
from ddpdoctor.launch.layers import parse_layers
from ddpdoctor.launch.line import apply_prior_command, line_of
from ddpdoctor.launch.lookup import FileLookup
from ddpdoctor.launch.sbatch import batch_layer
from ddpdoctor.launch.shell.heredocs import script_in
from ddpdoctor.launch.shell.state import ShellState
from ddpdoctor.launch.shell.text import ShellSource, Text, below, parse
from ddpdoctor.launch.shell.variables import assign, assigned, declare
from ddpdoctor.launch.shell.words import words_of_command

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["MOST_LINES", "lines_of_shell"]

DEEPEST = 60
"""The most nested blocks that are read: no person writes more."""
LONGEST = 20_000
"""Characters of one launch line."""

_BRANCHES = ("if_statement", "while_statement", "for_statement", "c_style_for_statement", "case_statement")
_HARMLESS = re.compile(
    r"(^|/)(activate|\.?bashrc|\.?bash_profile|\.?profile|conda\.sh|modules?\.sh|init/\w+|setvars\.sh)$"
)
_STARTS = (
    LauncherKind.TORCHRUN,
    LauncherKind.LEGACY,
    LauncherKind.ACCELERATE,
    LauncherKind.DEEPSPEED,
    LauncherKind.SRUN,
    LauncherKind.MPIRUN,
    LauncherKind.JSRUN,
    LauncherKind.PYTHON,
)
MOST_LINES = 300
"""Launch lines of one file that are read; files of public repositories have up to 40."""
_NODE_COUNTS = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_INDICES = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID")


def lines_of_shell(source: ShellSource) -> tuple[LaunchLine, ...]:
    """The launch lines of a script, in their order."""
    return tuple(_ScriptWalk(source).lines())


class _ScriptWalk:
    """One walk over a script."""

    def __init__(self, source: ShellSource) -> None:
        self.source = source
        self.text = Text(source)
        self.batch: Layer | None = None if source.is_piece else batch_layer(self.text.text, source.version)
        self.found: list[LaunchLine] = []
        self.functions: set[str] = set()
        self.bodies: list[Node] = []

    def lines(self) -> Iterator[LaunchLine]:
        state = ShellState(known=self.allocated(), environ=dict(self.source.environ), folders=self.source.folders)
        self.walk(parse(self.text.text), state, 0)
        stays = re.search(r"\b(cd|pushd)\b", self.text.text) is None  # else the folder of a function call is unknown
        folders = self.source.folders if stays else None
        for body in self.bodies:  # grows by the functions inside of functions
            self.walk(body, ShellState(environ=dict(state.environ), places=state.places, folders=folders), 1)
        yield from sorted(self.found, key=lambda line: (line.first_line, line.first_column))

    def allocated(self) -> dict[str, str]:
        """What Slurm sets in the body of a batch script: it is task 0 of as many nodes as in `#SBATCH --nodes`."""
        if self.batch is None:
            return {}
        known = dict.fromkeys(_INDICES, "0")
        value = next((g.value for g in reversed(self.batch.reading.given) if g.flag in ("-N", "--nodes")), None)
        if value is not None and re.fullmatch(r"[1-9]\d{0,5}", value):
            known.update(dict.fromkeys(_NODE_COUNTS, value))
        return known

    def walk(self, node: Node, state: ShellState, depth: int) -> None:
        """Visit a node in the order in which the shell would; `state` changes like that of the shell."""
        kind = node.type
        if depth > DEEPEST or kind in ("ERROR", "comment"):
            return
        if kind in (
            "program",
            "compound_statement",
            "do_group",
            "pipeline",
            "else_clause",
            "elif_clause",
            "negated_command",
        ):
            for child in node.named_children:
                self.walk(child, state, depth + 1)
        elif kind == "variable_assignment":
            assign(self.text, node, state)
        elif kind == "declaration_command":
            declare(self.text, node, state)
        elif kind == "unset_command":
            state.forget(self.text.read(c) for c in node.named_children)
        elif kind == "command":
            self.command(node, state)
        elif kind == "redirected_statement":
            self.redirected(node, state, depth)
        elif kind == "list":
            self.both(node, state, depth)
        elif kind == "subshell":
            inner = state.copy()
            for child in node.named_children:
                self.walk(child, inner, depth + 1)
        elif kind == "function_definition":
            name = node.child_by_field_name("name")
            body = node.child_by_field_name("body")
            if name is not None and body is not None:
                self.functions.add(self.text.read(name))
                self.bodies.append(body)
        elif kind in _BRANCHES:
            self.branches(node, state, depth)

    def both(self, node: Node, state: ShellState, depth: int) -> None:
        """`a && b`, `a || b`: what the right side sets may not be set afterwards."""
        children = node.named_children
        for child in children[:1]:
            self.walk(child, state, depth + 1)
        inner = state.copy()
        for child in children[1:]:
            self.walk(child, inner, depth + 1)
        joined = any(c.type == "&&" for c in node.children)
        plain = joined and children[0].type in ("declaration_command", "variable_assignment", "list", "command")
        state.folders = inner.folders if plain else state.folders if inner.folders == state.folders else None
        changed = set().union(*(assigned(self.text, c) for c in children[1:]))
        if plain and children[0].type != "command":
            state.known, state.environ, state.places = inner.known, inner.environ, inner.places
        else:
            state.forget(changed)

    def branches(self, node: Node, state: ShellState, depth: int) -> None:
        """if, for, while, case: each part may run or not, so what it sets is known inside it only."""
        changed = assigned(self.text, node)
        is_loop = node.type not in ("if_statement", "case_statement")
        if is_loop:
            state.forget(changed)
        inner = state.copy()
        for child in node.named_children:
            if child.type in ("elif_clause", "else_clause", "case_item"):
                inner = state.copy()
            if child.type == "case_item":
                for each in child.named_children[1:]:
                    self.walk(each, inner, depth + 1)
            else:
                self.walk(child, inner, depth + 1)
        state.forget(changed)
        if any(c.type == "command_name" and self.text.read(c) in ("cd", "pushd") for c in below(node)):
            state.folders = None

    def redirected(self, node: Node, state: ShellState, depth: int) -> None:
        body = node.child_by_field_name("body")
        if body is not None:
            self.walk(body, state, depth + 1)
        for child in node.named_children:
            if child.type == "heredoc_redirect":
                script = script_in(self.text, node, child)
                self.found += () if script is None else lines_of_shell(script)

    def command(self, node: Node, state: ShellState) -> None:
        """A simple command: what it changes, and whether it starts a job."""
        start, end = self.text.span(node)
        if node.has_error or end - start > LONGEST:
            return
        words = words_of_command(self.text.text, self.text.offsets, node, state.known)
        texts = [w.text for w in words]
        name = texts[0] if texts else ""
        if name in ("cd", "pushd"):
            state.folders = _moved(state.folders, texts[1:], self.source.files)
        elif name in ("source", ".") and len(texts) > 1 and not _HARMLESS.search(texts[1]):
            state.forget([*state.known])
        elif name in ("read", "getopts", "mapfile", "readarray"):
            state.forget(texts[1:])
        elif name == "eval":
            self.launch(node, words, state)
            state.forget([*state.known])
        elif name == "set":
            state.all_exported = ("-a" in texts or "allexport" in texts) or (state.all_exported and "+a" not in texts)
        elif name in ("ulimit", "rm") or "install" in texts[1:4]:
            apply_prior_command(texts, state.before)
        elif name in self.functions or name in ("command", "type", "which", "echo", "printf"):
            return
        else:
            self.launch(node, words, state)

    def launch(self, node: Node, words: Sequence[Word], state: ShellState) -> None:
        if len(self.found) >= MOST_LINES:
            return
        layers = parse_layers(words, self.source.version, state.known)
        if not any(each.launcher in _STARTS or each.typos for each in layers) or _is_no_job(layers):
            return
        statement = _statement(node)
        first, last = self.text.span(statement)
        if last - first > LONGEST:
            statement, (first, last) = node, self.text.span(node)
        moved = [replace(w, start=w.start - first, end=w.end - first) for w in words]
        after = statement.next_sibling
        mark = self.text.mark(first)
        folders = state.folders or (None,)
        found = [
            line_of(
                self.text.text[first:last],
                moved,
                state.environ,
                self.source.version,
                folder,
                is_background=after is not None and after.type == "&",
                file=self.source.file,
                first_line=mark.line,
                first_column=mark.column,
                batch=self.batch,
                known=state.known,
                files=self.source.files,
            )
            for folder in folders
        ]
        line = next((each for each in found if each.script is None or each.script.exists), found[0])
        if line.script is not None and not line.script.exists and _is_elsewhere(line, self.source.files):
            line = replace(line, script=None)
        marks = () if self.source.place is None else tuple(self.marks(first, last))
        named = {name for name, value in state.known.items() if name.removesuffix("[@]") in line.source}
        known = {name: state.known[name] for name in named}
        self.found.append(replace(line, marks=marks, places=dict(state.places), known=known, before=dict(state.before)))

    def marks(self, first: int, last: int) -> Iterator[Mark]:
        """Where each row of a line is in the file, for text that is a piece of it."""
        rows = (first + m.end() for m in re.finditer(r"\n[ \t]*", self.text.text[first:last]))
        for at in (first, *rows):
            mark = self.text.mark(at)
            yield Mark(mark.line, mark.column, at - first)


def _statement(node: Node) -> Node:
    """The whole statement around a command: its redirections, its pipe, the commands joined to it."""
    while node.parent is not None and node.parent.type in ("redirected_statement", "pipeline", "list"):
        node = node.parent
    return node


def _is_no_job(layers: Sequence[Layer]) -> bool:
    """`srun hostname`, `python -c …`, `python -m pip …`: nothing that starts ranks."""
    last = layers[-1]
    if last.typos:
        return False
    if last.launcher is LauncherKind.PYTHON:
        script, is_module = last.reading.script, last.given("module") is not None and len(layers) == 1
        return script is None or (is_module and "torchrun" not in script.text)
    return last.launcher is LauncherKind.OTHER and not any(starts_ranks(each.launcher) for each in layers)


def _is_elsewhere(line: LaunchLine, files: FileLookup) -> bool:
    """The script's folder does not exist on this machine: the file was written for another one."""
    assert line.script is not None
    return posixpath.isabs(line.script.path) and not files.is_folder(posixpath.dirname(line.script.path))


def _moved(folders: tuple[str, ...] | None, words: Sequence[str], files: FileLookup) -> tuple[str, ...] | None:
    """The folders after `cd`; None if they are unknown, or do not exist here."""
    if len(words) != 1 or UNKNOWN in words[0] or words[0].startswith(("-", "~")):
        return None
    found = [posixpath.join(folder, words[0]) for folder in folders or ()]
    return tuple(f for f in found if files.is_folder(f)) or None
