"""The process that imports torch once and forks one worker per rank, before any CUDA call, for the local probe."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from typing import Any

from ddpdoctor.probe.worker import Channel, load_torch, report_error, run
from ddpdoctor.system.lifetime import die_with

__all__ = ["main"]


def main() -> None:
    """`python -m ddpdoctor.probe.fork_template PARENT MESSAGES,CONTROL,OUTPUT …`: one group of descriptors per rank."""
    die_with(int(sys.argv[1]))
    ranks = [tuple(int(fd) for fd in word.split(",")) for word in sys.argv[2:]]
    channels = [Channel(messages, control) for messages, control, _ in ranks]
    faulthandler.register(signal.SIGUSR1, file=channels[0].messages, all_threads=False)
    for channel in channels:
        channel.say(pid=os.getpid(), phase="import")
    started = time.monotonic()

    def beat() -> None:
        for channel in channels:
            channel.say()

    try:
        torch = load_torch(beat)
    except BaseException as error:  # reported for every rank: all of them would fail the same way
        for channel in channels:
            report_error(channel, error, "import_failed")
        os._exit(1)
    seconds = time.monotonic() - started
    pids = {_fork(torch, ranks, index, seconds): channel for index, channel in enumerate(channels)}
    for pid, channel in pids.items():
        channel.say(pid=pid)  # the pid is known even if the worker dies before it reports it
    while pids:
        pid, status = os.wait()
        channel = pids.pop(pid)
        channel.say(exit=os.waitstatus_to_exitcode(status))
    channels[0].hear()


def _fork(torch: Any, ranks: list[tuple[int, ...]], index: int, seconds: float) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    die_with(parent)
    for other, fds in enumerate(ranks):
        if other != index:
            for fd in fds:
                os.close(fd)
    messages, control, output = ranks[index]
    os.dup2(output, 1)
    os.dup2(output, 2)
    run(Channel(messages, control), lambda: torch, seconds)
    os._exit(0)


if __name__ == "__main__":
    main()
