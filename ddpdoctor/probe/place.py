"""Where a rank stands: read from the environment that its launcher gave it. A launcher is a row of variable names."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["LAUNCHERS", "BadEnvironment", "Launcher", "Place", "host_key", "read_place"]


class BadEnvironment(Exception):
    """The environment does not say where this rank stands; the text quotes the variable."""


@dataclass(frozen=True)
class Launcher:
    """How a launcher is recognised (all of `marks` are set) and where it writes what."""

    name: str
    marks: tuple[str, ...]
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str | None = None
    node_rank: str | None = None


LAUNCHERS = (
    Launcher(
        "torchrun", ("TORCHELASTIC_RUN_ID",), "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"
    ),
    Launcher("env://", ("RANK", "WORLD_SIZE"), "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    Launcher(
        "srun", ("SLURM_STEP_ID", "SLURM_PROCID"), "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", None, "SLURM_NODEID"
    ),
    Launcher(
        "mpirun",
        ("OMPI_COMM_WORLD_RANK",),
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    Launcher("mpirun", ("PMI_RANK", "PMI_SIZE"), "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Innermost first: a torchrun worker inside Slurm has the variables of both."""


@dataclass(frozen=True)
class Place:
    """One rank's place. `uses_agent_store`: torchrun's agent hosts the store, else rank 0's supervisor does.

    `local_rank` and `node_rank` are None where no variable tells. `prefix` keeps this probe's keys apart from others'.
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

    @property
    def hosts_store(self) -> bool:
        return self.rank == 0 and not self.uses_agent_store

    @property
    def name(self) -> str:
        """How sentences call this rank."""
        return f"rank {self.rank} on {self.host}"


def read_place(environ: Mapping[str, str]) -> Place:
    """This rank's place.

    Raises:
        BadEnvironment: no launcher is recognised, or a variable is missing or no number.
    """
    row = next((each for each in LAUNCHERS if all(environ.get(mark) for mark in each.marks)), None)
    if row is None:
        raise BadEnvironment(
            "no launcher gave this process a rank: neither RANK and WORLD_SIZE nor a scheduler's variables are set"
        )
    local = _lenient(environ, row.local_rank, "LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
    run = f"{environ.get('TORCHELASTIC_RUN_ID', 'env')}.{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return Place(
        launcher=row.name,
        rank=_number(environ, row.rank, 0),
        world_size=_number(environ, row.world_size, 1),
        local_rank=local,
        local_world_size=_lenient(environ, row.local_world_size),
        node_rank=_lenient(environ, row.node_rank, "SLURM_NODEID", "NODE_RANK"),
        master_addr=_needed(environ, "MASTER_ADDR"),
        master_port=_port(environ),
        uses_agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        prefix=f"ddpdoctor/{run}/",
        host=short_host(),
    )


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
        return f"{socket.gethostname()}/{os.getpid()}"  # without /proc nobody can be watched: alone on this host
    return f"{socket.gethostname()}/{boot}/{space}"


def _needed(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "").strip()
    if not value:
        raise BadEnvironment(f"{name} is {'empty' if name in environ else 'not set'}")
    return value


def _number(environ: Mapping[str, str], name: str, least: int) -> int:
    value = _needed(environ, name)
    try:
        number = int(value)
    except ValueError:
        raise BadEnvironment(f"{name}={value!r:.60} is no integer") from None
    if number < least:
        raise BadEnvironment(f"{name}={number} is less than {least}")
    return number


def _port(environ: Mapping[str, str]) -> int:
    port = _number(environ, "MASTER_PORT", 1)
    if port > 65535:
        raise BadEnvironment(f"MASTER_PORT={port} is no port: the largest is 65535")
    return port


def _lenient(environ: Mapping[str, str], *names: str | None) -> int | None:
    """The first of these variables that holds a number: they only help to name places, nothing depends on them."""
    for name in names:
        value = environ.get(name, "") if name else ""
        if value.isdigit():
            return int(value)
    return None
