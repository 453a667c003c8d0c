"""What to collect next after a failure of which the log does not say why: for this case, by the words that it ends with."""

from __future__ import annotations

import re

from ddpdoctor.facts.log import Log, Traceback
from ddpdoctor.logs.history import history_of

__all__ = ["after_exit", "what_next"]

_ENDS_ITSELF = re.compile(r"\bSystemExit\b")
_OF_NCCL = re.compile(r"\bNCCL (?:INFO|WARN)\b|nccl[A-Z]\w+Error")
_OF_LAUNCHER = re.compile(
    r"exitcode|exit(?:ed with)? (?:exit )?code|non-zero|closing signal|Killing subprocess|ChildFailedError"
)
_OF_SCHEDULER = re.compile(r"slurm|srun:|\bPBS\b|\bLSF\b|kubelet|\bpod\b", re.IGNORECASE)
_OF_SIGNAL = re.compile(r"core dumped|[Ss]ignal|terminate called|Segmentation|\bAborted\b|Killed|Terminated")


def what_next(log: Log, text: str, raised: Traceback | None = None) -> str:
    """What to collect next, for this case."""
    if history_of(log).is_excerpt and not log.exits and raised is None:
        return "This is an excerpt: run ddpdoctor triage on the complete output of every rank (a folder or slurm-*.out)"
    if _ENDS_ITSELF.search(text):
        return "Find the sys.exit() that ended the script at the named place; what that process printed just before says why"
    if _OF_NCCL.search(text):
        return "Run once more with NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.%h.%p.log and triage the files of all nodes"
    if _OF_SIGNAL.search(text):
        return "Run once more with PYTHONFAULTHANDLER=1, and add the node's kernel log: sudo dmesg -T > dmesg.txt"
    if _OF_SCHEDULER.search(text):
        return (
            "Ask the scheduler: sacct -j JOB --format=JobID,State,ExitCode,MaxRSS,NodeList (kubectl describe pod POD)"
        )
    if _OF_LAUNCHER.search(text) or raised is None:
        return "Keep each rank's own output: torchrun --log-dir logs --tee 3 …, then ddpdoctor triage logs"
    return "Read the traceback at the named place; run the same command on one process to see it alone"


def after_exit(code: int) -> str:
    """The same for an exit code that no line explains."""
    if code < 0 or code in (134, 135, 136, 139):
        return (
            "Start the ranks with PYTHONFAULTHANDLER=1, which prints the Python stack of a crash, and look into the kernel's "
            'log of that node: sudo dmesg -T | grep -E "segfault|traps|Xid"'
        )
    if code in (126, 127):
        return f"Exit code {code} is the shell's: the program was not found or is not executable on that node; give its full path"
    return (
        f"Keep that rank's own output (torchrun --log-dir logs --tee 3 …) and look for sys.exit({code}) or os._exit({code}) in "
        "the script"
    )
