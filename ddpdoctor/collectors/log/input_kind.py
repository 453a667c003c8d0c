"""The kind of an input, from its first bytes.

To add a kind of input, add a member of `facts.log.InputKind`, a test to `kind_of`, and a reader to `READERS` of the package.
"""

from __future__ import annotations

import json
import re

from ddpdoctor.facts.log import InputKind
from ddpdoctor.late_pattern import pattern
from ddpdoctor.tool_output.parts import may_be_tool_output, parts_of

__all__ = ["kind_of"]

_PICKLE = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_KERNEL = pattern(rb"^(?:<\d+>)?\[\s*\d+\.\d{6}\] |^\w{3} [ \d]\d \d\d:\d\d:\d\d \S+ kernel: |^\d,\d+,\d+,[-\w];", re.M)
_STACKS = pattern(
    rb"^Process \d+: .*\nPython v|^(?:<pre>)?Thread 0x[0-9a-f]+ \(most recent call first\):|^(?:<pre>)?Current thread 0x"
    rb"|^=== Rank \d+: https?://\S{1,300}/handler/(?:dump_traceback|pyspy_dump|c10d_health_check|torchcomms_health_check)\b",
    re.MULTILINE,
)
_RAS = pattern(
    rb"\A\s*NCCL version [\d.]+ compiled with CUDA|^Job summary\r?$|^#\d+-\d+ \([0-9a-f]+\) [A-Z]{4,}", re.MULTILINE
)
_TOOLS = {
    InputKind.NVIDIA_SMI: re.compile(
        rb"^\| NVIDIA-SMI \d|^=+NVSMI LOG=+|<!DOCTYPE nvidia_smi_log|<nvidia_smi_log>|^GPU \d+: .{3,60} \(UUID: GPU-|^index, ?\w"
        rb"|^\s*(?:\x1b\[4m)?\tGPU0\t",
        re.M,
    ),
    InputKind.IBSTAT: re.compile(rb"^CA '\w+'\s*$|^hca_id:\s|^Infiniband device '", re.M),
    InputKind.DCGMI: re.compile(
        rb"^Successfully ran diagnostic for group|^\| Diagnostic +\| Result|^\+-+\+-+\+\n\| Health Monitor", re.M
    ),
    InputKind.NCCL_TESTS: re.compile(rb"^# nThread \d+ nGpus |^# +out-of-place +in-place", re.M),
}
"""Patterns for the output of tools; a job's log may begin with it."""
_LSPCI = pattern(rb"^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] [A-Z]", re.M)
_IMAGES = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")
_TAR = 257
"""The offset of a tar archive's magic bytes."""
TOOL_BYTES = 4096
_CHECKPOINTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp")
_BY_NAME = {
    ".py": InputKind.SCRIPT,
    ".sh": InputKind.SHELL,
    ".sbatch": InputKind.SHELL,
    ".yaml": InputKind.MANIFEST,
    ".yml": InputKind.MANIFEST,
    ".ipynb": InputKind.NOTEBOOK,
}
_SHELL = pattern(rb"#!\s*/\S*\b(?:bash|sh|zsh)\b|#!\s*/usr/bin/env (?:bash|sh)\b")
_LOG_KEYS = ("message", "msg", "log", "line", "event", "textPayload", "levelname", "level", "time", "timestamp", "ts")
"""A JSON line with one of these keys is a log line."""
_TEXT_SHARE = 0.95
"""A file with NUL bytes counts as text if at least this share of its bytes is printable or non-ASCII."""


def kind_of(head: bytes, name: str) -> InputKind:
    """The kind of an input that begins with `head`."""
    if not head:
        return InputKind.EMPTY
    if head.startswith(_PICKLE):
        return InputKind.DUMP
    if head.startswith(_IMAGES):
        return InputKind.IMAGE
    if head[:4] == b"PK\x03\x04" or head[_TAR : _TAR + 5] == b"ustar":
        is_model = b"data.pkl" in head[:4096] or name.endswith(_CHECKPOINTS)
        return InputKind.CHECKPOINT if is_model else InputKind.ARCHIVE
    if head[8:9] == b"{" and (name.endswith(".safetensors") or b'"data_offsets"' in head[:4096]):
        return InputKind.CHECKPOINT
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] in (b"{", b"["):
        found = _json_kind(start)
        if found is not None:
            return found
        if name.endswith(".ipynb") and b'"cells"' in start:
            return InputKind.NOTEBOOK
        if _is_document(start):
            return InputKind.JSON
    if _RAS.search(head, 0, 4096):
        return InputKind.RAS
    if b"\0" in head and _printable(head) < _TEXT_SHARE:
        return InputKind.BINARY
    if len(_KERNEL.findall(head, 0, 4096)) >= min(2, head.strip().count(b"\n") + 1):
        return InputKind.KERNEL
    if _STACKS.search(head, 0, 4096) and b"Fatal Python error: " not in head[:4096]:
        return InputKind.STACKS
    return _text_kind(head, name)


def _text_kind(head: bytes, name: str) -> InputKind:
    """The kind of a text, from its name, its first line, or the first output of a tool."""
    by_name = _BY_NAME.get(name[name.rfind(".") :].lower() if "." in name else "")
    if by_name is not None:
        return by_name
    if _SHELL.match(head):
        return InputKind.SHELL
    if re.match(rb"#!\s*/\S*python|#!\s*/usr/bin/env python", head):
        return InputKind.SCRIPT
    if re.match(rb"(?:---\s+)?apiVersion: ", head):
        return InputKind.MANIFEST
    if len(_LSPCI.findall(head, 0, 4096)) >= 2:
        return InputKind.LSPCI
    tool = next((kind for kind, words in _TOOLS.items() if words.search(head, 0, 4096)), None)
    return tool or (InputKind.TOOL if _is_tool_output(head) else InputKind.TEXT)


def _is_tool_output(head: bytes) -> bool:
    """Whether a text begins with the output of one of the tools without a kind of their own."""
    beginning = head[:TOOL_BYTES]
    if b"NVIDIA bug report log" in beginning:
        return True
    return may_be_tool_output(beginning) and bool(parts_of(beginning.decode("utf-8", "replace")))


def _is_document(start: bytes) -> bool:
    """Whether it is one JSON value, and not a log with a value per line."""
    first = start.partition(b"\n")[0].strip()
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return first in (b"{", b"[", b"[{") or (start[:1] == b"{" and re.match(rb'\{\s*\n\s*"', start) is not None)
    is_number = (
        isinstance(value, list) and len(value) == 1 and isinstance(value[0], int | float)
    )  # `[1756]` before each line
    return not (isinstance(value, dict) and any(key in value for key in _LOG_KEYS)) and bool(value) and not is_number


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
