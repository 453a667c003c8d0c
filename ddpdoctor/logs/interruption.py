"""Whether somebody interrupted the job with SIGINT, as Ctrl-C does, and nothing had failed before."""

from __future__ import annotations

import re

from ddpdoctor.facts.log import Log, Traceback
from ddpdoctor.logs.exception_kinds import is_consequence

__all__ = ["INTERRUPT", "SIGNALLED", "was_interrupted"]

INTERRUPT = "KeyboardInterrupt"
SIGNALLED = (
    r"Received (2|Signals\.SIGINT|SIGINT) death signal",
    r"closing signal SIGINT",
    r"got signal: 2\b",
)
_SIGNALLED = re.compile("|".join(SIGNALLED))
_OF_PEERS = re.compile(
    r"Connection closed by|Connection reset by peer|Broken pipe|remote process exit|peer closed|closed the connection"
    r"|communicator was aborted|[Ff]ailed to recv|recvValue|sendBytes failed|store is gone|Socket Timeout|DataLoader worker"
    r"|terminated with signal SIGINT|got signal: 2\b|EOFError|Cannot send after transport|shut ?down"
)
"""What a process raises because another one was interrupted before it."""
_BY_SIGNAL = (0, -2, -15, 1, 130)
"""Exit codes of workers that were interrupted: a script that catches KeyboardInterrupt may end with 1."""


def was_interrupted(log: Log) -> bool:
    """Whether SIGINT reached a process, and all other exceptions and exits can follow from that."""
    is_told = any(_SIGNALLED.search(line.text) for line in log.lines)
    raised = [each for each in log.tracebacks if each.exception == INTERRUPT]
    if not is_told and not raised:
        return False
    if any(each.code not in _BY_SIGNAL for each in log.exits):
        return False
    return all(_follows(each) for each in log.tracebacks)


def _follows(each: Traceback) -> bool:
    return is_consequence(each) or _OF_PEERS.search(each.message) is not None
