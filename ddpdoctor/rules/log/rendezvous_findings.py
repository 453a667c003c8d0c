"""What all nodes printed while they waited for each other, and how a finding tells it."""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.facts.log import LogLine
from ddpdoctor.findings import Certainty, Evidence, Finding, Role, Severity, Where
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.mentioned_peers import peer_in
from ddpdoctor.logs.rendezvous_view import RendezvousView
from ddpdoctor.rules.log.signatures import codes_of, shortened

__all__ = ["TOO_MANY", "candidates", "rendezvous_finding"]


@dataclass(frozen=True, slots=True)
class Undetermined:
    """What lines leave open: the words, and the names of the causes whose codes stand in them."""

    words: str
    candidates: tuple[str, ...]


TOO_MANY = Undetermined(
    "Undetermined: processes with another WORLD_SIZE (ENV005), two launchers, or a launcher and mp.spawn (LAUNCH056, LAUNCH058), "
    "or a store or init file that still holds an earlier run's keys (NET018): take a fresh port or file, and count the "
    "processes.",
    ("world-size-mismatch", "launcher-and-spawn", "launcher-per-task", "rendezvous-store-stale"),
)
DECIDES = "ddpdoctor check -- LAUNCH, with each node's own line, on every node at the same time, tells these apart."


LATE = Undetermined(
    "a firewall (NET007, NET008), another port or address (ENV017, ENV019, ENV020), a late node (PROBE003)",
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
    "rank 0 did not start (PROBE002) or died first, a wrong address (ENV018, NET012), a closed port (NET007, NET008)",
    (
        "head-node-never-joined",
        "master-addr-not-rank-zero",
        "rdzv-host-mismatch",
        "master-port-dropped",
        "master-port-rejected",
    ),
)
ABSENT = Undetermined(
    "a node that never started (PROBE001) or died first, nodes that look for the master elsewhere (ENV017, LAUNCH025), "
    "the same --node-rank twice (LAUNCH036), a closed port (NET007)",
    (
        "node-never-joined",
        "master-addr-loopback",
        "multinode-without-rendezvous",
        "duplicate-node-rank",
        "master-port-dropped",
    ),
)
APART = Undetermined(
    "a member that never started (PROBE001) or died, endpoints or ids that differ (LAUNCH032, LAUNCH039, LAUNCH035)",
    ("node-never-joined", "rdzv-endpoint-loopback", "rdzv-id-differs", "nnodes-differs"),
)


def candidates(view: RendezvousView) -> Undetermined:
    """What the lines leave open."""
    if view.client_counts:
        named = LATE if view.failed_connections else ABSENT
    else:
        named = UNREACHED if view.failed_connections else APART
    return Undetermined(f"Undetermined: {named.words}. {DECIDES}", named.candidates)


def rendezvous_finding(
    view: RendezvousView,
    lines: list[LogLine],
    text: str,
    also: list[LogLine],
    ranks: tuple[int, ...] = (),
    undetermined: Undetermined | None = None,
) -> Finding:
    """The finding that says `text`, with `lines` and some of `also` as its evidence; noise where the job went on."""
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
