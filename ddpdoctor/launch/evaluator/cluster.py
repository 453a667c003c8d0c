"""The imagined cluster that a job file gets: its hosts, its GPUs, and the variables that the scheduler sets."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.launch.evaluator.tools import host_names
from ddpdoctor.launch.evaluator.values import ARRAY, NODE, TASK, Origin, Value
from ddpdoctor.light_dataclass import dataclass

__all__ = [
    "MOST_NODES",
    "SUBMIT_HOST",
    "Allocation",
    "allocation_of",
    "array_task",
    "components_of",
    "host_list",
    "last_index",
    "number_of",
    "option",
]

MOST_NODES = 128
"""Hosts that are imagined: more would show nothing new."""
JOB_ID = "7504711"
"""As large as the ids of a cluster that has run for some years: no port."""
SUBMIT_HOST = "login-node"
"""Where a job is submitted; no rank runs there."""
_HOLD_OPTIONS = {
    "SLURM_GPUS": ("-G", "--gpus"),
    "SLURM_GPUS_PER_NODE": ("--gpus-per-node",),
    "SLURM_GPUS_PER_TASK": ("--gpus-per-task",),
}
"""Variables of the batch step that hold the text of an option. Source: sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"."""
_GRES = re.compile(r"(?:^|,)gpu(?::[A-Za-z][\w.-]*)?(?::(\d{1,3}))?(?=$|,|\()")


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a batch job is given. None: the file does not say it.

    `hosts` are the names of its nodes, `tasks` and `tasks_per_node` what `srun` starts without options of its own.
    `gpus_per_task`: each task sees only so many. `components` are the parts of a heterogeneous job, () for any other.
    `places` are where the options stand, by their long names. `variables` and `texts` are what a scheduler other than Slurm
    sets and writes; `scheduler` is its name.
    `option_texts` are the variables of Slurm that hold an option as it is written: `a100:4` of `--gpus-per-node=a100:4`.
    `last_of_array` is the last index of an array. `takes_whole_nodes`: no other job runs on its nodes. `batch_host` runs the
    script where that is no host of the job.
    """

    hosts: tuple[str, ...] = ("node-0",)
    tasks: int | None = None
    tasks_per_node: int | None = None
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    is_array: bool = False
    last_of_array: int | None = None
    is_slurm: bool = False
    nodes_are_known: bool = True
    gpus_per_task: int | None = None
    components: tuple[Allocation, ...] = ()
    scheduler: str = ""
    exports: str | None = None
    takes_whole_nodes: bool = False
    batch_host: str = ""
    option_texts: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, Origin] = field(default_factory=dict)
    variables: Mapping[str, Value] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def tasks_by_default(self) -> int:
        """How many tasks `srun` starts where its line does not say it."""
        if self.tasks is not None:
            return self.tasks
        return len(self.hosts) * (self.tasks_per_node or 1)

    def environ(self) -> dict[str, Value]:
        """The variables of the batch step, which runs on the first node."""
        if not self.is_slurm:
            return dict(self.variables)
        count = str(len(self.hosts)) if self.nodes_are_known else "\0"
        fixed = {
            "SLURM_JOB_ID": JOB_ID,
            "SLURM_JOBID": JOB_ID,
            "SLURM_NNODES": count,
            "SLURM_JOB_NUM_NODES": count,
            "SLURM_JOB_NODELIST": host_list(self.hosts),
            "SLURM_NODELIST": host_list(self.hosts),
            "SLURM_SUBMIT_DIR": "\0",
            "SLURM_SUBMIT_HOST": SUBMIT_HOST,
            "SLURM_JOB_NAME": "\0",
            **self.option_texts,
        }
        if self.tasks is not None or self.tasks_per_node is not None:
            fixed["SLURM_NTASKS"] = fixed["SLURM_NPROCS"] = str(self.tasks_by_default)
        if self.tasks_per_node is not None and not self.components:
            fixed["SLURM_NTASKS_PER_NODE"] = str(self.tasks_per_node)
        if self.gpus_per_node is not None:
            fixed["SLURM_GPUS_ON_NODE"] = str(self.gpus_per_node)
            fixed["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(self.gpus_per_node)))
        if self.cpus_per_task is not None:
            fixed["SLURM_CPUS_PER_TASK"] = str(self.cpus_per_task)
        per_node = self.tasks_by_default // len(self.hosts) if len(self.hosts) else 1
        fixed["SLURM_TASKS_PER_NODE"] = f"{per_node}(x{len(self.hosts)})" if len(self.hosts) > 1 else str(per_node)
        varying = dict.fromkeys(
            ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), Value("0", varies=frozenset((TASK,)))
        )
        varying["SLURMD_NODENAME"] = Value(self.hosts[0], varies=frozenset((NODE,)))
        if self.is_array:
            varying |= dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), Value("1", varies=frozenset((ARRAY,))))
            varying["SLURM_ARRAY_TASK_ID"] = array_task(self.last_of_array)
            fixed["SLURM_ARRAY_JOB_ID"] = JOB_ID
        if self.exports is not None and self.exports.upper() != "ALL":
            fixed["SLURM_EXPORT_ENV"] = self.exports
        return {**{name: Value(text) for name, text in fixed.items()}, **varying, **self._of_components()}

    def _of_components(self) -> dict[str, Value]:
        """The variables of a heterogeneous job, one of each name for every component."""
        found = {"SLURM_HET_SIZE": Value(str(len(self.components)))} if self.components else {}
        for number, each in enumerate(self.components):
            own = replace(each, components=(), exports=None).environ()
            shared = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURMD_NODENAME")
            found |= {f"{name}_HET_GROUP_{number}": value for name, value in own.items() if name not in shared}
        return found


def array_task(last: int | None) -> Value:
    """The index of a job of an array: the last one, with which a rank that is counted from 1 is out of range."""
    return Value("1" if last is None else str(last), varies=frozenset((ARRAY,)))


def option(layer: Layer, *flags: str) -> str | None:
    """The last value of an option of Slurm, by its spellings."""
    return next((given.value for given in reversed(layer.reading.given) if given.flag in flags), None)


def number_of(text: str | None) -> int | None:
    """A count: `2`, and of `2-4` the most."""
    match = re.fullmatch(r"(?:\d{1,6}-)?(\d{1,6})", text or "")
    return int(match[1]) if match else None


def gpus_of(layer: Layer) -> int | None:
    """GPUs per node, as --gres, --gpus-per-node or --gpus-per-task say."""
    per_node = option(layer, "--gpus-per-node")
    if per_node is not None:
        return number_of(per_node.rpartition(":")[2])
    gres = _GRES.search(option(layer, "--gres") or "")
    return int(gres[1] or 1) if gres else None


def allocation_of(batch: Layer | None, environ: Mapping[str, str]) -> Allocation:
    """The allocation that `#SBATCH` lines ask for; one host without them."""
    if batch is None:
        return Allocation()
    named = option(batch, "-w", "--nodelist")
    names = host_names(named) if named else None
    nodes = number_of(option(batch, "-N", "--nodes"))
    tasks = number_of(option(batch, "-n", "--ntasks"))
    per_node = number_of(option(batch, "--ntasks-per-node"))
    if nodes is None and tasks is not None and per_node:
        nodes = -(-tasks // per_node)
    count = min(nodes or len(names or ()) or 1, MOST_NODES)
    hosts = tuple(names) if names and len(names) == count else tuple(f"node-{at}" for at in range(count))
    gpus = gpus_of(batch)
    total = number_of((option(batch, "-G", "--gpus") or "").rpartition(":")[2])
    if gpus is None and total is not None and total % count == 0:
        gpus = total // count
    per_task = number_of((option(batch, "--gpus-per-task") or "").rpartition(":")[2])
    if gpus is None and per_task is not None and per_node is not None:
        gpus = per_task * per_node
    return Allocation(
        hosts=hosts,
        tasks=tasks,
        tasks_per_node=per_node,
        gpus_per_node=gpus,
        cpus_per_task=number_of(option(batch, "-c", "--cpus-per-task")),
        is_array=_is_array(option(batch, "-a", "--array")),
        last_of_array=last_index(option(batch, "-a", "--array") or ""),
        is_slurm=True,
        nodes_are_known=nodes is not None
        or names is not None
        or (option(batch, "-N", "--nodes", "-w", "--nodelist") is None and (tasks is None or tasks == 1)),
        gpus_per_task=per_task,
        scheduler="Slurm",
        exports=option(batch, "--export"),
        option_texts={
            name: text for name, flags in _HOLD_OPTIONS.items() if (text := option(batch, *flags)) is not None
        },
        takes_whole_nodes=any(given.flag == "--exclusive" for given in batch.reading.given),
    )


def components_of(batches: Sequence[Layer], environ: Mapping[str, str]) -> Allocation:
    """The allocation of a heterogeneous job: the first component, which runs the script, with all of them."""
    parts: list[Allocation] = []
    for each in batches:
        own, first = allocation_of(each, environ), sum(len(part.hosts) for part in parts)
        hosts = tuple(f"node-{first + at}" for at in range(len(own.hosts)))
        parts.append(replace(own, hosts=hosts) if own.hosts[0].startswith("node-") else own)
    return replace(parts[0], components=tuple(parts)) if len(parts) > 1 else parts[0]


def last_index(text: str) -> int | None:
    """The last index of `0-3`, `1-4:1` or `1-8%2`; None for a list."""
    match = re.fullmatch(r"\d{1,6}-(\d{1,6})(?::1)?(?:%\d+)?", text.strip())
    return int(match[1]) if match else None


def _is_array(value: str | None) -> bool:
    """Whether several tasks of an array may run at the same time."""
    return value is not None and re.search(r"[-,]", value) is not None and not value.endswith("%1")


@functools.lru_cache(maxsize=64)
def host_list(hosts: tuple[str, ...]) -> str:
    """`node-[0-3]`, `node[03,05,07-12]`, as Slurm writes the names of several hosts."""
    numbered = [re.fullmatch(r"(.*?)(\d{1,18})", host) for host in hosts]
    groups: dict[tuple[str, int], list[int]] = {}
    for match in numbered:
        if match is None:
            return ",".join(hosts)
        groups.setdefault((match[1], len(match[2])), []).append(int(match[2]))
    return ",".join(f"{prefix}{_ranges(numbers, width)}" for (prefix, width), numbers in groups.items())


def _ranges(numbers: Sequence[int], width: int) -> str:
    """`3` alone, `[3,5,7-12]` of several, each with its leading zeros."""
    pieces: list[list[int]] = []
    for number in numbers:
        if pieces and number == pieces[-1][1] + 1:
            pieces[-1][1] = number
        else:
            pieces.append([number, number])
    texts = [f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}" for low, high in pieces]
    return texts[0] if len(numbers) == 1 else f"[{','.join(texts)}]"
