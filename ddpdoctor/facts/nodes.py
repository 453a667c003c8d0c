"""`nodes`: the nodes of one job: the settings and properties of each, and the network between every pair.

Collected by the session of all nodes before the job starts, or built from collected files. A node is a machine
under torchrun; under plain env:// (`form` is `env`) it is one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import TYPE_CHECKING

from ddpdoctor.facts.gaps import Gap, Section
from ddpdoctor.light_dataclass import dataclass

if TYPE_CHECKING:
    from ddpdoctor.facts.reachability import ConnectOutcome

__all__ = ["Form", "Node", "NodeLink", "Nodes", "Proves", "Split", "Stranger", "late_names", "ranges", "split"]


def late_names() -> dict[str, type]:
    """Types that are imported only when facts of nodes are read."""
    from ddpdoctor.facts.reachability import ConnectOutcome

    return {"ConnectOutcome": ConnectOutcome}


class Form:
    """How the processes of a job find each other: the values of `Node.form`."""

    STATIC = "static"
    C10D = "c10d"
    ENV = "env"
    FILES = "files"
    """Collected files: the settings of the job are unknown."""


class Proves:
    """How a node proves that it belongs to the job: the values of `Nodes.proves` and `Stranger.proves`."""

    NOTHING = ""
    FILE = "file"
    """By a secret in a file that only the user can read."""
    MUNGE = "munge"
    """By munge, the authentication service of the Slurm cluster."""
    OTHER = "other"
    """By a secret that is not this job's."""
    ALL = (NOTHING, FILE, MUNGE)


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `host` is the short hostname; fields that are not set or unknown are None.

    `machine` is equal for nodes of one machine and network namespace. `least` is the MIN of `--nnodes MIN:MAX`. `owns`: by
    torch's own test, or by its rank, it would host the store; `is_at_master`: the master's address is this machine.
    `waited_seconds` is the age of the session when it joined; `clock_seconds` how far its clock is ahead of the
    clock of the node that wrote this. `gpu_uuids` are those that its ranks would use. `traits` are the comparable
    properties, by their paths in the facts (`versions.torch`, `environ.NCCL_IB_DISABLE`).
    """

    host: str
    form: str = Form.STATIC
    machine: str = ""
    full_name: str = ""
    node_rank: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    nnodes: int | None = None
    least: int | None = None
    nproc: int | None = None
    launcher: str = ""
    uniform: bool = False
    """The launcher computes ranks as node_rank times ranks per node, so all nodes need the same number."""
    master_addr: str | None = None
    master_port: int | None = None
    master_addresses: tuple[str, ...] = ()
    """The addresses that the master's name resolves to on this node, if it was looked up."""
    rdzv_id: str | None = None
    owns: bool = False
    is_at_master: bool | None = None
    is_scheduled: bool = False
    """A scheduler started the command on this node, once per task."""
    script: str | None = None
    script_hash: str | None = None
    """Hash of the script's text; "" if the script is missing."""
    addresses: tuple[str, ...] = ()
    nccl_addresses: tuple[str, ...] = ()
    """`ADDRESS/PREFIX` of the interfaces that NCCL would use, the first one first."""
    gloo_address: str | None = None
    gpu_uuids: tuple[str, ...] = ()
    waited_seconds: float | None = None
    clock_seconds: float | None = None
    came: str = "main"
    """How it joined. `main`: at the job's own address and port; `door`: at ddpdoctor's own port, because that address was
    unreachable.
    """
    way: ConnectOutcome | None = None
    """Why the connection to the job's address and port failed, if it did."""
    traits: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """How messages name this node."""
        if self.form == Form.ENV and self.rank is not None:
            return f"rank {self.rank} on {self.host}"
        return self.host if self.node_rank is None else f"node {self.node_rank} ({self.host})"


@dataclass(frozen=True, slots=True)
class NodeLink:
    """One direction between two nodes, by their indices: what `source` saw when it connected to `target`.

    `name` is the target's hostname, "" if the resolver of `source` had not answered yet, and `resolved` the addresses that
    `source` got for it; `address` and `port` are what it connected to: an address of the target and an ephemeral port.
    `outcome` is None when the connection was made; `is_echoed`: whether 32 KiB came back.
    """

    source: int
    target: int
    name: str = ""
    resolved: tuple[str, ...] = ()
    address: str = ""
    port: int = 0
    outcome: ConnectOutcome | None = None
    is_echoed: bool | None = None
    latency_seconds: float | None = None
    gb_per_s: float | None = None

    @property
    def works(self) -> bool:
        return self.outcome is None and self.is_echoed is not False


@dataclass(frozen=True, slots=True)
class Stranger:
    """A client of the job's port that is not part of the job: a node of another job, or (without `is_node`) another program.

    `protocol` is set for a node of this job whose ddpdoctor has another version of the protocol, `proves` (see `Proves`) for
    one that was refused because it does not prove that it belongs to this job. What an unknown client says about itself may
    be false: `address` is where it is.
    """

    host: str
    script: str | None = None
    rdzv_id: str | None = None
    is_node: bool = True
    protocol: int | None = None
    proves: str | None = None
    address: str = ""
    is_proven: bool = False
    """A node of another job of the same user, which has proved that."""

    @property
    def title(self) -> str:
        """How messages name it."""
        return f"{self.host} ({self.script})" if self.script else self.host


@dataclass(frozen=True, slots=True)
class Nodes(Section):
    """The nodes that joined, in the order of their node_rank (or rank), and those that did not.

    `expected` is how many the job has, according to most of the nodes; `missing` are the node_ranks (ranks in form `env`)
    that did not join, and `missing_hosts` their names if a scheduler lists them. `waited_seconds` is how long the session
    waited. `hosted_by` is the index of the node that hosted it. `strangers` are other clients that connected to the port.
    `is_main`: the session used the job's own address and port.
    """

    nodes: tuple[Node, ...] = ()
    links: tuple[NodeLink, ...] = ()
    expected: int | None = None
    missing: tuple[int, ...] = ()
    missing_hosts: dict[str, str] = field(default_factory=dict)
    lacking: int = 0
    """How many did not join, if their numbers are unknown (c10d assigns none)."""
    waited_seconds: float = 0.0
    hosted_by: int = 0
    is_main: bool = True
    lost_host: str | None = None
    """The host of the session, if it disappeared before it had sent its verdict."""
    strangers: tuple[Stranger, ...] = ()
    silent: tuple[int, ...] = ()
    """Indices of nodes that joined and then stopped responding: suspended, or cut off. Their links are unknown."""
    left: tuple[Node, ...] = ()
    """Nodes that joined and left again, if not all nodes joined."""
    absent: tuple[int, ...] = ()
    """The node_ranks (ranks in form `env`) that had not joined at the end, also where an error ended the wait early."""
    absent_count: int = 0
    """How many had not joined at the end, whether or not their numbers are known."""
    proves: str | None = None
    """How the nodes proved that they belong to the job (see `Proves`); None if they did not meet in a session."""
    joined: int | None = None
    """How many joined, where `nodes` are only the first of them, as in the verdict that the host sends."""
    gaps: tuple[Gap, ...] = ()

    @property
    def form(self) -> str:
        return self.nodes[0].form if self.nodes else Form.FILES

    @property
    def joined_count(self) -> int:
        """How many joined."""
        return len(self.nodes) if self.joined is None else self.joined

    @property
    def is_complete(self) -> bool:
        """Everybody joined, as far as is known, and answered to the end."""
        return not (self.absent_count or self.missing or self.lacking or self.silent or self.lost_host)

    @property
    def lacking_unnamed(self) -> int:
        """How many did not join and have no known number."""
        return 0 if self.missing else self.lacking

    def ranks_of(self, numbers: Iterable[int]) -> tuple[int, ...]:
        """The ranks of these node_ranks, if all nodes that joined have the same number of ranks; else ()."""
        counts = {node.nproc for node in self.nodes}
        if len(counts) != 1 or (size := next(iter(counts))) is None:
            return ()
        return tuple(rank for n in sorted(numbers) for rank in range(n * size, (n + 1) * size))

    @property
    def may_be_one_machine(self) -> bool:
        """Ranks started by hand that all joined from one host, and the missing ones may be on this host too."""
        alone = len({node.host for node in self.nodes}) == 1
        counts = [node.nproc for node in self.nodes if node.nproc is not None]
        return self.form == Form.ENV and alone and all(count >= (self.expected or count) for count in counts)

    @property
    def is_one_machine(self) -> bool:
        """All nodes of the job joined from one machine, such as two launches in two terminals."""
        machines = {node.machine for node in self.nodes}
        return len(self.nodes) == self.expected and len(machines) == 1 and "" not in machines

    @property
    def is_meeting(self) -> bool:
        """Several nodes joined a session before their job, as opposed to collected files."""
        return self.form != Form.FILES


@dataclass(frozen=True, slots=True)
class Split:
    """Nodes that differ in one property. `groups` are its values, the most common first.

    `common` is the value of the majority, None on a tie; `odd` are the nodes that differ: the minority, or all on a tie.
    """

    groups: tuple[tuple[str, tuple[Node, ...]], ...]

    @property
    def common(self) -> str | None:
        (value, most), (_, second) = self.groups[0], self.groups[1]
        return value if len(most) > len(second) else None

    @property
    def odd(self) -> tuple[Node, ...]:
        groups = self.groups[1:] if self.common is not None else self.groups
        return tuple(node for _, nodes in groups for node in nodes)


def split(nodes: Iterable[Node], value: Callable[[Node], str | None]) -> Split | None:
    """How the nodes differ in a value; None when they agree. Nodes whose value is unknown are left out."""
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        known = value(node)
        if known is not None:
            groups.setdefault(known, []).append(node)
    if len(groups) < 2:
        return None
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    return Split(tuple((known, tuple(members)) for known, members in ordered))


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as text: `0-3, 7`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
