"""Who did not come to the rendezvous, and why: one decision over what all nodes printed while they waited.

No single line tells these causes apart: it takes "1/2 clients joined" on one node and a time-out towards (localhost, 29500)
on another, or two launchers that both wait for the word of all nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum

from ddpdoctor.facts.addresses import is_loopback
from ddpdoctor.facts.log import Log
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.logs.context_patterns import marked
from ddpdoctor.logs.job_outcome import has_failed, own_exits
from ddpdoctor.logs.recovery import last_words
from ddpdoctor.logs.rendezvous_lines import counts, keys, knocks
from ddpdoctor.rules.log.rendezvous_view import (
    TOO_MANY,
    Scene,
    came,
    candidates,
    is_farewell,
    joined,
    names,
    ranks_of,
    tell,
)
from ddpdoctor.rules.log.signatures import matching

__all__ = ["Joining", "joining_findings"]


class Joining(Enum):
    """Why ranks or nodes did not join: each member is told by the cause of that name."""

    DUPLICATE_RANK = "duplicate-rank"
    WORLD_SIZE_MISMATCH = "world-size-mismatch"
    MASTER_ADDR_LOOPBACK = "master-addr-loopback"
    MASTER_PORT_DIFFERS = "master-port-differs"
    MASTER_ADDR_DIFFERS = "master-addr-differs"
    C10D_ENDPOINT_OMITTED = "c10d-endpoint-omitted"
    DUPLICATE_NODE_RANK = "duplicate-node-rank"
    STORE_UNREACHABLE = "store-unreachable"
    MASTER_ADDR_SWALLOWS_PACKETS = "master-addr-swallows-packets"
    MASTER_ADDR_WITHOUT_HOST = "master-addr-without-host"
    MASTER_PORT_DROPPED = "master-port-dropped"
    MASTER_PORT_REJECTED = "master-port-rejected"
    NODE_NEVER_JOINED = "node-never-joined"
    HEAD_NODE_NEVER_JOINED = "head-node-never-joined"
    RENDEZVOUS_INCOMPLETE = "rendezvous-incomplete"


Decision = tuple[Joining, Finding]

NO_ROUTE = 113
NO_ANSWER = (r"\bconnect\(\) timed out\.",)
NO_ENDPOINT = (r"master_addr is only used for static rdzv_backend",)
TWICE = (r"rank \d+ of \d+ ranks has already checked in",)
SWALLOWED = (r"server socket on \[[^\]]*\]:\d+ has timed out, will retry",)
RENDEZVOUS = (r"RendezvousTimeoutError", r"worker_count=\d+, timeout", r"Error: (?:Socket|Wait) [Tt]imeout\W*$")


def _decide(log: Log) -> Iterator[Decision]:
    scene = Scene(log, knocks(log), counts(log), keys(log))
    if any("cannot be retrieved (gai error" in line.text for line in log.lines):
        return  # a name that does not resolve explains all of it
    told = next((found for each in ORDER for found in each(scene)), None)
    if told is not None:
        yield told
    if told is None or told[0] != Joining.RENDEZVOUS_INCOMPLETE:
        yield from _incomplete(scene)


def _loopback(scene: Scene) -> Iterator[Decision]:
    """Each node looks for the store on itself: the host of one waits, or several nodes knock at themselves."""
    own = [k for k in scene.knocks if is_loopback(k.host)]
    if own and scene.spans_hosts([*(k.line for k in own), *(c.line for c in scene.counts)]):
        first = own[0]
        waits = f", while {joined(scene.counts[0])}" if scene.counts else ""
        yield (
            Joining.MASTER_ADDR_LOOPBACK,
            tell(
                scene,
                [k.line for k in own],
                f"{scene.told([k.line for k in own])} looked for the master at ({first.host}, {first.port}), which "
                f"is the node itself{waits}: MASTER_ADDR, --master-addr or --rdzv-endpoint is a loopback address or missing",
                [c.line for c in scene.counts],
            ),
        )


def _addresses_differ(scene: Scene) -> Iterator[Decision]:
    knocked = {(k.host, k.port) for k in scene.knocks}
    for code, what, values in (
        (Joining.MASTER_PORT_DIFFERS, "ports", sorted({str(port) for _, port in knocked})),
        (Joining.MASTER_ADDR_DIFFERS, "addresses", sorted({host for host, _ in knocked})),
    ):
        if len(values) > 1 and len(scene.nodes_of([k.line for k in scene.knocks])) > 1:
            lines = [k.line for k in scene.knocks]
            yield (
                code,
                tell(scene, lines, f"the nodes looked for the master at different {what}: {', '.join(values)}", []),
            )
            return
    selfish = [k for k in scene.knocks if k.line.who.host is not None and k.host.partition(".")[0] == k.line.who.host]
    if selfish and scene.counts and scene.node_of(scene.counts[0].line) != selfish[0].line.who.host:
        text = (
            f"{selfish[0].line.who.host} looked for the master at its own name ({selfish[0].host}, {selfish[0].port}), while "
            f"{joined(scene.counts[0])} on another node"
        )
        yield Joining.MASTER_ADDR_DIFFERS, tell(scene, [k.line for k in selfish], text, [c.line for c in scene.counts])


def _no_route(scene: Scene) -> Iterator[Decision]:
    """No route to host: a firewall's word where the host of the store waits, else nobody has the address."""
    lost = [k for k in scene.knocks if k.errno == NO_ROUTE]
    if not lost:
        return
    lines = [k.line for k in lost]
    where = f"({lost[0].host}, {lost[0].port})"
    if scene.counts:
        text = f"{scene.told(lines)} was refused at {where} (No route to host), while {joined(scene.counts[0])}"
        yield Joining.MASTER_PORT_REJECTED, tell(scene, lines, text, [c.line for c in scene.counts])
    else:
        text = f"{scene.told(lines)} found no machine at {where} (errno 113, No route to host)"
        yield Joining.MASTER_ADDR_WITHOUT_HOST, tell(scene, lines, text, [])


def _swallowed(scene: Scene) -> Iterator[Decision]:
    """Packets to the master get no answer at all: its port alone where its host waits for clients."""
    lines = matching(scene.log, SWALLOWED)
    if not lines:
        return
    nodes = scene.told(lines)
    if scene.counts:
        text = (
            f"{nodes} got no answer from the master's port, while {joined(scene.counts[0])}: packets to it are dropped"
        )
        yield Joining.MASTER_PORT_DROPPED, tell(scene, lines, text, [c.line for c in scene.counts])
    elif len(scene.nodes) > 1 and len(scene.nodes_of(lines)) == len(scene.nodes):
        yield (
            Joining.MASTER_ADDR_SWALLOWS_PACKETS,
            tell(scene, lines, f"{nodes} got no answer at all from the master address", []),
        )


def _launchers(scene: Scene) -> Iterator[Decision]:
    """Two launchers take themselves for the same node."""
    first = [k for k in scene.keys if k.is_first_node]
    if len(first) > 1:
        lines = [k.line for k in first]
        text = f"{scene.told(lines)} all wait as --node-rank 0 for the word of all nodes"
        yield Joining.DUPLICATE_NODE_RANK, tell(scene, lines, text, [])
        return
    for node in sorted({n for k in scene.keys for n in k.nodes if not k.is_first_node}):
        same = [k.line for k in scene.keys if k.nodes == (node,) and not k.is_first_node]
        if len(same) > 1 and first:
            text = f"{scene.told(same)} both wait as --node-rank {node}"
            yield Joining.DUPLICATE_NODE_RANK, tell(scene, same, text, [k.line for k in first])
            return


def _duplicates(scene: Scene) -> Iterator[Decision]:
    """As many processes as ranks wait for a rank that nobody is: one of the others is there twice."""
    waited = {k.ranks for k in scene.keys if k.ranks}
    lines = [k.line for k in scene.keys if k.ranks]
    if len(waited) != 1 or scene.counts or scene.knocks:
        return
    missing = next(iter(waited))
    is_everybody = {line.source for line in lines} == {i for i, each in enumerate(scene.log.sources) if each.lines}
    if missing != (0,) and len(lines) > max(missing) and is_everybody and not own_exits(scene.log):
        text = f"{len(lines)} processes wait for rank {missing[0]}, which nobody is: another RANK is there twice"
        yield Joining.DUPLICATE_RANK, tell(scene, lines, text, [])


def _worlds_differ(scene: Scene) -> Iterator[Decision]:
    """A rank is waited for that lies beyond the size that others go by."""
    sizes = {int(found["size"]): line for line, found in marked(scene.log, "size")}
    waited = [(max(k.ranks), k.line) for k in scene.keys if k.ranks]
    if len(sizes) > 1 or any(rank >= size for rank, _ in waited for size in sizes):
        rank, line = max(waited, default=(None, next(iter(sizes.values()))), key=lambda pair: pair[0] or 0)
        other = next(iter(sizes))
        seen = f"one waits for rank {rank}" if rank is not None else f"sizes {', '.join(map(str, sorted(sizes)))}"
        text = f"the processes do not agree on WORLD_SIZE: {seen}, others go by size {other}"
        yield Joining.WORLD_SIZE_MISMATCH, tell(scene, [line], text, list(sizes.values()))


def _head_missing(scene: Scene) -> Iterator[Decision]:
    knocked = {(k.host, k.port) for k in scene.knocks}
    lines = [k.line for k in scene.knocks]
    nodes = scene.nodes_of(lines)
    if len(knocked) != 1 or scene.counts or len(nodes) < 2 or len(nodes) != len(scene.nodes):
        return
    host, port = next(iter(knocked))
    if host not in scene.nodes and not any(host in node for node in scene.nodes):
        text = (
            f"{names(nodes)} could not connect to ({host}, {port}), and nothing was printed by {host}: it never started, or its "
            f"port is closed to all of them"
        )
        yield Joining.HEAD_NODE_NEVER_JOINED, tell(scene, lines, text, [])


def _node_missing(scene: Scene) -> Iterator[Decision]:
    if scene.knocks or not scene.counts or len(scene.nodes) < 2:
        return
    first = scene.counts[0]
    if len(scene.nodes) > first.joined:
        return
    seen = sorted(rank for rank in ranks_of(scene.log) if rank < first.expected)
    missing = [rank for rank in range(first.expected) if rank not in seen] if len(seen) == first.joined else []
    who = f"rank {missing[0]}" if len(missing) == 1 else f"{first.expected - first.joined} of {first.expected} clients"
    text = f"{who} never came: {joined(first)}, and only {names(sorted(scene.nodes))} printed anything"
    finding = tell(scene, [c.line for c in scene.counts], text, [k.line for k in scene.keys], ranks=tuple(missing))
    yield Joining.NODE_NEVER_JOINED, finding


def _unreachable(scene: Scene) -> Iterator[Decision]:
    """The master was not reached, for one of several reasons that look alike from here."""
    if scene.knocks:
        first = scene.knocks[0]
        lines = [k.line for k in scene.knocks]
        other = f", while {joined(scene.counts[0])}" if scene.counts else ""
        text = f"{scene.told(lines)} could not connect to ({first.host}, {first.port}){other}. {candidates(scene)}"
        yield Joining.STORE_UNREACHABLE, tell(scene, lines, text, [c.line for c in scene.counts])
        return
    lines = [c.line for c in scene.counts] or matching(scene.log, SWALLOWED + NO_ANSWER)
    if lines:
        says = joined(scene.counts[0]) if scene.counts else "the master address gave no answer"
        yield Joining.STORE_UNREACHABLE, tell(scene, lines, f"{says}. {candidates(scene)}", [])


def _incomplete(scene: Scene) -> Iterator[Decision]:
    waited = [
        line
        for line in matching(scene.log, RENDEZVOUS)
        if ("Waiting in" not in line.text or has_failed(scene.log)) and not is_farewell(scene.log, line)
    ]
    lines = [k.line for k in scene.keys] + waited
    if not lines:
        yield from _still_waiting(scene)
        return
    crowd, world = max((found for line in waited if (found := came(line))), default=(0, 0))
    if crowd > world and any(marked(scene.log, "left_file")):
        return  # a closed rendezvous, which has a cause of its own
    if crowd > world:
        text = f"{crowd} workers came to a group of {world}. Undetermined: {TOO_MANY}"
        yield Joining.RENDEZVOUS_INCOMPLETE, tell(scene, waited, text, [])
        return
    ranks = tuple(sorted({rank for k in scene.keys for rank in k.ranks}))
    missing = ranks if len({k.ranks for k in scene.keys}) == 1 and ranks != (0,) else ()
    who = f"only {crowd} of {world} members came in time" if crowd else "not all members came in time"
    who = f"rank {missing[0]} did not write its address" if len(missing) == 1 else who
    text = f"{scene.told(lines)} gave up waiting: {who}. {candidates(scene)}"
    yield Joining.RENDEZVOUS_INCOMPLETE, tell(scene, lines, text, [], ranks=missing)


def _still_waiting(scene: Scene) -> Iterator[Decision]:
    """Nobody gave up, and the log ends in the middle of the waiting: what a job that hangs leaves."""
    log = scene.log
    for line, found in ((each, came(each)) for each in matching(log, RENDEZVOUS)):
        if not found or found[0] == found[1] or last_words(log, line.source, max(line.number, line.last)):
            continue
        if found[0] > found[1]:
            text = f"{found[0]} workers came to a group of {found[1]}. Undetermined: {TOO_MANY}"
            yield Joining.RENDEZVOUS_INCOMPLETE, tell(scene, [line], text, [])
        else:
            text = f"{found[0]} of {found[1]} members had come when the log ended. {candidates(scene)}"
            yield Joining.RENDEZVOUS_INCOMPLETE, replace(tell(scene, [line], text, []), severity=Severity.WARNING)
        return


def _checked_in_twice(scene: Scene) -> Iterator[Decision]:
    """NCCL's bootstrap: a rank came that was there already."""
    twice = matching(scene.log, TWICE)
    if twice:
        ranks = tuple(sorted({int(m[1]) for line in twice if (m := re.search(r"rank (\d+) of", line.text))}))
        text = f"rank {', '.join(map(str, ranks))} came to NCCL's bootstrap twice: two processes say that they are it"
        yield Joining.DUPLICATE_RANK, tell(scene, twice, text, [], ranks=ranks)


def _without_endpoint(scene: Scene) -> Iterator[Decision]:
    """c10d was given no endpoint, and then not all nodes met."""
    lines = matching(scene.log, NO_ENDPOINT)
    waited = matching(scene.log, (r"RendezvousTimeoutError",))
    if lines and waited and not scene.knocks:
        text = (
            f"{scene.told(lines)} started c10d without --rdzv-endpoint, or gave --master-addr in its place "
            f"(c10d ignores it), and not all nodes met: each waits at its own localhost:29400"
        )
        yield Joining.C10D_ENDPOINT_OMITTED, tell(scene, lines, text, waited)


ORDER: tuple[Callable[[Scene], Iterator[Decision]], ...] = (
    _checked_in_twice,
    _loopback,
    _without_endpoint,
    _addresses_differ,
    _no_route,
    _swallowed,
    _launchers,
    _worlds_differ,
    _duplicates,
    _head_missing,
    _node_missing,
    _unreachable,
)
"""The precise ones first; the last one is the umbrella."""


def joining_findings(log: Log, why: Joining) -> Iterator[Finding]:
    """What the decision over all nodes says of one cause."""
    return (finding for decided, finding in _decide(log) if decided is why)
