"""What stands before a line's own text: ranks, hosts and times that launchers, schedulers and log collectors put there."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from ddpdoctor.facts.log.record import Who

__all__ = ["Prefixed", "cleaned", "split", "who_of_name"]

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f]")

_DATE = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_PREFIXES = re.compile(
    rf"""
      \[rank(?P<rank>\d+)\]:\ ?                                     # torch, once the process group is there
    | \[(?P<role>[A-Za-z_][\w-]*?)(?P<local>\d+)\]:\ ?              # torchrun --tee: role and local rank
    | \[\d+,(?P<mpi>\d+)\](?:<std\w+>)?:\ ?                         # mpirun --tag-output
    | \[(?:pod/)?(?P<pod>[a-z0-9][a-z0-9.-]*)/[\w.-]+\]\s+          # kubectl logs --prefix
    | (?P<task>\d{{1,5}}):\ (?=\S|\ {{2,}}File|\Z)                  # srun --label
    | \((?P<actor>\w+)\ (?:rank=\d+,?\ )?pid=(?P<pid>\d+)(?:,\ ip=(?P<ip>[\d.]+))?\)\ ?  # Ray
    | (?P<compose>[a-z][\w.-]*[-_]\d+)\s+\|\ ?                      # docker compose
    | \[?(?P<time>{_DATE})\]?:?\s*
    | (?P<syslog>[A-Z][a-z]{{2}}\ [ \d]\d\ \d\d:\d\d:\d\d)\ (?P<on>[\w.-]+)\ (?=\w+(?:\[\d+\])?:)
    | std(?:out|err)(?:\ [FP][ ]|:\ )                                # a container runtime's stream, accelerate test
    | (?:ERROR|WARNING|INFO|CRITICAL)\ \d\d-\d\d\ \d\d:\d\d:\d\d\ (?:\[)?[\w./]+:\d+\]\ ?   # vLLM's logger
    | [EWI]\d{4}\ \d\d:\d\d:\d\d\.\d+\ \d+\ torch/[\w/.]+:\d+\]\ (?=Traceback|\ \ |[\w.]+(?:Error|Exception)\b)  # torch's logger
    | \[\s*\d+\.\d{{6}}\][ ]                                        # the kernel's seconds
    """,
    re.VERBOSE,
)
_NCCL = re.compile(r"(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[(?P<gpu>-?\d+)\] ")
_GROUP = re.compile(r"\[(?:PG (?:ID )?\S+ (?:PG GUID )?[^\]\n]*?)?Rank (?P<rank>\d+)\]")
_C10 = re.compile(r"\[[IWEF]\d*(?: (?P<time>\d\d:\d\d:\d\d\.\d+))? \w[\w.]*:\d+\] ?")
_SRUN = re.compile(r"srun: error: (?P<host>[\w-]+)[\w.-]*: task (?P<task>\d{1,5}): ")
# pdsh and docker compose logs put a host's name before each line.
_NODE = re.compile(
    r"(?!(?i:epoch|step|iter|rank|gpu|cuda|layer|fold|batch|device|stage|phase|worker_|loss|line|val|train|test)[\w.]*\d)"
    r"(?P<host>[A-Za-z](?=[\w.-]{0,62}\d)[\w.-]{0,62}): (?=\S|\ {2,}\S)"
)
MOST = 8
"""Prefixes before prefixes: a collector's time, a pod, a task, a role and torch's own."""

_RANK_NAMES = re.compile(r"(?:^|[._/-])(?:global[_-]?)?rank[_-]?(\d{1,5})(?=[._/-]|$)", re.IGNORECASE)
_NODE_NAMES = re.compile(r"(?:^|[._/-])node[_-]?rank[_-]?(\d{1,4})(?=[._/-]|$)", re.IGNORECASE)
_ATTEMPT = re.compile(r"attempt_(?P<attempt>\d+)/(?P<local>\d+)/(?:stdout|stderr|error)\.\w+$")
_HOST_NAMES = re.compile(
    r"(?:^|[._/-])((?:node|host|worker|gpu|compute|cn|dgx|master|pod|ip|n|c|g|gn|nid)[a-z]*-?\d[\w-]*?|"
    r"[a-z][a-z-]*-(?:worker|master|node)-\d+)(?=\.(?:log|txt|out|err|gz|xz|zst)|[._/]|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Prefixed:
    """A line taken apart: who printed it and when; `text` is what the process itself wrote.

    `stream` is what stands before the text alone: lines of one stream belong together, whoever they speak of.
    """

    text: str
    who: Who = field(default_factory=Who)
    time: str | None = None
    stream: Who = field(default_factory=Who)


def cleaned(line: str) -> str:
    """The line without colours, cursor movements and control characters."""
    return _ANSI.sub("", line) if not line.isprintable() else line


def split(line: str) -> Prefixed:
    """A clean line taken apart."""
    found = Prefixed(line)
    for _ in range(MOST):
        match = _PREFIXES.match(found.text)
        if match is None or not match.end():
            break
        found = _with(found, match)
    node = _NODE.match(found.text)
    if node is not None and found.who.host is None and not node["host"].endswith(("Error", ".py")):
        found = replace(found, who=replace(found.who, host=node["host"]), text=found.text[node.end() :])
        inner = split(found.text)
        found = replace(inner, who=_both(inner.who, found.who), time=inner.time or found.time)
        return replace(found, stream=found.who)
    return replace(_with_writer(found), stream=found.who)


def _both(inner: Who, outer: Who) -> Who:
    """What an inner prefix says, and where it says nothing what the outer one does."""
    return Who(
        inner.rank if inner.rank is not None else outer.rank,
        inner.local_rank if inner.local_rank is not None else outer.local_rank,
        inner.node_rank if inner.node_rank is not None else outer.node_rank,
        inner.host or outer.host,
        inner.pid if inner.pid is not None else outer.pid,
        inner.task if inner.task is not None else outer.task,
    )


def _with(found: Prefixed, match: re.Match[str]) -> Prefixed:
    who, time = found.who, found.time
    rank = match["rank"] or match["mpi"]
    if rank is not None:
        who = replace(who, rank=int(rank))
    elif match["local"] is not None:
        who = replace(who, local_rank=int(match["local"]))
    elif match["task"] is not None:
        who = replace(who, task=int(match["task"]))
    elif match["pid"] is not None:
        who = replace(who, pid=int(match["pid"]), host=match["ip"] or who.host)
    elif match["pod"] or match["compose"] or match["on"]:
        who = replace(who, host=match["pod"] or match["compose"] or match["on"])
    time = time or match["time"] or match["syslog"]
    return Prefixed(found.text[match.end() :], who, time)


def _with_writer(found: Prefixed) -> Prefixed:
    """What NCCL and c10d say of themselves at the beginning of their lines, and of whom srun speaks."""
    text, who, time = found.text, found.who, found.time
    srun = _SRUN.match(text)
    if srun is not None:
        return Prefixed(text, replace(who, host=srun["host"], task=int(srun["task"])), time)
    nccl = _NCCL.match(text)
    if nccl is not None:
        local = int(nccl["gpu"])
        who = replace(
            who,
            host=nccl["host"].partition(".")[0],
            pid=int(nccl["pid"]),
            local_rank=local if who.local_rank is None and local >= 0 else who.local_rank,
        )
        return Prefixed(text[nccl.end() :], who, time)
    c10 = _C10.match(text)
    if c10 is not None and time is None:
        time = c10["time"]
    group = _GROUP.search(text, 0, 1000)
    if group is not None and who.rank is None:
        who = replace(who, rank=int(group["rank"]))
    return Prefixed(text, who, time)


def who_of_name(name: str) -> tuple[Who, int | None]:
    """What a file's name says of all its lines, and the attempt in a torchrun --log-dir tree."""
    path = name.replace("\\", "/")
    tree = _ATTEMPT.search(path)
    host = _HOST_NAMES.search(path.rpartition("/")[2]) or _HOST_NAMES.search(path)
    node = _NODE_NAMES.search(path)
    rank = None if tree else _RANK_NAMES.search(_NODE_NAMES.sub("", path))
    who = Who(
        rank=int(rank[1]) if rank else None,
        local_rank=int(tree["local"]) if tree else None,
        node_rank=int(node[1]) if node else None,
        host=host[1] if host else None,
    )
    return who, int(tree["attempt"]) if tree else None
