"""The error.json that torch writes for a worker whose main is decorated with @record."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

from ddpdoctor.collectors.log.scanner import ScannedPart, Scanner
from ddpdoctor.collectors.log.windows import Readable

__all__ = ["read"]

MOST_BYTES = 16 << 20


def read(file: Readable, scanner: Scanner) -> ScannedPart:
    """The traceback in it, as if the worker had printed it; all of it counts as line 1."""
    data = file.read(MOST_BYTES)
    try:
        text = _text(json.loads(data))
    except (ValueError, RecursionError) as error:
        return ScannedPart(
            size_bytes=len(data), problem=f"looks like torch's error.json, but is not JSON: {error!s:.80}"
        )
    part = scanner.scan(io.BytesIO(text.encode("utf-8", "replace")))
    part.lines = [replace(line, number=1, last=0) for line in part.lines]
    part.tracebacks = [replace(traceback, number=1, begin=1) for traceback in part.tracebacks]
    part.exits, part.head, part.tail, part.marks, part.newlines = [], [], [], [], 1
    return part


def _text(saved: Any) -> str:
    """`{"message": {"message": "…", "extraInfo": {"py_callstack": "…"}}}`, or a plain string as message."""
    message = saved.get("message") if isinstance(saved, dict) else saved
    if not isinstance(message, dict):
        return f"{message}\n"
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return f"{stack or message.get('message')}\n"
