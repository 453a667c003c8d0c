"""The kernel's log: what the NVIDIA driver wrote of GPUs and NVSwitches since the machine started, and the last warnings."""

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
"""Of so many lines the newest are kept."""
WARNING = 4
"""The kernel's level of a warning; smaller numbers are worse."""
MOST_CHARACTERS = 500


def read_xids(machine: Machine) -> tuple[tuple[Xid, ...] | None, tuple[Gap, ...]]:
    """The Xids and SXids of this boot, oldest first, None with a gap where the log cannot be read."""
    try:
        records = _records(machine, "Xid")
    except OSError as error:
        from ddpdoctor.collectors.kernel_log_files import read_elsewhere  # for those who are not root

        found = read_elsewhere(machine)
        if found is not None:
            return found[-MOST:], ()
        if isinstance(error, PermissionError):
            return None, (Gap("gpu.xids", "the kernel's log: needs root", Why.NEEDS_ROOT),)
        return None, (Gap("gpu.xids", f"{LOG}: {error.strerror}", Why.NOT_HERE),)
    uptime = (machine.root.line("/proc/uptime") or "").partition(" ")[0]
    try:
        now = float(uptime)
    except ValueError:
        return None, (Gap("gpu.xids", "/proc/uptime cannot be read"),)
    known = [xid for xid in (_xid(record, now) for record in records) if xid is not None]
    return tuple(known[-MOST:]), ()


def read_warnings(machine: Machine) -> tuple[str, ...]:
    """The last messages of level `warning` and worse, and the driver's, as `[seconds] text`.

    Raises:
        OSError: the log cannot be read; PermissionError without the right to.
    """
    found = []
    for record in _records(machine, ""):
        prefix, _, message = record.partition(";")
        words = prefix.split(",")
        if (
            len(words) > 2
            and words[0].isdigit()
            and words[2].isdigit()
            and (int(words[0]) & 7 <= WARNING or "NVRM" in message)
        ):
            found.append(f"[{int(words[2]) / 1e6:.6f}] {message.partition(chr(10))[0][:MOST_CHARACTERS]}")
    return tuple(found[-MOST:])


def _records(machine: Machine, word: str) -> list[str]:
    """Each read of /dev/kmsg gives one record, without waiting; in a captured tree it is a file of such lines."""
    if not machine.root.is_real:
        return machine.root.text(LOG).splitlines()
    end = time.monotonic() + min(READ_SECONDS, machine.deadline.left)
    found = []
    file = os.open(LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        while time.monotonic() < end:
            try:
                piece = os.read(file, RECORD_BYTES)
            except BlockingIOError:
                break  # that was the last one
            except BrokenPipeError:
                continue  # records were overwritten while we read: the next read goes on behind them
            if not piece:
                break  # in some containers it is a link to /dev/null
            found.append(piece.decode("utf-8", "replace"))
    finally:
        os.close(file)
    return [record for record in found if word in record]


def _xid(record: str, now: float) -> Xid | None:
    """`6,1234,98765432,-;NVRM: Xid (PCI:0000:4e:00): 94, pid=…`: the third number is microseconds since the start."""
    prefix, _, message = record.partition(";")
    found = xid_in(message)
    stamp = prefix.split(",")
    if found is None or len(stamp) < 3 or not stamp[2].isdigit():
        return None
    return replace(found, age_seconds=round(max(0.0, now - int(stamp[2]) / 1e6), 1))
