"""The kernel log if only root may read /dev/kmsg: from journalctl, or the files of syslog."""

from __future__ import annotations

import os
import shutil
import time

from ddpdoctor.facts.xids import Xid
from ddpdoctor.logs.kernel_log import KernelLog
from ddpdoctor.system.machine import Machine
from ddpdoctor.system.process import LateError, run

__all__ = ["read_log_files"]

FILES = ("/var/log/kern.log", "/var/log/messages", "/var/log/syslog")
TAIL_BYTES = 4 << 20
SECONDS = 1.0
JOURNAL = ("journalctl", "-k", "-b", "--no-pager", "-q", "-o", "short-monotonic")


def read_log_files(machine: Machine) -> tuple[Xid, ...] | None:
    """The Xids and SXids, oldest first, with the number of boots since; None if no such log can be read."""
    text = _journal(machine) or next((t for t in (_tail(machine, path) for path in FILES) if t), None)
    if text is None:
        return None
    log = KernelLog()
    for number, line in enumerate(text.splitlines(), 1):
        log.take(line, number)
    return log.finish(*_now(machine))


def _journal(machine: Machine) -> str | None:
    """The kernel messages of this boot; members of the groups systemd-journal and adm may read them."""
    if not machine.root.is_real or shutil.which(JOURNAL[0]) is None:
        return None
    try:
        done = run(JOURNAL, min(SECONDS, machine.deadline.left))
    except (LateError, OSError):
        return None
    return done.text if done.code == 0 and " kernel: " in done.text else None


def _tail(machine: Machine, path: str) -> str | None:
    try:
        with open(machine.root.at(path), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    return text if " kernel: " in text else None


def _now(machine: Machine) -> tuple[str, ...]:
    """The current time as the beginning of a log line, in each format that such logs use."""
    uptime = (machine.root.line("/proc/uptime") or "").partition(" ")[0]
    return (
        f"[{uptime}] now",
        time.strftime("%Y-%m-%dT%H:%M:%SZ now", time.gmtime()),
        time.strftime("%b %d %H:%M:%S now", time.localtime()).replace(" 0", "  ", 1),
    )
