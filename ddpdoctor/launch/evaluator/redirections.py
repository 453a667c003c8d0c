"""What a simulated shell redirects: files, here-documents, here-strings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.launch.evaluator.shell_process import ShellProcess
from ddpdoctor.launch.evaluator.values import EMPTY, NOT_KNOWN, Value, joined

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["Redirections"]


class Redirections(ShellProcess):
    """The redirections of a shell's statements."""

    def redirected(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        before_stdin, before_output = self.stdin, self.output
        sink: list[Value] = []
        targets, self.targets = self.targets, []
        rest: list[Node] = []
        for redirect in node.children:
            self._redirect(redirect, sink)
            if redirect.type == "heredoc_redirect":
                self.stdin = self._heredoc(redirect)
                rest += [c for c in redirect.named_children if c.type in ("pipeline", "command", "list")]
        written, self.targets = self.targets, targets
        try:
            if body is not None and rest and rest[0].type == "pipeline":
                self._piped(body, rest[0])
            elif body is not None:
                self.execute(body)
        finally:
            self._write_files(written)
            self.stdin, self.output = before_stdin, before_output

    def _redirect(self, node: Node, sink: list[Value]) -> None:
        if node.type == "file_redirect":
            self._redirect_file(node, sink)
        elif node.type == "herestring_redirect":
            word = node.named_children[-1]
            value = self.expander().single(self.text_of(word), self.start_of(word))
            self.stdin = value.with_text(value.text + "\n")

    def _piped(self, body: Node, following: Node) -> None:
        """`cat <<EOF | program`: the grammar puts the rest of the pipe into the heredoc."""
        inner = self.child()
        inner.output = []
        inner.guarded(lambda: inner.execute(body))
        self.started += inner.started
        self.stdin = joined(inner.output)
        for part in following.named_children:
            self.execute(part)

    def _redirect_file(self, node: Node, sink: list[Value]) -> None:
        operator = next((child.type for child in node.children if not child.is_named), ">")
        descriptor = next((self.text_of(c) for c in node.children if c.type == "file_descriptor"), "")
        destination = node.child_by_field_name("destination")
        if operator == "<" and destination is not None:
            path = self._path_of(destination)
            content = self.machine.read_file(path.text, self.folder) if path.is_known else None
            self.stdin = NOT_KNOWN if content is None else Value(content)
        elif (operator in (">", ">>", ">|", "&>", "&>>") and descriptor in ("", "1")) or (
            operator == ">&" and descriptor in ("", "1")
        ):
            self.output = sink
            if destination is not None and operator != ">&":
                path = self._path_of(destination)
                self.targets.append((path, sink, operator.endswith(">>")))

    def _path_of(self, destination: Node) -> Value:
        """The file of a redirection. The grammar cuts `$A/x_$B.sh` into two words: adjacent pieces are one."""
        text, end = self.text_of(destination), destination.end_byte
        following = destination.next_sibling
        while following is not None and following.is_named and following.start_byte == end:
            text, end, following = text + self.text_of(following), following.end_byte, following.next_sibling
        return self.expander().single(text, self.start_of(destination))

    def _write_files(self, targets: Sequence[tuple[Value, list[Value], bool]]) -> None:
        """Keep what a command wrote to files: a script that is written with a heredoc may be run later."""
        for path, sink, adds in targets:
            if (path.is_known or not path.varies) and not path.text.startswith("/dev/"):
                self.machine.write_file(path.text, self.folder, joined(sink), adds=adds)

    def _heredoc(self, node: Node) -> Value:
        start = next((self.text_of(c) for c in node.children if c.type == "heredoc_start"), "")
        body = next((c for c in node.children if c.type == "heredoc_body"), None)
        text = "" if body is None else self.text_of(body)
        if any(child.type == "<<-" for child in node.children):
            text = re.sub(r"^\t+", "", text, flags=re.MULTILINE)
        if body is None:
            return EMPTY
        if any(sign in start for sign in "'\"\\"):
            return Value(text, (self.origin_of(body),))
        value = self.expander().quoted(text, self.start_of(body))
        return replace(value, origins=(self.origin_of(body), *value.origins))
