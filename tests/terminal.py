"""Runs the command line on a terminal (a pty), and shows what is on its screen at the end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from commandline import SECONDS, environment

SEQUENCE = re.compile(r"\x1b\[(\d*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


@dataclass(frozen=True)
class Session:
    """One command on a terminal: its exit code, all that was written, the rows that are left, and standard output."""

    code: int
    written: str
    screen: list[str]
    out: str = ""


def on_terminal(
    *words: str,
    columns: int = 80,
    env: Mapping[str, str] | None = None,
    cwd: Path | str = "/",
    out: Path | None = None,
) -> Session:
    """Run `ddpdoctor words` on a terminal; `out` takes standard output, which is on the terminal without it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    stdout = theirs if out is None else os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    child = subprocess.Popen(
        [sys.executable, "-m", "ddpdoctor", *words],
        stdin=theirs,
        stdout=stdout,
        stderr=theirs,
        env=environment({"TERM": "xterm", **(env or {})}),
        cwd=cwd,
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:
        pass  # how Linux says that the other side was closed
    finally:
        os.close(ours)
        if out is not None:
            os.close(stdout)
        code = child.wait(SECONDS)
    text = shown.decode("utf-8", "replace")
    return Session(code, text, screen_of(text), out.read_text() if out is not None else "")


def screen_of(text: str) -> list[str]:
    """The rows that a terminal shows after `text`, without the empty ones."""
    rows, at, column = [""], 0, 0
    for number, letter, start, down, words in SEQUENCE.findall(text):
        if start:
            column = 0
        elif down:
            at += 1
            rows += [""] if at == len(rows) else []
        elif letter == "A":
            at = max(0, at - int(number or 1))
        elif letter == "K":
            rows[at] = "" if number == "2" else rows[at][:column]
        elif words:
            rows[at] = rows[at][:column].ljust(column) + words + rows[at][column + len(words) :]
            column += len(words)
    return [row.rstrip() for row in rows if row.strip()]
