"""The prefixes of a line: ranks, hosts and times that launchers, schedulers and log collectors add."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from typing import NamedTuple

from ddpdoctor.facts.log import Who
from ddpdoctor.late_pattern import pattern

__all__ = ["PrefixedLine", "short_host", "split_prefix", "who_of_name", "without_control_codes"]

_ANSI = pattern(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f]")

_COUNTED = (
    r"(?i:epoch|step|iter|rank|gpu(?!0\d|-|\d{3})|cuda|layer|fold|batch|device|stage|phase|worker_|loss|line|val|train|test"
    r"|c10|python|[tdp]p\d)"
)
"""Words with a number after them that are not hosts."""
_HOST = (
    rf"(?!{_COUNTED}(?:\d|[_.][\w.]*\d|(?<![gG][pP][uU])[\w.]*\d)|slurmstepd|E[A-Z]\d{{4}}:)"
    r"(?:[A-Za-z](?=[\w.-]{0,62}\d)[\w.-]{0,62}|\d{1,3}(?:\.\d{1,3}){3}|localhost)"
)
"""A host's name or address, as pdsh puts it before a line."""
_DATE = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_PROGRAM = r"(?!kernel|systemd|slurm|kubelet|earlyoom)[\w.-]+\[\d+\]:\ ?"
"""A program and its process id in a system log; lines of daemons are recognised by their name."""
_PREFIXES = pattern(
    rf"""
      \[rank(?P<rank>\d+)\]:\ ?                                     # torch, once the process group is there
    | (?:[\[(](?:rank|RANK)[ _:=-]?|(?:rank|RANK)[ _:-]?(?=\d+\ *\|))(?P<tag>\d+)(?:[\])]|\ *\|):?\ ?   # frameworks
    | \[(?P<role>[A-Za-z_][\w-]*?)(?P<local>\d+)\]:\ ?              # torchrun --tee: role and local rank
    | \[\d+,(?P<mpi>\d+)\](?:<std\w+>)?:\ ?                         # mpirun --tag-output
    | \[(?P<horovod>\d+)\]<std(?:out|err)>:\ ?                     # horovodrun
    | \[(?:pod/)?(?P<pod>[a-z0-9][a-z0-9.-]*)/[\w.-]+\]\s+          # kubectl logs --prefix
    | \ {{0,4}}(?P<task>\d{{1,5}}):\ (?=\S|\ {{2,}}File|\Z)                  # srun --label
    | \((?P<sky>[\w-]+),\ rank=(?P<of_sky>\d+),\ pid=\d+(?:,\ ip=[\d.]+)?\)\ ?   # SkyPilot, which counts nodes so
    | \((?P<actor>\w+)\ (?:rank=(?P<of_actor>\d+),?\ )?pid=(?P<pid>\d+)(?:,\ ip=(?P<ip>[\d.]+))?\)\ ?  # Ray
    | (?P<compose>[a-z][\w.-]*[-_]\d+)\s+\|\ ?                      # docker compose
    | \[(?!{_COUNTED})(?P<node>[A-Za-z][\w.-]*-?\d[\w.-]*)\]\s(?=\S|\s+File)     # a host in brackets
    | \[(?P<of_sglang>{_DATE})(?:\ DP\d+)?\ TP(?P<tensor>\d+)(?:\ EP\d+)?\]\ ?   # SGLang without pipeline parallelism
    | (?:\ {{0,4}}\|\ )?\[?(?P<time>{_DATE})\]?:?\s*(?:\|\ )?                # a table of CloudWatch has bars around it
    | [0-9a-f]{{8}}\ \|\|\ ?                                            # Determined AI's container
    | (?P<syslog>[A-Z][a-z]{{2}}\ [ \d]\d\ \d\d:\d\d:\d\d)\ (?P<on>[\w.-]+)\ (?:{_PROGRAM}|(?=\w+(?:\[\d+\])?:))
    | (?<=[\dZ]\ )(?P<journal>[\w.-]+)\ {_PROGRAM}           # the same behind a time of another form
    | std(?:out|err)(?:\ [FP][ ]|:\ )                                # a container runtime's stream, accelerate test
    | (?:ERROR|WARNING|INFO|CRITICAL)\ \d\d-\d\d\ \d\d:\d\d:\d\d\ (?:\[)?[\w./]+:\d+\]\ ?   # vLLM's logger
    | [EWI]\d{{4}}\ \d\d:\d\d:\d\d\.\d+\ \d+\ [\w/.-]*?torch/[\w/.]+:\d+\]\     # torch's logger
      (?=Traceback|\ \ |[\w.]+(?:Error|Exception)\b)
    | \[\s*\d+\.\d{{6}}\][ ]                                        # the kernel's seconds
    | \[(?P<hydra>\d+)\]\ (?=[\w.-]+:\d+:\d+\ \[-?\d+\]\ )           # mpiexec -prepend-rank before NCCL's own
    | [A-Z][a-z]{{2}}\ [A-Z][a-z]{{2}}\ [ \d]\d\ \d\d:\d\d:\d\d\ \d{{4}}(?=\[\d[\d,]*\]<std)  # --timestamp-output
    | [\w.-]+/\d+\ (?:\[(?P<torchx>\d+)\]:|(?=\[[A-Za-z_][\w-]*\d\]:))     # torchx: role, replica and local rank
    | \[(?:\d+|[\w.-]*\ ?\d\d:\d\d:\d\d[^]]*)\]\s+(?=\[rank\d+\]:)    # a line's number, a time of another form
    | (?!{_HOST}:\ \[rank)[^][\n]{{1,100}}?(?=\[rank\d+\]:\ )                             # a logger of another form
    """,
    re.VERBOSE,
)
_MACHINE = pattern(r"node|host|worker|gpu|master|machine|rank|dgx")
"""Words in the name of a docker compose service that represents a machine."""
_VLLM = pattern(r"Worker_TP(\d+)(?:_EP\d+)?")
"""A worker of vLLM that shares its model with tensor parallelism alone: then its number is its rank."""
_NCCL = pattern(r"(?P<host>[\w.-]+|<[\w .-]{1,60}>):(?P<pid>\d+):\d+ \[(?P<gpu>-?\d+)\] ")
_ADDRESS = pattern(r"\d{1,3}(?:\.\d{1,3}){3}")
_GROUP = pattern(r"\[(?:PG (?:ID )?\S+ (?:PG GUID )?(?:(?!\[PG )[^\]\n])*?)?Rank (?P<rank>\d+)\]")
_BARRIER = pattern(r"barrier on rank: (?P<rank>\d+)|Unexpected result \S+ on rank (?P<of_result>\d+) at ")
_C10 = pattern(r"\[[IWEF]\d*(?: (?P<time>\d\d:\d\d:\d\d\.\d+))? \w[\w.]*:\d+\] ?")
_SRUN = pattern(r"srun: error: (?P<host>[\w-]+)(?:\.[\w.-]*)?: task (?P<task>\d{1,5}): ")
_LAUNCH = pattern(r"srun: error: (?:Task launch for \S+ failed on node|Node failure on) (?P<host>[\w-]+)")
_CRASHED = pattern(
    r"\[(?P<host>[\w.-]+):(?P<pid>\d+)(?: *:\d+:\d+\] |\] (?=\*\*\* |\[ ?\d+\] |Signal|Failing at|PMIX|ORTE|OPAL|mca_))"
)
"""What UCX and Open MPI put before what they say of a signal."""
_QUOTED = pattern(r"(?:> ?|`+)(?=\S)(?!>)")
"""What a forum's quotation leaves before a line."""
_SLURMD = pattern(
    r"slurmstepd(?:-(?P<host>[\w-]+)(?:\.[\w.-]*)?)?: (?:[^\n]*\*\*\* (?:JOB|STEP) \S+ ON (?P<on>[\w-]+))?"
)
"""The daemon of a node of Slurm, which names its node in either place."""
# pdsh and docker compose logs put a host's name before each line.
_NODE = pattern(rf"(?P<host>{_HOST}): (?=\S|\ {{2,}}\S)")
_WRAPPED = pattern(
    r'\{(?=.{0,2000}"(?:stream|time|timestamp|@timestamp|ts|asctime)":).{0,2000}?'
    r'"(?:log|message|msg|line|event|textPayload)": ?(?P<said>"(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")'
)
"""A line that Docker, a collector of a cluster or a logger keeps as JSON."""
_RANK_KEY = pattern(r'"(?:global_)?rank": ?"?(\d{1,6})\b')
_HOST_KEY = pattern(r'"(?:host|hostname|host_name|node|node_name|pod|pod_name)": ?"([A-Za-z0-9][\w.-]*)"')
MOST = 8
"""Prefixes before prefixes: a collector's time, a pod, a task, a role and torch's own."""

_RANK_NAMES = pattern(r"(?:^|[._/-])(?:global[_-]?)?rank[_-]?(\d{1,5})(?=[._/-]|$)", re.IGNORECASE)
_NODE_NAMES = pattern(r"(?:^|[._/-])node[_-]?rank[_-]?(\d{1,4})(?=[._/-]|$)", re.IGNORECASE)
_ATTEMPT = pattern(r"attempt_(?P<attempt>\d+)/(?P<local>\d+)/(?:stdout|stderr|error)\.\w+$")
_HOST_NAMES = pattern(
    r"(?:^|[._/-])(?!gpu[-_]?\d(?![\d-]))((?:(?:node|host|worker|gpu(?![a-gi-mo-rt-z])|compute|dgx|master|pod)(?!s[-\d])[a-z]*-?|(?:cn|ip|gn|nid)-?)\d[\w-]*?|"
    r"[ncg]-?(?:\d{2}[a-z0-9-]*|\d-\d[a-z0-9-]*)(?!_)|[a-z][a-z-]*-(?:worker|master|node)-\d+)(?=\.(?:log|txt|out|err|gz|xz|zst)|[._/]|$)",
    re.IGNORECASE,
)


class PrefixedLine(NamedTuple):
    """A line taken apart: who printed it and when; `text` is what the process itself wrote.

    `stream` is what the prefix alone says: lines of one stream belong together, whichever process they are about.
    """

    text: str
    who: Who
    time: str | None
    stream: Who


def without_control_codes(line: str) -> str:
    """The line without colours, cursor movements and control characters."""
    return _ANSI.sub("", line) if not line.isprintable() else line


def split_prefix(line: str) -> PrefixedLine:
    """A clean line taken apart."""
    wrapped = _WRAPPED.match(line) if line[:2] == '{"' else None
    if wrapped is not None:
        return _unwrapped(line, wrapped)
    quoted = _QUOTED.match(line) if line[:1] in (">", "`") else None
    at, time = 0 if quoted is None else quoted.end(), None
    rank = local = node_rank = host = pid = task = service = None
    for _ in range(MOST):
        match = _PREFIXES.match(line, at)
        if match is None or match.end() == at:
            break
        at = match.end()
        kind, value = match.lastgroup, match[match.lastindex or 0]
        if kind in ("rank", "tag", "mpi", "horovod", "hydra"):
            rank = int(value)
        elif kind in ("time", "on", "journal"):
            time = time or match["time"] or match["syslog"]
            host = host if kind == "time" else value
        elif kind == "tensor":
            rank, time = int(value), time or match["of_sglang"]
        elif kind in ("local", "torchx"):
            local = int(value)
        elif kind == "task":
            task = int(value)
        elif kind == "pid" or kind == "ip":
            pid, host = int(match["pid"]), match["ip"] or host
            of_vllm = _VLLM.fullmatch(match["actor"])
            told = match["of_actor"] or (of_vllm[1] if of_vllm else None)
            rank = rank if told is None else int(told)
        elif kind == "of_sky":
            host, node_rank = match["sky"], int(value)
        elif kind == "compose" and not _MACHINE.search(value):
            service = value
        elif kind is not None:
            host = value
    node = _NODE.match(line, at) if host is None else None
    if node is not None and not node["host"].endswith(("Error", ".py")):
        outer = _who(rank, local, node_rank, node["host"], pid, task)
        inner = split_prefix(line[node.end() :])
        return PrefixedLine(inner.text, _both(inner.who, outer), inner.time or time, _both(inner.stream, outer))
    taken = _with_writer(line[at:], _who(rank, local, node_rank, host, pid, task), time)
    return taken if service is None else taken._replace(stream=replace(taken.stream, host=service))


def _unwrapped(line: str, wrapped: re.Match[str]) -> PrefixedLine:
    """What a line of JSON holds as its message, with the rank and the host of its other keys."""
    inner = split_prefix(without_control_codes(json.loads(wrapped["said"], strict=False)).rstrip("\n"))
    keys = line[: wrapped.start("said")] + line[wrapped.end("said") :]
    rank, host = _RANK_KEY.search(keys), _HOST_KEY.search(keys)
    outer = _who(int(rank[1]) if rank else None, None, None, short_host(host[1]) if host else None)
    return inner._replace(who=_both(inner.who, outer), stream=_both(inner.stream, outer))


_who = functools.lru_cache(1 << 12)(Who)


def _both(inner: Who, outer: Who) -> Who:
    """What an inner prefix says, and where it says nothing what the outer one does."""
    return _who(
        inner.rank if inner.rank is not None else outer.rank,
        inner.local_rank if inner.local_rank is not None else outer.local_rank,
        inner.node_rank if inner.node_rank is not None else outer.node_rank,
        inner.host or outer.host,
        inner.pid if inner.pid is not None else outer.pid,
        inner.task if inner.task is not None else outer.task,
        inner.device if inner.device is not None else outer.device,
    )


def _with_writer(text: str, who: Who, time: str | None) -> PrefixedLine:
    """The process that NCCL and c10d name at the beginning of their lines, or that srun's line is about."""
    stream = who
    srun = _SRUN.match(text)
    if srun is not None:
        return PrefixedLine(text, replace(who, host=srun["host"], task=int(srun["task"])), time, stream)
    slurmd = _SLURMD.match(text)
    if slurmd is not None:
        named = slurmd["on"] or slurmd["host"]
        return PrefixedLine(text, who if named is None else replace(who, host=named), time, stream)
    nccl = _NCCL.match(text)
    if nccl is not None:
        gpu = int(nccl["gpu"])
        host, device = short_host(nccl["host"]), gpu if gpu >= 0 else None
        who = _who(who.rank, who.local_rank, who.node_rank, host, int(nccl["pid"]), who.task, device)
        return PrefixedLine(text[nccl.end() :], who, time, stream)
    launch = _LAUNCH.match(text)
    if launch is not None:
        return PrefixedLine(text, replace(who, host=launch["host"]), time, stream)
    crashed = _CRASHED.match(text)
    if crashed is not None:
        who = replace(who, host=short_host(crashed["host"]), pid=int(crashed["pid"]))
        return PrefixedLine(text, who, time, stream)
    c10 = _C10.match(text)
    if c10 is not None and time is None:
        time = c10["time"]
    if who.rank is None and "Rank " in text:
        group = _GROUP.search(text, 0, 1000)
        if group is not None:
            who = replace(who, rank=int(group["rank"]))
    elif who.rank is None and (barrier := _BARRIER.search(text)) is not None:
        who = replace(who, rank=int(barrier["rank"] or barrier["of_result"]))
    return PrefixedLine(text, who, time, stream)


def short_host(name: str) -> str:
    """A host's name up to its first dot; an address as it is."""
    return name if _ADDRESS.fullmatch(name) else name.partition(".")[0]


def who_of_name(name: str, above: int = 0) -> tuple[Who, int | None]:
    """What a file's name says of all its lines, and the attempt in a torchrun --log-dir tree.

    The first `above` characters, a path that all inputs share, are searched for that tree alone.
    """
    tree = _ATTEMPT.search(name.replace("\\", "/"))
    path = name[above:].replace("\\", "/")
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
