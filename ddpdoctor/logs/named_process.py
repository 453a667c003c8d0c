"""The process that a message is about, as its own words name it: rank, local rank, process id, host, GPU."""

from __future__ import annotations

import re
from dataclasses import replace

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.logs.line_prefix import short_host

__all__ = ["ToldProcess", "named_process"]

MOST_TEXT = 4000
"""Characters of a message that are looked at."""

_RANKS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[rank(\d{1,6})\]:",  # torch, also within a line
        r"\bRankID:(\d{1,6})\b",  # torch_npu
        r"\[(\d{1,6})\] is setting up NCCL communicator",
        r"\bcollective calls at and around rank (\d{1,6})\b",  # NCCL's check of arguments
        r"^[\w.-]{1,63}:rank(\d{1,6})[.: ]",  # psm3
        r"\[(?:PG (?:ID )?\S+ (?:PG GUID )?[^\]\n]{0,80}?)?Rank (\d{1,6})\]",  # ProcessGroupNCCL
        r"\b[Rr]ank[ :=](\d{1,6}): (?=[A-Z][A-Za-z]{1,60}(?:[ :]|Error))",
        r"\brank ?(?:: ?)?(\d{1,6}) ?\(local[_ ]rank ?: ?\d{1,4}\)",  # torchrun's summary
        r"\bprocess rank (\d{1,6}) with PID\b",  # Open MPI
        r"\b(?:raised|failed|crashed|died|error|[Ee]xception|killed) (?:on|in|by|at) (?:global )?[Rr]ank[ :=](\d{1,6})\b",
        r"\b[Rr]ank[ :=]?(\d{1,6})\b[^,;\n]{0,40}? (?:failed|crashed|died|raised|has an? error|exited|was killed)\b",
    )
)
"""How programs say which rank a message is about, the most certain first."""
_LOCAL_RANKS = tuple(
    re.compile(pattern)
    for pattern in (
        r"-- Process (\d{1,6}) terminated with ",
        r"--local[-_]rank[= ](\d{1,4})\b",
        r"\blocal_rank: (\d{1,4})\b",
    )
)
_PIDS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\bDataLoader worker \(pid\(?s?\)? (\d{1,8})",
        r"\(PID:(\d{1,8}), Device:",  # torch_npu
        r"\breceived by PID (\d{1,8})\b",  # torchrun
        r"\b[Kk]illed process (\d{1,8})\b",  # the kernel
        r"\(\w+ (?:rank=\d+,? )?pid=(\d{1,8})[),]",  # Ray and vLLM
        r"\bKilling subprocess (\d{1,8})\b",  # DeepSpeed
        r"\bwith PID (\d{1,8})\b",
        r"[( ]pid[:= ] ?(\d{1,8})\b",
    )
)
_GPUS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\bXid \(PCI:([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})",
        r"\bGPU (\d{1,2}) has a total capacity\b",
        r"\bGPU (\d{1,2}); \d",
        r"\bGPU at ([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})",
    )
)
_HOSTS = (
    re.compile(r"\bprocess rank \d+ with PID \S+ on node ([\w.-]+)"),
    re.compile(r"^srun: error: ([\w.-]+): tasks? "),
    re.compile(r"\(\w+ (?:rank=\d+,? )?pid=\d+, ip=([\d.]+)\)"),
    re.compile(r"\(pid=\d+, ip=([\d.]+)"),
    re.compile(r"\b[Nn]ode failure on ([\w.-]+)"),
    re.compile(r"\b[Dd]evice: \d{1,2}, node: ([\w.-]+)$"),  # Megatron
)


@dataclass(frozen=True, slots=True)
class ToldProcess:
    """What a message says of the process that it is about; None is what it does not say. `gpu` is as the message has it."""

    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    gpu: str | None = None
    host: str | None = None

    def or_else(self, other: ToldProcess) -> ToldProcess:
        """With what another message says, where this one says nothing."""
        missing = {
            name: getattr(other, name) for name in ToldProcess.__dataclass_fields__ if getattr(self, name) is None
        }
        return replace(self, **missing)


def named_process(text: str) -> ToldProcess:
    """The process that this message names."""
    text = text[:MOST_TEXT]
    rank, local, pid = _first(_RANKS, text), _first(_LOCAL_RANKS, text), _first(_PIDS, text)
    host = _first(_HOSTS, text)
    return ToldProcess(
        None if rank is None else int(rank),
        None if local is None else int(local),
        None if pid is None else int(pid),
        _first(_GPUS, text),
        None if host is None else short_host(host),
    )


def _first(known: tuple[re.Pattern[str], ...], text: str) -> str | None:
    return next((found[1] for each in known if (found := each.search(text)) is not None), None)
