"""`probe`: how far each rank got, what it measured, and the evidence of what went wrong."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from ddpdoctor.facts.gaps import Gap, Section
from ddpdoctor.facts.pairs import PairSpeed
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.light_dataclass import dataclass

__all__ = ["COLLECTIVE_PHASES", "Baseline", "Kind", "Measurement", "Observation", "Probe", "RankReport", "Unsupported"]

COLLECTIVE_PHASES = ("barrier", "all_reduce", "collectives", "measure", "pairs", "compute", "done")
"""The phases after the process group was formed."""


class Kind(str, Enum):
    """What one rank observed about itself or another rank. `causality.observation_order` decides which explains the others."""

    BAD_ENVIRONMENT = "bad_environment"
    RANK_OUT_OF_RANGE = "rank_out_of_range"
    DUPLICATE_RANK = "duplicate_rank"
    WORLD_SIZE_DIFFERS = "world_size_differs"
    DUPLICATE_GPU = "duplicate_gpu"
    PORT_TAKEN = "port_taken"
    MASTER_ELSEWHERE = "master_elsewhere"
    STRANGER = "stranger"
    UNRESOLVABLE = "unresolvable"
    MASTER_WITHOUT_HOST = "master_without_host"
    NO_ROUTE = "no_route"
    REFUSED = "refused"
    SILENT = "silent"
    PORT_DROPPED = "port_dropped"
    PORT_REJECTED = "port_rejected"
    UNREACHABLE = "unreachable"
    NEVER_JOINED = "never_joined"
    LINK_BLOCKED = "link_blocked"
    LINK_BLACK_HOLE = "link_black_hole"
    GLOO_UNREACHABLE = "gloo_unreachable"
    GLOO_LOOPBACK = "gloo_loopback"
    GLOO_NO_INTERFACE = "gloo_no_interface"
    IMPORT_FAILED = "import_failed"
    DIED = "died"
    STOPPED = "stopped"
    HOST_LOST = "host_lost"
    UNINTERRUPTIBLE = "uninterruptible"
    EXCEPTION = "exception"
    WRONG_VALUE = "wrong_value"
    MISMATCH = "mismatch"
    ELSEWHERE = "elsewhere"
    PEER_ERROR = "peer_error"
    STORE_LOST = "store_lost"
    OUT_OF_FILES = "out_of_files"
    OUT_OF_TIME = "out_of_time"
    HANG = "hang"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class Observation:
    """One piece of evidence. `message` is a sentence that names the rank and its host.

    `ranks` are those that it is about, `seen_by` the rank that noticed it; host, node_rank, local_rank and pid belong
    to the rank that it is about; `peer` is the host at the other end of a link, `outcome` the result of a failed
    connection. `signal` is a name such as SIGSEGV.
    `file`, `line` and `function` are the innermost Python frame of a rank that waits in other code. `is_cause` is set by
    the verdict.
    """

    kind: Kind
    message: str
    ranks: tuple[int, ...] = ()
    seen_by: int | None = None
    host: str | None = None
    peer: str | None = None
    node_rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    phase: str = ""
    signal: str | None = None
    exit_code: int | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None
    value: str | None = None
    expected: str | None = None
    outcome: ConnectOutcome | None = None
    is_cause: bool = True


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank at the end of the probe. `phase` is the last phase that it entered.

    `import_seconds` is how long its worker took to import torch, `waited_seconds` how long it waited for the last
    rank to arrive; both by its own clock. `gpu_uuid` is None without a GPU; `cuda_ordinal` is CUDA's index.
    `nccl_warnings` are the lines that NCCL itself printed at level WARN. `traits` are the properties in which it differs
    from `Probe.traits`, by their paths in the facts; "" if it has no such property. `took` is how many seconds the first
    barrier and the first all_reduce took here (the last rank to arrive does not wait). `rates` are what its GPU reached alone:
    `gemm_tflops` (bf16), `copy_gb_per_s`, `to_gpu_gb_per_s`, `from_gpu_gb_per_s`, `peer_N_gb_per_s`.

    `transports` are those that NCCL used to its peers, by their rank: P2P/CUMEM, SHM, NET/IB, NET/Socket. If one of them
    goes through host memory, `offers` is what the hardware supports: the path from this GPU to each other GPU of its host,
    by uuid, and an RDMA adapter as `network`; and `settings` are the variables that choose NCCL's transports.
    """

    rank: int
    local_rank: int | None = None
    node_rank: int | None = None
    host: str = ""
    pid: int | None = None
    world_size: int | None = None
    gpu: int | None = None
    gpu_uuid: str | None = None
    cuda_ordinal: int | None = None
    torch: str | None = None
    nccl: str | None = None
    phase: str = ""
    seconds: float = 0.0
    import_seconds: float | None = None
    waited_seconds: float | None = None
    error: str | None = None
    nccl_warnings: tuple[str, ...] = ()
    traits: dict[str, str] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    transports: dict[str, str] = field(default_factory=dict)
    offers: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One collective at one size. Bandwidths in GB/s (10^9), by the factors of nccl-tests; None for barrier."""

    collective: str
    size_bytes: int
    iterations: int
    latency_seconds: float
    algbw_gb_per_s: float | None = None
    busbw_gb_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A collective that the backend does not support: not a finding, only not measured."""

    collective: str
    reason: str


@dataclass(frozen=True, slots=True)
class Baseline:
    """Saved measurements of an earlier probe with the same shape."""

    backend: str
    world_size: int
    device: str | None = None
    measurements: tuple[Measurement, ...] = ()
    pairs: tuple[PairSpeed, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe(Section):
    """One probe of `world_size` ranks over `backend`. Without observations every rank passed every phase.

    `retried_lazily` is the result of a retry with lazily created communicators after eager initialization failed:
    "works" or the error; None when it was not tried. `traits` are the properties of the first rank that the
    others' are compared with: versions, and variables that should be equal on all nodes. `pairs` are the
    point-to-point measurements.
    `device` is the model of rank 0's GPU.
    """

    world_size: int = 0
    backend: str = ""
    launcher: str = ""
    master: str = ""
    seconds: float = 0.0
    ranks: tuple[RankReport, ...] = ()
    observations: tuple[Observation, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    unsupported: tuple[Unsupported, ...] = ()
    retried_lazily: str | None = None
    traits: dict[str, str] = field(default_factory=dict)
    pairs: tuple[PairSpeed, ...] = ()
    baseline: Baseline | None = None
    device: str | None = None
    gaps: tuple[Gap, ...] = ()

    def seen(self, *kinds: Kind) -> tuple[Observation, ...]:
        """The observations of these kinds, in the order of the verdict."""
        return tuple(o for o in self.observations if o.kind in kinds)

    def report_of(self, rank: int) -> RankReport | None:
        """The report of one rank, None if it did not join."""
        return next((r for r in self.ranks if r.rank == rank), None)

    @property
    def has_failed(self) -> bool:
        return bool(self.observations)

    @property
    def out_of_time(self) -> tuple[str, ...]:
        """Why the probe ran out of time before it had a verdict; () when it did not."""
        return tuple(o.message for o in self.seen(Kind.OUT_OF_TIME) if o.is_cause)
