"""A rank's place in the job: from the environment that its launcher set, and the address of its job's store."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from typing import Any

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.launchers import BY_HAND, TORCHRUN, LauncherMarks
from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.light_dataclass import dataclass

__all__ = [
    "OWN_LAUNCHER",
    "BadEnvironment",
    "NoLauncherError",
    "RankEnv",
    "host_key",
    "read_rank_env",
    "read_rank_env_outside",
]

OWN_LAUNCHER = "ddpdoctor probe"
FIRST_PORT = 15000
PORTS = 10000
"""If a scheduler sets ranks but no master, the port is one of these, chosen by the job id."""

MOST_NODES = 65536
MOST_RANKS = 1 << 20


class BadEnvironment(Exception):
    """The environment does not define this rank's place; the message quotes the variable."""


class NoLauncherError(BadEnvironment):
    """No launcher gave this process a rank."""


@dataclass(frozen=True)
class RankEnv:
    """One rank's environment. `uses_agent_store`: torchrun's agent hosts the store, else rank 0's supervisor does.

    `local_rank` and `node_rank` are None if no variable has them. `prefix` separates this probe's keys from others'.
    `hosts` are the names of all nodes by node_rank if the scheduler lists them, else ().
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None
    node_rank: int | None
    master_addr: str
    master_port: int
    uses_agent_store: bool
    prefix: str
    host: str
    hosts: tuple[str, ...] = ()

    @property
    def hosts_store(self) -> bool:
        return self.rank == 0 and not self.uses_agent_store

    @property
    def name(self) -> str:
        """How messages name this rank."""
        return f"rank {self.rank} on {self.host}"

    @property
    def may_be_ended(self) -> bool:
        """Whether the launcher kills all ranks immediately as soon as one fails."""
        return self.launcher not in (OWN_LAUNCHER, BY_HAND.title, TORCHRUN.title)

    def observe(self, kind: Kind, message: str, **details: Any) -> Observation:
        """An observation of this rank about itself."""
        where = {"host": self.host, "node_rank": self.node_rank, "local_rank": self.local_rank}
        return Observation(kind, message, (self.rank,), self.rank, **(where | details))

    def host_of(self, node: int | None) -> str | None:
        """The short name of a node, if the scheduler lists the nodes and all have the same number of ranks."""
        alike = len(self.hosts) * (self.local_world_size or 0) == self.world_size
        return self.hosts[node].partition(".")[0] if alike and node is not None and node < len(self.hosts) else None


def read_rank_env(environ: Mapping[str, str], job: int | None = None) -> RankEnv:
    """This rank's place. RANK and WORLD_SIZE have priority over a scheduler's variables, because torch reads only them.

    `job` is a number that all ranks of this node share and other jobs do not; by default the parent's pid.

    Raises:
        BadEnvironment: no launcher is recognized, or a variable is missing or not a number.
    """
    variables = dict(environ)
    place = Environ(variables=variables)
    row = place.launcher
    if row is None:
        for name, other in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
            if environ.get(name):
                raise BadEnvironment(f"{other} is {'empty' if other in environ else 'not set'}")
        raise NoLauncherError("it has no rank (neither RANK and WORLD_SIZE nor a scheduler's variables are set)")
    counts = BY_HAND if environ.get("RANK") and environ.get("WORLD_SIZE") else row
    rank = _number(environ, _name(environ, counts.rank), 0)
    world_size = _number(environ, _name(environ, counts.world_size), 1, MOST_RANKS)
    if environ.get("LOCAL_RANK"):  # scripts choose their GPU by it
        _number(environ, "LOCAL_RANK", 0)
    master = _master(environ, place, row, world_size, os.getppid() if job is None else job)
    ours = environ.get("DDPDOCTOR_RUN")
    return RankEnv(
        launcher=OWN_LAUNCHER
        if ours
        else row.title
        if counts is row or row.name == "torchrun"
        else f"{row.title}, RANK by hand",
        rank=rank,
        world_size=world_size,
        local_rank=place.local_rank if place.local_rank is not None else place.integer("LOCAL_RANK"),
        local_world_size=place.local_world_size,
        node_rank=place.node_rank,
        master_addr=master[0],
        master_port=master[1],
        uses_agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        prefix=_prefix(environ),
        host=short_host(),
        hosts=_hosts(environ),
    )


def read_rank_env_outside(environ: Mapping[str, str]) -> RankEnv:
    """The master only, for a rank without a valid place that reports this to the others.

    Raises:
        BadEnvironment: even the master is unknown.
    """
    address, port = _needed(environ, "MASTER_ADDR"), _port(environ)
    uses_agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return RankEnv("", -1, 1, None, None, None, address, port, uses_agent, _prefix(environ), short_host())


def _prefix(environ: Mapping[str, str]) -> str:
    run = environ.get("TORCHELASTIC_RUN_ID", environ.get("DDPDOCTOR_RUN") or "env")
    return f"ddpdoctor/{run}.{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/"


def _hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    return node_names(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "")


def _name(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    """The first of these variables that is set, or the first one if none is."""
    return next((name for name in names if environ.get(name)), names[0] if names else "RANK")


def _master(
    environ: Mapping[str, str], place: Environ, row: LauncherMarks, world_size: int, parent: int
) -> tuple[str, int]:
    """MASTER_ADDR and MASTER_PORT. If neither is set, a scheduler's task uses values that all tasks can derive.

    These are the first node of the step, or this node if all ranks are on it, and a port derived from the job id.
    Scripts under srun or mpirun do the same, so a preflight should not require more.
    """
    if environ.get("MASTER_ADDR") or environ.get("MASTER_PORT") or row is BY_HAND or row.name == "torchrun":
        return _needed(environ, "MASTER_ADDR"), _port(environ)
    here = place.local_world_size == world_size or place.is_multi_node is False
    host = "127.0.0.1" if here else next(iter(_hosts(environ)), "")
    if not host:
        return _needed(environ, "MASTER_ADDR"), _port(environ)
    job = place.integer("SLURM_JOB_ID")
    step = place.integer("SLURM_STEP_ID") or 0
    number = parent if job is None else job + 7 * step
    return host, FIRST_PORT + number % PORTS


def node_names(nodes: str) -> tuple[str, ...]:
    """The hosts of a Slurm node list in the order of SLURM_NODEID: node07 node08 gpu1 of `node[07-08],gpu1`."""
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", nodes.strip()):
        before, _, rest = part.partition("[")
        ranges, _, after = rest.partition("]")
        for numbers in ranges.split(","):
            first, _, last = numbers.strip().partition("-")
            if not first.isdecimal():
                found.append(f"{before}{numbers}{after}")
                continue
            end = int(last) if last.isdecimal() else int(first)
            found += [f"{before}{n:0{len(first)}d}{after}" for n in range(int(first), end + 1)[:MOST_NODES]]
    return tuple(found[:MOST_NODES])


def short_host() -> str:
    """The short hostname of this machine."""
    return socket.gethostname().partition(".")[0]


def host_key() -> str:
    """Equal for processes that can see each other in /proc: same host name, same boot, same PID namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        return f"{socket.gethostname()}/{os.getpid()}"  # without /proc no process can be watched: treat it as alone on this host
    return f"{socket.gethostname()}/{boot}/{space}"


def _needed(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "").strip()
    if not value:
        raise BadEnvironment(f"{name} is {'empty' if name in environ else 'not set'}")
    return value


def _number(environ: Mapping[str, str], name: str, least: int, most: int | None = None) -> int:
    value = _needed(environ, name)
    try:
        number = int(value)
    except ValueError:
        raise BadEnvironment(f"{name}={value!r:.60} is not an integer") from None
    if number < least:
        raise BadEnvironment(f"{name}={number} is less than {least}")
    if most is not None and number > most:
        raise BadEnvironment(f"{name}={value:.40} is too large for any job")
    return number


def _port(environ: Mapping[str, str]) -> int:
    port = _number(environ, "MASTER_PORT", 1)
    if port > 65535:
        raise BadEnvironment(f"MASTER_PORT={port} is not a port (at most 65535)")
    return port
