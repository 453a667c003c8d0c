"""What to collect next if a log does not show why the job failed, chosen by the text at its end."""

from __future__ import annotations

import re

from ddpdoctor.facts.log import Log, Traceback
from ddpdoctor.logs.exception_kinds import is_pointer
from ddpdoctor.logs.history import history_of

__all__ = ["after_exit", "what_next"]

_ENDS_ITSELF = re.compile(r"\bSystemExit\b")
_OF_NCCL = re.compile(r"\bNCCL (?:INFO|WARN)\b|nccl[A-Z]\w{1,40}Error")
_OF_LAUNCHER = re.compile(
    r"exitcode|exit(?:ed with)? (?:exit )?code|non-zero|closing signal|Killing subprocess|ChildFailedError"
)
_OF_SCHEDULER = re.compile(r"slurm|srun:|\bPBS\b|\bLSF\b|kubelet|\bpod\b", re.IGNORECASE)
_OF_SIGNAL = re.compile(r"core dumped|[Ss]ignal|terminate called|Segmentation|\bAborted\b|Killed|Terminated")


def what_next(log: Log, text: str, raised: Traceback | None = None) -> str:
    """What to collect next, for this case."""
    if history_of(log).is_excerpt and not log.exits and raised is None:
        return (
            "Run `ddpdoctor triage` on the complete output of every rank (a folder or slurm-*.out): this is an excerpt"
        )
    if raised is not None and is_pointer(raised):
        return (
            "Read the lines above this one, or triage the complete output: the process that failed printed the reason"
        )
    if _ENDS_ITSELF.search(text):
        return "Find the sys.exit() at the named place, and read what that process printed just before it"
    if _OF_NCCL.search(text):
        return "Run again with NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.%h.%p.log, then `ddpdoctor triage` on the files of all nodes"
    if _OF_SIGNAL.search(text):
        return "Run again with PYTHONFAULTHANDLER=1, and add the node's kernel log: sudo dmesg -T > dmesg.txt"
    if _OF_SCHEDULER.search(text):
        return (
            "Ask the scheduler: sacct -j JOB --format=JobID,State,ExitCode,MaxRSS,NodeList (kubectl describe pod POD)"
        )
    if _OF_LAUNCHER.search(text) or raised is None:
        return "Keep the output of each rank: torchrun --log-dir logs --tee 3 …, then ddpdoctor triage logs"
    return "Read the traceback at the named place, and run the same command with one process to reproduce it"


def after_exit(code: int) -> str:
    """What to do after an exit code that no line explains."""
    if code < 0 or code in (134, 135, 136, 139):
        return (
            "Run again with PYTHONFAULTHANDLER=1, which prints the Python stack of a crash. Read the kernel log of that node: "
            'sudo dmesg -T | grep -E "segfault|traps|Xid"'
        )
    if code in (126, 127):
        return f"Give the full path of the program on that node: exit code {code} means not found or not executable"
    return (
        f"Search the script for sys.exit({code}) or os._exit({code}), and keep the output of each rank (torchrun --log-dir logs "
        "--tee 3 …)"
    )
