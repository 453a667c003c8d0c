"""The texts of files that other tools printed: read whole, unpacked, and bounded in size."""

from __future__ import annotations

import math
import time

from ddpdoctor.collectors.log.inputs import UNREADABLE, TolerantReader, inputs_of, opened, reason_of
from ddpdoctor.tool_output.parts import may_be_tool_output

BUG_REPORT = b"NVIDIA bug report log"
HEAD_BYTES = 4096

__all__ = ["MOST_BYTES", "head_of", "tool_text"]

MOST_BYTES = 64 << 20
"""An nvidia-bug-report.log of a machine with 16 GPUs is below 40 MB."""

HEAD_SECONDS = 5.0


def head_of(path: str, until: float = math.inf) -> bytes:
    """The first bytes of a file, unpacked; b"" if it cannot be read, or does not answer within HEAD_SECONDS or by `until`."""
    deadline = min(until, time.monotonic() + HEAD_SECONDS)
    for each in inputs_of([path]):
        if each.problem is not None:
            return b""
        try:
            with opened(each, None, deadline) as file:
                return TolerantReader(file, deadline).head
        except UNREADABLE:
            return b""
    return b""


def tool_text(
    path: str, most_bytes: int = MOST_BYTES, deadline: float = math.inf, *, in_log: bool = False
) -> tuple[str | None, str | None]:
    """The text of a file if it may be the output of a tool, else None; and why it could not be read, or not to its end.

    `in_log`: the file is the log of a job.
    """
    for each in inputs_of([path]):
        if each.problem is not None:
            return None, each.problem
        try:
            with opened(each, None, deadline) as file:
                reader = TolerantReader(file, deadline)
                if BUG_REPORT in reader.head[:HEAD_BYTES]:
                    most_bytes, in_log = MOST_BYTES, False  # nvidia-smi is near its end
                data = reader.read(most_bytes)
                problem = reader.problem
                if problem is None and len(data) == most_bytes and reader.read(1):
                    problem = f"only the first {most_bytes >> 20} MiB were read"
        except UNREADABLE as error:
            return None, reason_of(error)
        return (data.decode("utf-8-sig", "replace") if may_be_tool_output(data, in_log=in_log) else None), problem
    return None, "no such file"
