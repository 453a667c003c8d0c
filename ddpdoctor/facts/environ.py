"""`environ`: the environment variables of launchers, torch, NCCL, Gloo, CUDA and OpenMP."""

from __future__ import annotations

import json
import re
from dataclasses import field

from ddpdoctor.facts.addresses import is_loopback
from ddpdoctor.facts.gaps import Gap, Section
from ddpdoctor.facts.launchers import BY_HAND, LAUNCHERS, PSEUDO_STEPS, SRUN, TORCHRUN, LauncherMarks
from ddpdoctor.light_dataclass import dataclass

__all__ = ["REMOVED", "ConfFile", "Environ", "NamedPath", "as_integer", "shorten"]

REMOVED = "<removed: looks like a secret>"
"""Replaces a secret in the facts."""

_SCHEDULERS = {
    "SLURM_JOB_ID": "slurm",
    "SLURM_JOBID": "slurm",
    "LSB_JOBID": "lsf",
    "PBS_JOBID": "pbs",
    "SM_CURRENT_HOST": "sagemaker",
    "KUBERNETES_SERVICE_HOST": "kubernetes",
}


@dataclass(frozen=True, slots=True)
class ConfFile:
    """A file that NCCL reads variables from (src/misc/param.cc: setEnvFile). Names are verbatim, blanks included."""

    path: str
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NamedPath:
    """The file that a variable makes NCCL or CUDA open; `gpu_bus_ids` are the GPUs that a topology file describes.

    `is_answered`: whether a process reads the daemon's pipe; None for other files, and where it is unknown.
    """

    variable: str
    path: str
    exists: bool
    gpu_bus_ids: tuple[str, ...] = ()
    is_answered: bool | None = None


@dataclass(frozen=True, slots=True)
class Environ(Section):
    """The variables that are set, by name. Values of names that look like secrets are replaced when collected.

    `conf_files` are the files that NCCL reads variables from, highest precedence first; the environment overrides all.
    `ancestors` are the programs above this process, nearest first; None when they could not be read. `has_elastic_agent`:
    whether one of them can be torchrun's agent; None when no `TORCHELASTIC_*` variable is set.
    """

    variables: dict[str, str] = field(default_factory=dict)
    ancestors: tuple[str, ...] | None = None
    has_elastic_agent: bool | None = None
    conf_files: tuple[ConfFile, ...] = ()
    paths: tuple[NamedPath, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def settings(self) -> dict[str, str]:
        """The variables as NCCL sees them: the environment, then NCCL's files."""
        files = {name: value for file in reversed(self.conf_files) for name, value in file.variables.items()}
        return {**files, **self.variables}

    def source(self, name: str) -> tuple[str, str | None]:
        """Where a setting comes from: its path in the facts, and the file that holds it, None for the environment."""
        if name not in self.variables:
            for index, file in enumerate(self.conf_files):
                if name in file.variables:
                    return f"environ.conf_files[{index}].variables.{name}", file.path
        return f"environ.variables.{name}", None

    def named(self, variable: str) -> NamedPath | None:
        """The file that this variable names, None when it was not examined."""
        return next((path for path in self.paths if path.variable == variable), None)

    def get(self, name: str) -> str | None:
        """The value, None when unset. An unset variable is known to be unset, so it is not a gap."""
        return self.variables.get(name)

    def has(self, name: str) -> bool:
        """Set and not empty: torch treats an empty RANK or MASTER_ADDR as missing."""
        return bool(self.variables.get(name))

    def integer(self, name: str) -> int | None:
        """The value as Python's `int` reads it; None when unset, and also when it is not an integer."""
        return as_integer(self.variables.get(name))

    @property
    def launchers(self) -> tuple[LauncherMarks, ...]:
        """Every launcher whose marker variables are set, innermost first."""
        return tuple(row for row in LAUNCHERS if self._shows(row))

    @property
    def launcher(self) -> LauncherMarks | None:
        """The innermost launcher, which started this process. None in a login shell or a batch script."""
        return next(iter(self.launchers), None)

    def _shows(self, row: LauncherMarks) -> bool:
        if row is TORCHRUN and self.has_elastic_agent is False:
            return False
        if row is SRUN and (self.get("SLURM_STEP_ID") or self.get("SLURM_STEPID")) in PSEUDO_STEPS:
            return False
        return all(self._marked(marker) for marker in row.markers) and not any(map(self.has, row.unless))

    def _marked(self, marker: str) -> bool:
        if marker.endswith("*"):
            return any(name.startswith(marker[:-1]) for name in self.variables)
        return any(self.has(name) for name in marker.split("|"))

    def _number(self, names: tuple[str, ...]) -> int | None:
        return next((self.integer(name) for name in names if self.has(name)), None)

    @property
    def rank(self) -> int | None:
        """The global rank, from the innermost launcher."""
        return self._number((self.launcher or BY_HAND).rank)

    @property
    def world_size(self) -> int | None:
        """The number of ranks, from the innermost launcher."""
        return self._number((self.launcher or BY_HAND).world_size)

    @property
    def local_rank(self) -> int | None:
        """The rank within the node, from the innermost launcher."""
        return self._number((self.launcher or BY_HAND).local_rank)

    @property
    def local_world_size(self) -> int | None:
        """The number of ranks on this node, from the innermost launcher."""
        row = self.launcher or BY_HAND
        if row is SRUN:
            return _tasks_on(self.get("SLURM_STEP_TASKS_PER_NODE") or "", self.node_rank or 0)
        return self._number(row.local_world_size)

    @property
    def local_size_name(self) -> str:
        """The variable for the number of local ranks: deepspeed has its own name for LOCAL_WORLD_SIZE."""
        launcher = self.launcher
        return "LOCAL_SIZE" if launcher is not None and launcher.name == "deepspeed" else "LOCAL_WORLD_SIZE"

    @property
    def node_rank(self) -> int | None:
        """The index of this node, from the innermost launcher."""
        row = self.launcher or BY_HAND
        if row.name == "sagemaker":
            hosts, here = self._sagemaker_hosts(), self.get("SM_CURRENT_HOST") or ""
            return hosts.index(here) if here in hosts else None
        return self._number(row.node_rank)

    @property
    def nnodes(self) -> int | None:
        """The number of nodes, from the innermost launcher; None for an elastic range."""
        row = self.launcher or BY_HAND
        if row.name == "sagemaker":
            return len(self._sagemaker_hosts()) or None
        return self._number(row.nnodes)

    def _sagemaker_hosts(self) -> list[str]:
        try:
            hosts = json.loads(self.get("SM_HOSTS") or "")
        except (ValueError, RecursionError):
            return []
        return [h for h in hosts if isinstance(h, str)] if isinstance(hosts, list) else []

    @property
    def master_addr(self) -> str | None:
        """MASTER_ADDR, else torchrun's default PET_MASTER_ADDR; None when both are unset or empty."""
        return self.get("MASTER_ADDR") or self.get("PET_MASTER_ADDR") or None

    @property
    def master_port(self) -> int | None:
        """MASTER_PORT, else torchrun's default PET_MASTER_PORT; None also when it is not an integer."""
        return self._number(("MASTER_PORT", "PET_MASTER_PORT"))

    @property
    def scheduler(self) -> str | None:
        """The scheduler: slurm, lsf, pbs, sagemaker or kubernetes; None when no variable shows one."""
        return next((word for name, word in _SCHEDULERS.items() if self.has(name)), None)

    @property
    def is_multi_node(self) -> bool | None:
        """Whether the job has more than one node; None when the environment does not show it."""
        if is_loopback(self.get("SLURM_LAUNCH_NODE_IPADDR") or "none"):
            return False  # srun reached its nodes over loopback: several slurmd run on this one machine
        world, local = self.integer("WORLD_SIZE"), self.integer("LOCAL_WORLD_SIZE")
        if world == 1 or (world is not None and world == local):
            return False
        nodes = self.nnodes
        if nodes is None and self.world_size and self.local_world_size:
            return self.world_size > self.local_world_size
        if nodes is None:
            nodes = as_integer((self.get("PET_NNODES") or "").rpartition(":")[2])
        if nodes is None and self.launcher in (None, BY_HAND):
            nodes = self._allocated_nodes(world)
        return None if nodes is None else nodes > 1

    def _allocated_nodes(self, world: int | None) -> int | None:
        """The nodes of Slurm's allocation, None when the job of `world` ranks may not use all of them."""
        nodes = self._number(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"))
        if nodes is not None and world is not None and world < nodes:
            return None
        if world is not None and self.has("RANK") and not self.has("SLURM_PROCID"):
            return None  # ranks started by hand in a shell of salloc: all of them may be on this node
        return nodes

    def setter(self, name: str) -> str:
        """What set a variable, judged by its name and the detected launchers: a launcher's title, or `by hand`."""
        owner = next((row for row in LAUNCHERS if row.owns and name.startswith(row.owns)), None)
        if owner is not None:
            return self._owner(name, owner)
        for row in self.launchers:
            if name in row.sets:
                return row.title
        if TORCHRUN in self.launchers and (name, self.get(name)) in _TORCHRUN_DEFAULTS:
            return f"{TORCHRUN.title} (its default)"
        if name in ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES") and self._slurm_gave_gpus():
            return "Slurm"
        return "container" if name.startswith("NVIDIA_") else BY_HAND.title

    def _owner(self, name: str, owner: LauncherMarks) -> str:
        if name.startswith("PET_"):
            return "Kubeflow" if self.scheduler == "kubernetes" else BY_HAND.title
        if name.startswith("KUBERNETES_"):
            return "Kubernetes"
        if owner is TORCHRUN and TORCHRUN not in self.launchers:
            return "torchrun (left over)" if name.startswith("TORCHELASTIC_") else BY_HAND.title
        return owner.title.partition(" (")[0] if owner is SRUN else owner.title

    def _slurm_gave_gpus(self) -> bool:
        return any(self.has(name) for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE"))


_TORCHRUN_DEFAULTS = {("OMP_NUM_THREADS", "1"), ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")}


def as_integer(text: str | None) -> int | None:
    """`int(text)`, or None where that raises. torch reads RANK, WORLD_SIZE and MASTER_PORT with `int`."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def shorten(value: str, limit: int = 60) -> str:
    """A value for a message: control characters escaped, the middle of a long one cut."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in value[: limit + 1])
    if len(value) <= limit and len(shown) <= limit:
        return shown
    tail = "".join(c if c.isprintable() else "?" for c in value[-(limit // 3) :])
    return f"{shown[: limit - len(tail) - 1]}…{tail}"


def _tasks_on(tasks_per_node: str, node: int) -> int | None:
    """The entry of node `node` in Slurm's `2(x2),1`, None when it is not there."""
    for part in tasks_per_node.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,9})\))?", part.strip())
        if match is None:
            return None
        node -= int(match[2] or 1)
        if node < 0:
            return int(match[1])
    return None
