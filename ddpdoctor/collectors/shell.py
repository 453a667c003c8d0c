"""Launch lines of shell scripts: found with a real shell grammar, nothing is run.

What a variable holds at a line is known only where every way through the script that leads there sets it to the same
literal value; all else is unknown. Lines in heredocs that a shell will run are read as scripts of their own.
"""

from __future__ import annotations

import os
import re
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ddpdoctor.collectors.launch import line_of, settle
from ddpdoctor.collectors.process import LateError, run
from ddpdoctor.collectors.sbatch import batch_layer
from ddpdoctor.facts.launch import UNKNOWN, Launcher, Layer, Line, Mark, Word, peel, split
from ddpdoctor.facts.launch.shell import SEPARATOR
from ddpdoctor.facts.torchrun_options import Version

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["Source", "lines_of_shell", "shell_error"]

DEEPEST = 60
"""Nested blocks that are looked into: no person writes more."""
LONGEST = 20_000
"""Characters of one launch line."""
CHECK_SECONDS = 3.0

_SHELLS = ("bash", "sh", "dash", "ksh")
_BRANCHES = ("if_statement", "while_statement", "for_statement", "c_style_for_statement", "case_statement")
_HARMLESS = re.compile(
    r"(^|/)(activate|\.?bashrc|\.?bash_profile|\.?profile|conda\.sh|modules?\.sh|init/\w+|setvars\.sh)$"
)
_STARTS = (
    Launcher.TORCHRUN,
    Launcher.LEGACY,
    Launcher.ACCELERATE,
    Launcher.DEEPSPEED,
    Launcher.SRUN,
    Launcher.MPIRUN,
    Launcher.JSRUN,
    Launcher.PYTHON,
)
_NODE_COUNTS = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_SCRIPT_FILE = re.compile(r"\.(sh|bash|sbatch|slurm|job)$")


@dataclass(frozen=True, slots=True)
class Source:
    """A shell text and where it stands: `file`, `place` of an index in it, and the environment that it starts with.

    `folders` are where a relative script may lie, the first of them the likeliest; none: scripts are not looked for.
    """

    text: str
    file: str
    environ: Mapping[str, str]
    version: Version
    folders: tuple[str, ...] = ()
    place: Callable[[int], Mark] | None = None
    is_piece: bool = False


@dataclass(slots=True)
class _State:
    """What is certain at one point of the script."""

    known: dict[str, str] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    environ: dict[str, str] = field(default_factory=dict)
    places: dict[str, Mark] = field(default_factory=dict)
    folders: tuple[str, ...] | None = None
    all_exported: bool = False
    before: dict[str, str] = field(default_factory=dict)

    def copy(self) -> _State:
        return _State(
            dict(self.known),
            set(self.exported),
            dict(self.environ),
            dict(self.places),
            self.folders,
            self.all_exported,
            dict(self.before),
        )

    def assign(self, name: str, value: str | None, place: Mark) -> None:
        """Set a variable; a value of None is not known at all."""
        if value is None:
            self.known.pop(name, None)
        else:
            self.known[name] = value
        if self.all_exported or name in self.exported or name in self.environ:
            self.environ[name] = UNKNOWN if value is None else value
            self.places[name] = place

    def export(self, name: str, place: Mark) -> None:
        self.exported.add(name)
        if name in self.known:
            self.environ[name] = self.known[name]
            self.places.setdefault(name, place)

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self.known.pop(name, None)
            self.known.pop(f"{name}[@]", None)
            if name in self.environ:
                self.environ[name] = UNKNOWN


def lines_of_shell(source: Source) -> tuple[Line, ...]:
    """The launch lines of a script, in their order."""
    return tuple(_Reader(source).lines())


def shell_error(path: str, text: str) -> str | None:
    """What bash says of a script that it cannot parse; None when it can, or when there is no bash to ask."""
    tree = _parse(text)
    if not tree.has_error:
        return None
    bash = shutil.which("bash")
    if bash is None:
        return None
    try:
        done = run(
            [bash, "--norc", "-n"], CHECK_SECONDS, stdin=text.encode("utf-8", "replace"), environ={"LC_ALL": "C"}
        )
    except (OSError, LateError):
        return None
    if done.code == 0:
        return None
    said = done.err.decode("utf-8", "replace").strip().splitlines()
    match = re.search(r"line (\d+): (.*)", said[0]) if said else None
    return f"{path}:{match[1]}: {match[2]}" if match else f"{path}: not a shell script"


def _parse(text: str) -> Node:
    """The syntax tree. The grammar is loaded only when a shell script is read."""
    import tree_sitter
    import tree_sitter_bash

    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    return parser.parse(text.encode("utf-8", "replace")).root_node


class _Reader:
    """One walk over a script."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = source.text.replace(UNKNOWN, " ").encode("utf-8", "replace").decode("utf-8")
        self.data = self.text.encode("utf-8")
        self.is_ascii = len(self.data) == len(self.text)
        self.rows = [0, *(m.end() for m in re.finditer("\n", self.text))]
        self.batch: Layer | None = None if source.is_piece else batch_layer(self.text, source.version)
        self.found: list[Line] = []
        self.functions: set[str] = set()
        self.bodies: list[Node] = []

    def lines(self) -> Iterator[Line]:
        state = _State(known=self.allocated(), environ=dict(self.source.environ), folders=self.source.folders)
        self.walk(_parse(self.text), state, 0)
        stays = re.search(r"\b(cd|pushd)\b", self.text) is None  # else where a function is called is not known
        folders = self.source.folders if stays else None
        for body in self.bodies:  # grows by the functions inside of functions
            self.walk(body, _State(environ=dict(state.environ), places=state.places, folders=folders), 1)
        yield from sorted(self.found, key=lambda line: (line.first_line, line.first_column))

    def allocated(self) -> dict[str, str]:
        """The variables that Slurm sets to the number of nodes, where `#SBATCH --nodes` names one."""
        options = () if self.batch is None else self.batch.reading.given
        value = next((g.value for g in reversed(options) if g.flag in ("-N", "--nodes")), None)
        return dict.fromkeys(_NODE_COUNTS, value) if value is not None and re.fullmatch(r"[1-9]\d{0,5}", value) else {}

    def at(self, byte: int) -> int:
        """The index in the text of a byte offset."""
        return byte if self.is_ascii else len(self.data[:byte].decode("utf-8", "ignore"))

    def span(self, node: Node) -> tuple[int, int]:
        return self.at(node.start_byte), self.at(node.end_byte)

    def read(self, node: Node) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def mark(self, at: int) -> Mark:
        """Where an index stands in the file."""
        if self.source.place is not None:
            return self.source.place(at)
        row = bisect_right(self.rows, at) - 1
        return Mark(row + 1, at - self.rows[row] + 1)

    def walk(self, node: Node, state: _State, depth: int) -> None:
        """Go through a node in the order in which the shell would; `state` is changed as the shell's would be."""
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
            self.assign(node, state)
        elif kind == "declaration_command":
            self.declare(node, state)
        elif kind == "unset_command":
            state.forget(self.read(c) for c in node.named_children)
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
                self.functions.add(self.read(name))
                self.bodies.append(body)
        elif kind in _BRANCHES:
            self.branches(node, state, depth)

    def both(self, node: Node, state: _State, depth: int) -> None:
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
        changed = set().union(*(self.assigned(c) for c in children[1:]))
        if plain and children[0].type != "command":
            state.known, state.environ, state.places = inner.known, inner.environ, inner.places
        else:
            state.forget(changed)

    def branches(self, node: Node, state: _State, depth: int) -> None:
        """if, for, while, case: each part may run or not, so that what they set is known inside only."""
        changed = self.assigned(node)
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
        if any(c.type == "command_name" and self.read(c) in ("cd", "pushd") for c in _descendants(node)):
            state.folders = None

    def assigned(self, node: Node) -> set[str]:
        """The names of all variables that a piece of the script may set."""
        names = set()
        for each in _descendants(node):
            if each.type in ("variable_assignment", "for_statement", "unset_command", "declaration_command"):
                names |= {self.read(c) for c in each.named_children[:1] if c.type == "variable_name"}
            elif each.type == "command":
                words = [self.read(c) for c in each.named_children]
                if words[:1] in (["read"], ["getopts"], ["mapfile"], ["readarray"]):
                    names |= set(words[1:])
        return names

    def assign(self, node: Node, state: _State) -> None:
        name = node.named_children[0]
        if name.type != "variable_name":
            state.forget([self.read(c) for c in name.named_children[:1]])  # NAME[0]=…
            return
        value = node.child_by_field_name("value")
        if value is not None and value.type == "array":
            self.array(self.read(name), node, value, state)
            return
        state.assign(self.read(name), self.value(node, state), self.mark(self.span(node)[0]))

    def array(self, name: str, node: Node, value: Node, state: _State) -> None:
        """`NAME=(…)` and `NAME+=(…)`, as the words that "${NAME[@]}" gives."""
        before = state.known.get(f"{name}[@]")
        state.forget([name])
        is_more = any(c.type == "+=" for c in node.children)
        if (
            node.has_error
            or any(w.type in ("array", "ERROR") for w in value.named_children)
            or (is_more and before is None)
        ):
            return
        commands = split(self.read(value)[1:-1], state.known)
        words = [w.text + SEPARATOR for command in commands for w in command.words]
        state.known[f"{name}[@]"] = (before or "") * is_more + "".join(words)

    def value(self, node: Node, state: _State) -> str | None:
        """The value of an assignment, with UNKNOWN pieces; None for what cannot be cut into one word."""
        value = node.child_by_field_name("value")
        if value is None:
            return ""
        if any(c.type == "+=" for c in node.children) or node.has_error:
            return None
        text = self.read(node)
        whole = re.fullmatch(r"\w+=\$(?:(\w+)|\{(\w+)\})", text)
        if whole:
            return state.known.get(whole[1] or whole[2])
        words = [w for command in split(text, state.known) for w in command.words]
        pair = words[0].assignment if len(words) == 1 else None
        return pair[1] if pair else None

    def declare(self, node: Node, state: _State) -> None:
        first = node.children[0]
        words = [self.read(c) for c in node.children]
        exports = words[0] == "export" or (
            words[0] in ("declare", "typeset", "local") and any(re.match(r"-\w*x", w) for w in words)
        )
        for child in node.named_children:
            if child is first:
                continue
            if child.type == "variable_assignment":
                self.assign(child, state)
                name = self.read(child.named_children[0])
                if exports and name not in state.known:
                    state.environ[name] = UNKNOWN
            elif child.type == "variable_name":
                name = self.read(child)
            else:
                continue
            if exports:
                state.export(name, self.mark(self.span(child)[0]))

    def redirected(self, node: Node, state: _State, depth: int) -> None:
        body = node.child_by_field_name("body")
        if body is not None:
            self.walk(body, state, depth + 1)
        for child in node.named_children:
            if child.type == "heredoc_redirect":
                self.heredoc(node, child, state)

    def heredoc(self, node: Node, redirect: Node, state: _State) -> None:
        """A heredoc that becomes a script, or that a shell reads: its lines are read like a file's."""
        parts = {child.type: child for child in redirect.named_children}
        body, start = parts.get("heredoc_body"), parts.get("heredoc_start")
        if body is None or start is None or self.source.is_piece:
            return
        command = node.child_by_field_name("body")
        text = self.read(body)
        if command is None or not (self.feeds_shell(command) or self.writes_script(node, redirect, text)):
            return
        first = self.at(body.start_byte)
        is_quoted = self.read(start)[:1] in "'\"\\"
        offsets = list(range(first, first + len(text) + 1))
        if not is_quoted:
            text, offsets = _unescaped(text, first)
        piece = replace(
            self.source,
            text=text,
            environ={},
            folders=(),
            place=lambda at: self.mark(offsets[min(at, len(offsets) - 1)]),
            is_piece=True,
        )
        self.found += lines_of_shell(piece)

    def feeds_shell(self, command: Node) -> bool:
        """`bash <<EOF`, `srun bash <<EOF`, `ssh host bash -s <<EOF`."""
        words = [self.read(c) for c in command.named_children]
        last = [w for w in words if not w.startswith("-")][-1:]
        return bool(last) and last[0].rpartition("/")[2] in _SHELLS

    def writes_script(self, node: Node, redirect: Node, text: str) -> bool:
        """`cat > run.sh <<EOF`, `sbatch <<EOF`."""
        name = self.read(node).split(None, 1)[0]
        targets = [
            self.read(c).lstrip("0123456789<>| ").strip("'\"")
            for c in (*node.named_children, *redirect.named_children)
            if c.type == "file_redirect"
        ]
        is_shell = bool(re.match(r"#!.*\b(ba|da|k)?sh\b", text))
        return (name in ("cat", "tee", "sbatch")) and (
            name == "sbatch" or is_shell or any(_SCRIPT_FILE.search(t) for t in targets)
        )

    def command(self, node: Node, state: _State) -> None:
        """A simple command: what it changes, and whether it starts a job."""
        start, end = self.span(node)
        if node.has_error or end - start > LONGEST:
            return
        words = tuple(w for command in split(self.text[start:end], state.known) for w in command.words)
        texts = [w.text for w in words]
        name = texts[0] if texts else ""
        if name in ("cd", "pushd"):
            state.folders = _moved(state.folders, texts[1:])
        elif name in ("source", ".") and len(texts) > 1 and not _HARMLESS.search(texts[1]):
            state.forget(list(state.known))
        elif name in ("read", "getopts", "mapfile", "readarray", "eval"):
            state.forget(texts[1:] if name != "eval" else list(state.known))
        elif name == "set":
            state.all_exported = ("-a" in texts or "allexport" in texts) or (state.all_exported and "+a" not in texts)
        elif name in ("ulimit", "rm") or "install" in texts[1:4]:
            settle(texts, state.before)
        elif name in self.functions or name in ("command", "type", "which", "echo", "printf"):
            return
        else:
            self.launch(node, start, words, state)

    def launch(self, node: Node, start: int, words: Sequence[Word], state: _State) -> None:
        layers = peel(words, self.source.version)
        if not any(each.launcher in _STARTS for each in layers) or _is_no_job(layers):
            return
        statement = _statement(node)
        first, last = self.span(statement)
        if last - first > LONGEST:
            statement, (first, last) = node, self.span(node)
        shift = start - first
        moved = [replace(w, start=w.start + shift, end=w.end + shift) for w in words]
        after = statement.next_sibling
        mark = self.mark(first)
        folders = state.folders or (None,)
        found = [
            line_of(
                self.text[first:last],
                moved,
                state.environ,
                self.source.version,
                folder,
                is_background=after is not None and after.type == "&",
                file=self.source.file,
                first_line=mark.line,
                first_column=mark.column,
                batch=self.batch,
            )
            for folder in folders
        ]
        line = next((each for each in found if each.script is None or each.script.exists), found[0])
        if line.script is not None and not line.script.exists and _is_elsewhere(line):
            line = replace(line, script=None)
        marks = () if self.source.place is None else tuple(self.marks(first, last))
        named = {name for name, value in state.known.items() if name.removesuffix("[@]") in line.source}
        known = {name: state.known[name] for name in named}
        self.found.append(replace(line, marks=marks, places=dict(state.places), known=known, before=dict(state.before)))

    def marks(self, first: int, last: int) -> Iterator[Mark]:
        """Where each row of a line stands in the file, for text that is a piece of it."""
        rows = (first + m.end() for m in re.finditer(r"\n[ \t]*", self.text[first:last]))
        for at in (first, *rows):
            mark = self.mark(at)
            yield Mark(mark.line, mark.column, at - first)


def _descendants(node: Node) -> Iterator[Node]:
    """The node and all below it, without recursion."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += each.named_children


def _statement(node: Node) -> Node:
    """The whole statement around a command: its redirections, its pipe, the commands joined to it."""
    while node.parent is not None and node.parent.type in ("redirected_statement", "pipeline", "list"):
        node = node.parent
    return node


def _is_no_job(layers: Sequence[Layer]) -> bool:
    """`srun hostname`, `python -c …`, `python -m pip …`: nothing that starts ranks."""
    last = layers[-1]
    if last.launcher is Launcher.PYTHON:
        script = last.reading.script
        return script is None or (last.given("module") is not None and len(layers) == 1)
    return last.launcher is Launcher.OTHER and not any(
        each.launcher in (Launcher.TORCHRUN, Launcher.LEGACY, Launcher.ACCELERATE, Launcher.DEEPSPEED)
        for each in layers
    )


def _is_elsewhere(line: Line) -> bool:
    """The script's folder is not on this machine at all: the file is made for another one."""
    assert line.script is not None
    return os.path.isabs(line.script.path) and not os.path.isdir(os.path.dirname(line.script.path))


def _moved(folders: tuple[str, ...] | None, words: Sequence[str]) -> tuple[str, ...] | None:
    """Where `cd` leads to; None when that is not known, or no folder here."""
    if len(words) != 1 or UNKNOWN in words[0] or words[0].startswith(("-", "~")):
        return None
    found = [os.path.join(folder, words[0]) for folder in folders or ()]
    return tuple(f for f in found if os.path.isdir(f)) or None


def _unescaped(text: str, first: int) -> tuple[str, list[int]]:
    """The text that an unquoted heredoc gives, as far as backslashes go, and where each character stands."""
    chars, offsets, i = [], [], 0
    while i < len(text):
        if text[i] == "\\" and text[i + 1 : i + 2] in ("$", "`", "\\"):
            i += 1
        chars.append(text[i])
        offsets.append(first + i)
        i += 1
    return "".join(chars), [*offsets, first + len(text)]
