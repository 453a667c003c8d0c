"""Processes are started and waited for in one way: in the background with a session of their own, or in the foreground."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ddpdoctor.system.process import LateError, ended_within, kill, output_within, run, start

SESSION = [sys.executable, "-c", "import os; print(os.getsid(0), os.getpgrp())"]
PATIENCE = 60.0


def _numbers(child: subprocess.Popen[bytes]) -> tuple[int, ...]:
    return tuple(map(int, output_within(child, PATIENCE)[0].split()))


def test_a_process_in_the_background_has_its_own_session() -> None:
    child = start(SESSION, stdout=subprocess.PIPE)
    assert _numbers(child) == (child.pid, child.pid)


def test_a_process_in_the_foreground_gets_the_signals_of_the_terminal() -> None:
    child = start(SESSION, stdout=subprocess.PIPE, is_foreground=True)
    assert _numbers(child) == (os.getsid(0), os.getpgrp())


@pytest.mark.parametrize(("fds", "is_open"), [(None, True), ((), False)], ids=["all", "none"])
def test_descriptors_are_inherited_only_where_that_is_asked_for(fds: tuple[int, ...] | None, is_open: bool) -> None:
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    try:
        code = f"import os; os.write({theirs}, b'x')"
        child = start([sys.executable, "-c", code], stderr=subprocess.DEVNULL, fds=fds)
        assert (ended_within(child, PATIENCE) == 0) is is_open
    finally:
        os.close(ours)
        os.close(theirs)


def test_the_deadline_of_an_end() -> None:
    child = start(["sleep", "600"])
    assert ended_within(child, 0.05) is None
    kill(child)
    assert ended_within(child, PATIENCE) == -signal.SIGKILL


def _printed(child: subprocess.Popen[bytes]) -> bytes:
    """What a child that does not end has printed, once there is something."""
    while True:
        with pytest.raises(LateError, match=r"^sh timed out after 0\.2 s$") as late:
            output_within(child, 0.2)
        if late.value.out:
            return late.value.out


def test_the_deadline_of_an_output_keeps_what_was_printed() -> None:
    child = start(["sh", "-c", "echo one; exec sleep 600"], stdout=subprocess.PIPE)
    try:
        assert _printed(child) == b"one\n"
    finally:
        kill(child)


def test_a_command_that_is_late_is_killed_with_its_children() -> None:
    with pytest.raises(LateError):
        run(["sh", "-c", "sleep 600 & wait"], 0.2)
    assert run(["cat"], PATIENCE, stdin=b"text").text == "text"
