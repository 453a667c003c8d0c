"""The kind of an input, from its first bytes.

To add a kind of input, add a member of `facts.log.InputKind`, a test to `kind_of`, and a reader to `READERS` of the package.
"""

from __future__ import annotations

import re

from ddpdoctor.facts.log import InputKind

__all__ = ["kind_of"]

_PICKLE = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_KERNEL = re.compile(
    rb"^(?:<\d+>)?\[\s*\d+\.\d{6}\] |^\w{3} [ \d]\d \d\d:\d\d:\d\d \S+ kernel: |^\d,\d+,\d+,[-\w];", re.M
)
_STACKS = re.compile(
    rb"^Process \d+: .*\nPython v|^Thread 0x[0-9a-f]+ \(most recent call first\):|^Current thread 0x", re.MULTILINE
)
_RAS = re.compile(
    rb"\A\s*NCCL version [\d.]+ compiled with CUDA|^Job summary\r?$|^#\d+-\d+ \([0-9a-f]+\) [A-Z]{4,}", re.MULTILINE
)
_TEXT_SHARE = 0.95
"""A file with NUL bytes counts as text if at least this share of its bytes is printable or non-ASCII."""


def kind_of(head: bytes, name: str) -> InputKind:
    """The kind of an input that begins with `head`."""
    if not head:
        return InputKind.EMPTY
    if head.startswith(_PICKLE):
        return InputKind.DUMP
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] in (b"{", b"["):
        found = _json_kind(start)
        if found is not None:
            return found
    if _RAS.search(head, 0, 4096):
        return InputKind.RAS
    if b"\0" in head and _printable(head) < _TEXT_SHARE:
        return InputKind.BINARY
    if len(_KERNEL.findall(head, 0, 4096)) >= 2:
        return InputKind.KERNEL
    if _STACKS.search(head, 0, 4096) and b"Fatal Python error: " not in head[:4096]:
        return InputKind.STACKS
    return InputKind.TEXT


def _json_kind(start: bytes) -> InputKind | None:
    beginning = start[:4096]
    if b'"ddpdoctor.report/' in beginning:
        return InputKind.REPORT
    if b'"ddpdoctor.facts/' in beginning:
        return InputKind.FACTS
    if re.match(rb'\{\s*"message"\s*:', beginning):
        return InputKind.ERROR_FILE
    if b'"communicators"' in start and b'"nccl_version"' in start:
        return InputKind.RAS
    if start[:1] == b"[" and b'"thread_id"' in start and b'"owns_gil"' in start:
        return InputKind.STACKS
    if b'"entries"' in start or b'"pg_config"' in start or b'"pg_status"' in start:
        return InputKind.DUMP
    return None


def _printable(head: bytes) -> float:
    return 1 - len(head.translate(None, bytes([*range(0x20, 0x7F), *range(0x80, 0x100), 9, 10, 13]))) / len(head)
