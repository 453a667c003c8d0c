"""Findings from what all nodes printed while they waited for each other."""

from __future__ import annotations

from ddpdoctor.facts.log import LogLine
from ddpdoctor.findings import Certainty, Evidence, Finding, Role, Severity, Where
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.mentioned_peers import peer_in
from ddpdoctor.logs.rendezvous_view import RendezvousView
from ddpdoctor.rules.log.signatures import codes_of, shortened

__all__ = ["FIX_OF_TOO_MANY", "TOO_MANY", "candidates", "rendezvous_finding"]


@dataclass(frozen=True, slots=True)
class Undetermined:
    """What lines do not decide: the text, and the names of the causes whose codes it contains."""

    words: str
    candidates: tuple[str, ...]


TOO_MANY = Undetermined(
    "Either processes have different values of WORLD_SIZE (ENV005), two launchers or a launcher and mp.spawn start the "
    "ranks (LAUNCH056, LAUNCH058), or the store or init file still has keys of an earlier run (NET018): use a new port or "
    "file, and count the processes (`pgrep -fc SCRIPT`) to decide",
    ("world-size-mismatch", "launcher-and-spawn", "launcher-per-task", "rendezvous-store-stale"),
)
FIX_OF_TOO_MANY = (
    "End the processes of earlier runs (pkill -f SCRIPT), delete the init file or use a new --master-port, and "
    "start one launcher per node"
)
"""What to do where more workers joined than the group has."""
DECIDES = "run `ddpdoctor check -- LAUNCH` with each node's own launch line on every node at the same time to decide"


LATE = Undetermined(
    "a firewall blocks the port (NET007, NET008), a node has another port or address (ENV017, ENV019, ENV020), or a node was "
    "late (PROBE003)",
    (
        "master-port-dropped",
        "master-port-rejected",
        "master-addr-loopback",
        "master-port-differs",
        "master-addr-differs",
        "node-joined-late",
    ),
)
UNREACHED = Undetermined(
    "rank 0 did not start (PROBE002) or ended first, the address is wrong (ENV018, NET012), or the port is closed (NET007, "
    "NET008)",
    (
        "head-node-never-joined",
        "master-addr-not-rank-zero",
        "rdzv-host-mismatch",
        "master-port-dropped",
        "master-port-rejected",
    ),
)
ABSENT = Undetermined(
    "a node did not start (PROBE001) or ended first, nodes use another master address (ENV017, LAUNCH025), two nodes have the "
    "same --node-rank (LAUNCH036), or the port is closed (NET007)",
    (
        "node-never-joined",
        "master-addr-loopback",
        "multinode-without-rendezvous",
        "duplicate-node-rank",
        "master-port-dropped",
    ),
)
APART = Undetermined(
    "a node did not start (PROBE001) or ended first, or the endpoints, ids, or node counts differ (LAUNCH032, LAUNCH039, "
    "LAUNCH035)",
    ("node-never-joined", "rdzv-endpoint-loopback", "rdzv-id-differs", "nnodes-differs"),
)


def candidates(view: RendezvousView) -> Undetermined:
    """What the lines do not decide."""
    if view.client_counts:
        reasons = LATE if view.failed_connections else ABSENT
    else:
        reasons = UNREACHED if view.failed_connections else APART
    return Undetermined(f"Either {reasons.words}: {DECIDES}", reasons.candidates)


def rendezvous_finding(
    view: RendezvousView,
    lines: list[LogLine],
    text: str,
    also: list[LogLine],
    ranks: tuple[int, ...] = (),
    undetermined: Undetermined | None = None,
) -> Finding:
    """The finding with this text and with `lines` and some of `also` as evidence; noise if the job continued."""
    log, first = view.log, lines[0]
    is_noise = history_of(log).is_harmless(lines)
    peer = peer_in(lines)
    hosts = {line.who.host for line in lines} if peer is not None else set()
    return Finding(
        text,
        tuple(Evidence(log.place(each.source, each.number), shortened(each.text)) for each in (*lines[:3], *also[:2])),
        where=Where(
            rank=ranks[0] if len(ranks) == 1 else None,
            host=hosts.pop() if len(hosts) == 1 else None,
            peer=peer,
            file=log.sources[first.source].name,
            line=first.number,
        ),
        ranks=ranks,
        severity=Severity.NOTE if is_noise else None,
        role=Role.NOISE if is_noise else None,
        quote=shortened(first.text),
        undetermined=undetermined.words if undetermined is not None else "",
        certainty=Certainty.CANDIDATES if undetermined is not None else Certainty.CERTAIN,
        candidates=codes_of(*undetermined.candidates) if undetermined is not None else (),
    )
