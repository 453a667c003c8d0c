"""The kernel log: messages of the NVIDIA driver about GPUs and NVSwitches since boot, and the last warnings."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.xids import Xid, xid_in
from ddpdoctor.system.machine import Machine

__all__ = ["read_warnings", "read_xids"]

LOG = "/dev/kmsg"
RECORD_BYTES = 8192
READ_SECONDS = 1.0
MOST = 200
"""The newest lines that are kept."""
WARNING = 4
"""The kernel's level of a warning; smaller numbers are more severe."""
MOST_CHARACTERS = 500


def read_xids(machine: Machine) -> tuple[tuple[Xid, ...] | None, tuple[Gap, ...]]:
    """The Xids and SXids of this boot, oldest first; None and a gap if the log cannot be read."""
    try:
        records = _records(machine, "Xid")
    except OSError as error:
        from ddpdoctor.collectors.kernel_log_files import read_log_files  # for users other than root

        xids = read_log_files(machine)
        if xids is not None:
            return xids[-MOST:], ()
        if isinstance(error, PermissionError):
            return None, (Gap("gpu.xids", "needs root", Why.NEEDS_ROOT),)
        return None, (Gap("gpu.xids", f"{LOG}: {error.strerror}", Why.NOT_HERE),)
    uptime = (machine.root.line("/proc/uptime") or "").partition(" ")[0]
    try:
        now = float(uptime)
    except ValueError:
        return None, (Gap("gpu.xids", "/proc/uptime is not readable"),)
    known = [xid for xid in (_xid(record, now) for record in records) if xid is not None]
    return tuple(known[-MOST:]), ()


def read_warnings(machine: Machine) -> tuple[str, ...]:
    """The last messages of level `warning` and above, and the driver's, as `[seconds] text`.

    Raises:
        OSError: the log cannot be read; PermissionError if that needs root.
    """
    messages = []
    for record in _records(machine, ""):
        prefix, _, message = record.partition(";")
        words = prefix.split(",")
        if (
            len(words) > 2
            and words[0].isdigit()
            and words[2].isdigit()
            and (int(words[0]) & 7 <= WARNING or "NVRM" in message)
        ):
            messages.append(f"[{int(words[2]) / 1e6:.6f}] {message.partition(chr(10))[0][:MOST_CHARACTERS]}")
    return tuple(messages[-MOST:])


def _records(machine: Machine, word: str) -> list[str]:
    """The records of /dev/kmsg, one per nonblocking read; in a captured tree it is a text file with one record per line."""
    if not machine.root.is_real:
        return machine.root.text(LOG).splitlines()
    end = time.monotonic() + min(READ_SECONDS, machine.deadline.left)
    pieces = []
    file = os.open(LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        while time.monotonic() < end:
            try:
                piece = os.read(file, RECORD_BYTES)
            except BlockingIOError:
                break  # no more records
            except BrokenPipeError:
                continue  # records were overwritten: the next read continues after them
            if not piece:
                break  # in some containers it is a link to /dev/null
            pieces.append(piece.decode("utf-8", "replace"))
    finally:
        os.close(file)
    return [record for record in pieces if word in record]


def _xid(record: str, now: float) -> Xid | None:
    """`6,1234,98765432,-;NVRM: Xid (PCI:0000:4e:00): 94, pid=…`: the third number is microseconds since boot."""
    prefix, _, message = record.partition(";")
    xid = xid_in(message)
    stamp = prefix.split(",")
    if xid is None or len(stamp) < 3 or not stamp[2].isdigit():
        return None
    return replace(xid, age_seconds=round(max(0.0, now - int(stamp[2]) / 1e6), 1))
