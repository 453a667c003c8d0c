"""What kind of exception a traceback ends with: one that follows from another process's end, or a parent's over its child's."""

from __future__ import annotations

import re

from ddpdoctor.facts.log import FATAL, Traceback

__all__ = ["is_consequence", "is_of_launcher", "is_pointer", "is_wrapper"]


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
    return each.exception.rpartition(".")[2] in _WRAPPERS or _POINTS.search(each.message) is not None
