"""What kind of exception a traceback ends with: one that follows from another process's end, or a parent's over its child's."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.facts.log import FATAL, Traceback

__all__ = ["is_consequence", "is_of_launcher", "is_pointer", "is_wrapper", "translates"]


_CONSEQUENCES = (
    "SignalException",
    "KeyboardInterrupt",
    "SystemExit",
    "BrokenPipeError",
    "ActorDiedError",
    "RayActorError",
    "AlgorithmError",
    "UnexpectedStatusException",
    "ExecuteUserScriptError",
    FATAL,
)

_OF_A_CHILD = re.compile(
    r"process \d+ terminated with (signal|exit code) |Horovod detected that one or more processes exited"
)
"""What mp.spawn raises about a child, by a plain Exception in torch before 1.7, and what horovodrun does."""
_WRAPPERS = ("ProcessRaisedException", "ProcessExitedException", "RayTaskError", "CheckpointException", "Empty")
"""What parents raise about a child, and `queue.Empty`, above which a DataLoader names its worker that is gone."""
_LAUNCHER = re.compile(
    r"/bin/(?:accelerate(?:-launch)?|torchrun|deepspeed)$|/torch/distributed/(?:run|launch)\.py$|/torch/distributed/elastic/(?!multiprocessing/errors/)"
    r"|/accelerate/commands/|/deepspeed/launcher/|/runpy\.py$|^<frozen runpy>$"
)
"""The files of launchers, which start the workers."""
_SPAWN = "torch/multiprocessing/spawn.py"
_POINTS = re.compile(r"^Caught |[Ss]ee (the )?(stack trace for )?root cause")
"""Messages that only point to another exception."""
_POINTS_AWAY = re.compile(r"[Ss]ee (?:the )?(?:stack trace for )?root cause|[Ss]ee (?:the )?(?:error|logs?) above\b")


_OF_ANOTHER_PROCESS = re.compile(
    r"\b(?:[Ss]erver|[Ww]orker|[Ee]ngine|[Aa]ctor|[Ss]ub-?process|[Cc]hild(?: process)?|[Pp]rocess|[Pp]roc)"
    r"(?:es|s)?\b[^\n]{0,60}?"
    r"\b(?:exited|died|terminated|crashed|was killed|(?:has |have )?failed(?= to start| with|$|[.:,])|failed initialization"
    r"|did not (?:start|become ready)|initialization failed)\b"
    r"|\b(?:failed to start|initialization failed)\b[^\n]{0,80}\b(?:[Ss]ee|[Cc]heck)\b"
    r"|\b[Cc]heck (?:the )?(?:server|worker|engine|subprocess|child)(?:'s)? (?:logs?|output)\b"
)
"""What a parent or a client says about the end of a process, whose own error is elsewhere."""
_OTHER_END_CLOSED = re.compile(
    r"^handle is closed$|^Event loop is closed$|^I/O operation on closed file|^cannot schedule new futures after"
    r"|^can't (?:create|start) new thread at interpreter shutdown|^[Qq]ueue\b[^\n]{0,60} is closed$"
    r"|^\[Errno (?:32|104|9)\] (?:Broken pipe|Connection reset by peer|Bad file descriptor)$"
)
"""What threads raise after the process that they serve closed its queues and files."""
_PROBES = (
    "KeyError",
    "IndexError",
    "StopIteration",
    "AttributeError",
    "JSONDecodeError",
    "UnicodeDecodeError",
    "binascii.Error",
    "ValueError",
    "TypeError",
    "LookupError",
)
"""What a first attempt raises that code catches, to say in its own words what is wrong."""
LEAST_WORDS = 4
"""An explanation has at least so many words."""


def translates(each: Traceback, others: Sequence[Traceback]) -> bool:
    """Whether it explains the exceptions of its chain: the code that tried it first caught them and raised this itself."""
    if not each.frames or not each.frames[-1].code.startswith("raise ") or len(each.message.split()) < LEAST_WORDS:
        return False
    handler = (each.frames[-1].file, each.frames[-1].function)
    is_caught = any(handler == (frame.file, frame.function) for other in others for frame in other.frames)
    first = others[0].exception
    return is_caught and (first in _PROBES or first.rpartition(".")[2] in _PROBES)


def is_consequence(each: Traceback) -> bool:
    """Whether this exception only follows from how another process ended, or from a signal."""
    if each.is_summary or each.is_exit_barrier or each.exception.rpartition(".")[2] in _CONSEQUENCES:
        return True
    return _OF_A_CHILD.match(each.message) is not None


def is_of_launcher(each: Traceback) -> bool:
    """Whether a traceback without an exception, or the launcher's own exception, is not of a worker."""
    if each.exception:
        return each.is_summary
    return bool(each.frames) and all(_LAUNCHER.search(frame.file) for frame in each.frames)


def is_pointer(each: Traceback) -> bool:
    """Whether this exception says that the reason stands elsewhere, and nothing else."""
    return _POINTS_AWAY.search(each.message) is not None


def is_wrapper(each: Traceback) -> bool:
    """Whether a parent process raised it about its child, whose own traceback is in the log as well."""
    if any(frame.function == "join" and frame.file.endswith(_SPAWN) for frame in each.frames):
        return True
    if _OF_ANOTHER_PROCESS.search(each.message) or _OTHER_END_CLOSED.search(each.message):
        return True
    return each.exception.rpartition(".")[2] in _WRAPPERS or _POINTS.search(each.message) is not None
