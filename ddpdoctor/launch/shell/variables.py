"""Assignments of a script: which variables a piece of it may set, and to what."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.shell.state import ShellState
from ddpdoctor.launch.shell.text import Text, below
from ddpdoctor.launch.shell.words import SEPARATOR, words_of_command

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["assign", "assigned", "declare"]


def assigned(text: Text, node: Node) -> set[str]:
    """The names of all variables that a piece of the script may set."""
    names = set()
    for each in below(node):
        if each.type in ("variable_assignment", "for_statement", "unset_command", "declaration_command"):
            names |= {text.read(c) for c in each.named_children[:1] if c.type == "variable_name"}
        elif each.type == "command":
            words = [text.read(c) for c in each.named_children]
            if words[:1] in (["read"], ["getopts"], ["mapfile"], ["readarray"]):
                names |= set(words[1:])
    return names


def assign(text: Text, node: Node, state: ShellState) -> None:
    name = node.named_children[0]
    if name.type != "variable_name":
        state.forget([text.read(c) for c in name.named_children[:1]])  # NAME[0]=…
        return
    value = node.child_by_field_name("value")
    if value is not None and value.type == "array":
        _array(text, text.read(name), node, value, state)
        return
    state.assign(text.read(name), _value(text, node, state), text.mark(text.span(node)[0]))


def _array(text: Text, name: str, node: Node, value: Node, state: ShellState) -> None:
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
    words = [w.text + SEPARATOR for w in words_of_command(text.text, text.offsets, value, state.known)]
    state.known[f"{name}[@]"] = (before or "") * is_more + "".join(words)


def _value(text: Text, node: Node, state: ShellState) -> str | None:
    """The value of an assignment, with UNKNOWN pieces; None if it is not one word."""
    value = node.child_by_field_name("value")
    if value is None:
        return ""
    if any(c.type == "+=" for c in node.children) or node.has_error:
        return None
    written = text.read(node)
    whole = re.fullmatch(r"\w+=\$(?:(\w+)|\{(\w+)\})", written)
    if whole:
        return state.known.get(whole[1] or whole[2])
    words = words_of_command(text.text, text.offsets, node, state.known)
    pair = words[0].assignment if len(words) == 1 else None
    return pair[1] if pair else None


def declare(text: Text, node: Node, state: ShellState) -> None:
    first = node.children[0]
    words = [text.read(c) for c in node.children]
    exports = words[0] == "export" or (
        words[0] in ("declare", "typeset", "local") and any(re.match(r"-\w*x", w) for w in words)
    )
    for child in node.named_children:
        if child is first:
            continue
        if child.type == "variable_assignment":
            assign(text, child, state)
            name = text.read(child.named_children[0])
            if exports and name not in state.known:
                state.environ[name] = UNKNOWN
        elif child.type == "variable_name":
            name = text.read(child)
        else:
            continue
        if exports:
            state.export(name, text.mark(text.span(child)[0]))
