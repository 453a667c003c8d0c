"""Heredocs that become scripts, or that a shell reads."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.launch.shell.text import ShellSource, Text

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["script_in"]

_SHELLS = ("bash", "sh", "dash", "ksh")
_SCRIPT_FILE = re.compile(r"\.(sh|bash|sbatch|slurm|job)$")


def script_in(text: Text, node: Node, redirect: Node) -> ShellSource | None:
    """The script in a heredoc; None for any other text, and inside another heredoc."""
    parts = {child.type: child for child in redirect.named_children}
    body, start = parts.get("heredoc_body"), parts.get("heredoc_start")
    if body is None or start is None or text.source.is_piece:
        return None
    command = node.child_by_field_name("body")
    written = text.read(body)
    if command is None or not (_feeds_shell(text, command) or _writes_script(text, node, redirect, written)):
        return None
    first = text.at(body.start_byte)
    is_quoted = text.read(start)[:1] in "'\"\\"
    offsets = list(range(first, first + len(written) + 1))
    if not is_quoted:
        written, offsets = _unescaped(written, first)
    return replace(
        text.source,
        text=written,
        environ={},
        folders=(),
        place=lambda at: text.mark(offsets[min(at, len(offsets) - 1)]),
        is_piece=True,
    )


def _feeds_shell(text: Text, command: Node) -> bool:
    """`bash <<EOF`, `srun bash <<EOF`, `ssh host bash -s <<EOF`."""
    words = [text.read(c) for c in command.named_children]
    last = [w for w in words if not w.startswith("-")][-1:]
    return bool(last) and last[0].rpartition("/")[2] in _SHELLS


def _writes_script(text: Text, node: Node, redirect: Node, written: str) -> bool:
    """`cat > run.sh <<EOF`, `sbatch <<EOF`."""
    name = text.read(node).split(None, 1)[0]
    targets = [
        text.read(c).lstrip("0123456789<>| ").strip("'\"")
        for c in (*node.named_children, *redirect.named_children)
        if c.type == "file_redirect"
    ]
    is_shell = bool(re.match(r"#!.*\b(ba|da|k)?sh\b", written))
    return (name in ("cat", "tee", "sbatch")) and (
        name == "sbatch" or is_shell or any(_SCRIPT_FILE.search(t) for t in targets)
    )


def _unescaped(text: str, first: int) -> tuple[str, list[int]]:
    """The text of an unquoted heredoc without its backslashes, and the place of each character."""
    chars, offsets, i = [], [], 0
    while i < len(text):
        if text[i] == "\\" and text[i + 1 : i + 2] in ("$", "`", "\\"):
            i += 1
        chars.append(text[i])
        offsets.append(first + i)
        i += 1
    return "".join(chars), [*offsets, first + len(text)]
