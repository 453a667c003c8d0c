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
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.logs.rendezvous_lines import client_counts, failed_connections, missing_keys
from ddpdoctor.logs.rendezvous_view import RendezvousView, clients_joined, is_at_exit_barrier, names, workers_joined
from ddpdoctor.rules.log.rendezvous_findings import TOO_MANY, candidates, rendezvous_finding

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
    view = RendezvousView(log, failed_connections(log), client_counts(log), missing_keys(log))
    if any("cannot be retrieved (gai error" in line.text for line in log.lines):
        return  # a name that does not resolve explains all of it
    told = next((found for each in ORDER for found in each(view)), None)
    if told is not None:
        yield told
    if told is None or told[0] != Joining.RENDEZVOUS_INCOMPLETE:
        yield from _incomplete(view)


def _loopback(view: RendezvousView) -> Iterator[Decision]:
    """Each node looks for the store on itself: the host of one waits, or several nodes knock at themselves."""
    own = [k for k in view.failed_connections if is_loopback(k.host)]
    if own and view.spans_hosts([*(k.line for k in own), *(c.line for c in view.client_counts)]):
        first = own[0]
        waits = f", while {clients_joined(view.client_counts[0])}" if view.client_counts else ""
        yield (
            Joining.MASTER_ADDR_LOOPBACK,
            rendezvous_finding(
                view,
                [k.line for k in own],
                f"{view.speakers_of([k.line for k in own])} looked for the master at ({first.host}, {first.port}), which "
                f"is the node itself{waits}: MASTER_ADDR, --master-addr or --rdzv-endpoint is a loopback address or missing",
                [c.line for c in view.client_counts],
            ),
        )


def _addresses_differ(view: RendezvousView) -> Iterator[Decision]:
    knocked = {(k.host, k.port) for k in view.failed_connections}
    for code, what, values in (
        (Joining.MASTER_PORT_DIFFERS, "ports", sorted({str(port) for _, port in knocked})),
        (Joining.MASTER_ADDR_DIFFERS, "addresses", sorted({host for host, _ in knocked})),
    ):
        if len(values) > 1 and len(view.nodes_of([k.line for k in view.failed_connections])) > 1:
            lines = [k.line for k in view.failed_connections]
            yield (
                code,
                rendezvous_finding(
                    view, lines, f"the nodes looked for the master at different {what}: {', '.join(values)}", []
                ),
            )
            return
    selfish = [
        k
        for k in view.failed_connections
        if k.line.who.host is not None and k.host.partition(".")[0] == k.line.who.host
    ]
    if selfish and view.client_counts and view.node_of(view.client_counts[0].line) != selfish[0].line.who.host:
        text = (
            f"{selfish[0].line.who.host} looked for the master at its own name ({selfish[0].host}, {selfish[0].port}), while "
            f"{clients_joined(view.client_counts[0])} on another node"
        )
        yield (
            Joining.MASTER_ADDR_DIFFERS,
            rendezvous_finding(view, [k.line for k in selfish], text, [c.line for c in view.client_counts]),
        )


def _no_route(view: RendezvousView) -> Iterator[Decision]:
    """No route to host: a firewall's word where the host of the store waits, else nobody has the address."""
    lost = [k for k in view.failed_connections if k.errno == NO_ROUTE]
    if not lost:
        return
    lines = [k.line for k in lost]
    where = f"({lost[0].host}, {lost[0].port})"
    if view.client_counts:
        joined = clients_joined(view.client_counts[0])
        text = f"{view.speakers_of(lines)} was refused at {where} (No route to host), while {joined}"
        yield Joining.MASTER_PORT_REJECTED, rendezvous_finding(view, lines, text, [c.line for c in view.client_counts])
    else:
        text = f"{view.speakers_of(lines)} found no machine at {where} (errno 113, No route to host)"
        yield Joining.MASTER_ADDR_WITHOUT_HOST, rendezvous_finding(view, lines, text, [])


def _swallowed(view: RendezvousView) -> Iterator[Decision]:
    """Packets to the master get no answer at all: its port alone where its host waits for clients."""
    lines = matching_lines(view.log, SWALLOWED)
    if not lines:
        return
    nodes = view.speakers_of(lines)
    if view.client_counts:
        joined = clients_joined(view.client_counts[0])
        text = f"{nodes} got no answer from the master's port, while {joined}: packets to it are dropped"
        yield Joining.MASTER_PORT_DROPPED, rendezvous_finding(view, lines, text, [c.line for c in view.client_counts])
    elif len(view.nodes) > 1 and len(view.nodes_of(lines)) == len(view.nodes):
        yield (
            Joining.MASTER_ADDR_SWALLOWS_PACKETS,
            rendezvous_finding(view, lines, f"{nodes} got no answer at all from the master address", []),
        )


def _launchers(view: RendezvousView) -> Iterator[Decision]:
    """Two launchers take themselves for the same node."""
    first = [k for k in view.missing_keys if k.is_first_node]
    if len(first) > 1:
        lines = [k.line for k in first]
        text = f"{view.speakers_of(lines)} all wait as --node-rank 0 for the word of all nodes"
        yield Joining.DUPLICATE_NODE_RANK, rendezvous_finding(view, lines, text, [])
        return
    for node in sorted({n for k in view.missing_keys for n in k.nodes if not k.is_first_node}):
        same = [k.line for k in view.missing_keys if k.nodes == (node,) and not k.is_first_node]
        if len(same) > 1 and first:
            text = f"{view.speakers_of(same)} both wait as --node-rank {node}"
            yield Joining.DUPLICATE_NODE_RANK, rendezvous_finding(view, same, text, [k.line for k in first])
            return


def _duplicates(view: RendezvousView) -> Iterator[Decision]:
    """As many processes as ranks wait for a rank that nobody is: one of the others is there twice."""
    waited = {k.ranks for k in view.missing_keys if k.ranks}
    lines = [k.line for k in view.missing_keys if k.ranks]
    if len(waited) != 1 or view.client_counts or view.failed_connections:
        return
    missing = next(iter(waited))
    is_everybody = {line.source for line in lines} == {i for i, each in enumerate(view.log.sources) if each.lines}
    if missing != (0,) and len(lines) > max(missing) and is_everybody and not history_of(view.log).failed_exits:
        text = f"{len(lines)} processes wait for rank {missing[0]}, which nobody is: another RANK is there twice"
        yield Joining.DUPLICATE_RANK, rendezvous_finding(view, lines, text, [])


def _worlds_differ(view: RendezvousView) -> Iterator[Decision]:
    """A rank is waited for that lies beyond the size that others go by."""
    sizes = {int(found["size"]): line for line, found in context_lines(view.log, "size")}
    waited = [(max(k.ranks), k.line) for k in view.missing_keys if k.ranks]
    if len(sizes) > 1 or any(rank >= size for rank, _ in waited for size in sizes):
        rank, line = max(waited, default=(None, next(iter(sizes.values()))), key=lambda pair: pair[0] or 0)
        other = next(iter(sizes))
        seen = f"one waits for rank {rank}" if rank is not None else f"sizes {', '.join(map(str, sorted(sizes)))}"
        text = f"the processes do not agree on WORLD_SIZE: {seen}, others go by size {other}"
        yield Joining.WORLD_SIZE_MISMATCH, rendezvous_finding(view, [line], text, list(sizes.values()))


def _head_missing(view: RendezvousView) -> Iterator[Decision]:
    knocked = {(k.host, k.port) for k in view.failed_connections}
    lines = [k.line for k in view.failed_connections]
    nodes = view.nodes_of(lines)
    if len(knocked) != 1 or view.client_counts or len(nodes) < 2 or len(nodes) != len(view.nodes):
        return
    host, port = next(iter(knocked))
    if host not in view.nodes and not any(host in node for node in view.nodes):
        text = (
            f"{names(nodes)} could not connect to ({host}, {port}), and nothing was printed by {host}: it never started, or its "
            f"port is closed to all of them"
        )
        yield Joining.HEAD_NODE_NEVER_JOINED, rendezvous_finding(view, lines, text, [])


def _node_missing(view: RendezvousView) -> Iterator[Decision]:
    if view.failed_connections or not view.client_counts or len(view.nodes) < 2:
        return
    first = view.client_counts[0]
    if len(view.nodes) > first.joined:
        return
    seen = sorted(rank for rank in history_of(view.log).speaking_ranks if rank < first.expected)
    missing = [rank for rank in range(first.expected) if rank not in seen] if len(seen) == first.joined else []
    who = f"rank {missing[0]}" if len(missing) == 1 else f"{first.expected - first.joined} of {first.expected} clients"
    text = f"{who} never came: {clients_joined(first)}, and only {names(sorted(view.nodes))} printed anything"
    finding = rendezvous_finding(
        view, [c.line for c in view.client_counts], text, [k.line for k in view.missing_keys], ranks=tuple(missing)
    )
    yield Joining.NODE_NEVER_JOINED, finding


def _unreachable(view: RendezvousView) -> Iterator[Decision]:
    """The master was not reached, for one of several reasons that look alike from here."""
    if view.failed_connections:
        first = view.failed_connections[0]
        lines = [k.line for k in view.failed_connections]
        other = f", while {clients_joined(view.client_counts[0])}" if view.client_counts else ""
        text = f"{view.speakers_of(lines)} could not connect to ({first.host}, {first.port}){other}"
        also = [c.line for c in view.client_counts]
        found = rendezvous_finding(view, lines, text, also, undetermined=candidates(view))
        yield Joining.STORE_UNREACHABLE, found
        return
    lines = [c.line for c in view.client_counts] or matching_lines(view.log, SWALLOWED + NO_ANSWER)
    if lines:
        says = clients_joined(view.client_counts[0]) if view.client_counts else "the master address gave no answer"
        yield Joining.STORE_UNREACHABLE, rendezvous_finding(view, lines, says, [], undetermined=candidates(view))


def _incomplete(view: RendezvousView) -> Iterator[Decision]:
    waited = [
        line
        for line in matching_lines(view.log, RENDEZVOUS)
        if ("Waiting in" not in line.text or history_of(view.log).has_failed) and not is_at_exit_barrier(view.log, line)
    ]
    lines = [k.line for k in view.missing_keys] + waited
    if not lines:
        yield from _still_waiting(view)
        return
    crowd, world = max((found for line in waited if (found := workers_joined(line))), default=(0, 0))
    if crowd > world and any(context_lines(view.log, "left_file")):
        return  # a closed rendezvous, which has a cause of its own
    if crowd > world:
        text = f"{crowd} workers came to a group of {world}"
        yield Joining.RENDEZVOUS_INCOMPLETE, rendezvous_finding(view, waited, text, [], undetermined=TOO_MANY)
        return
    ranks = tuple(sorted({rank for k in view.missing_keys for rank in k.ranks}))
    missing = ranks if len({k.ranks for k in view.missing_keys}) == 1 and ranks != (0,) else ()
    who = f"only {crowd} of {world} members came in time" if crowd else "not all members came in time"
    who = f"rank {missing[0]} did not write its address" if len(missing) == 1 else who
    text = f"{view.speakers_of(lines)} gave up waiting: {who}"
    finding = rendezvous_finding(view, lines, text, [], missing, candidates(view))
    yield Joining.RENDEZVOUS_INCOMPLETE, finding


def _still_waiting(view: RendezvousView) -> Iterator[Decision]:
    """Nobody gave up, and the log ends in the middle of the waiting: what a job that hangs leaves."""
    log = view.log
    for line, found in ((each, workers_joined(each)) for each in matching_lines(log, RENDEZVOUS)):
        if not found or found[0] == found[1] or history_of(log).progress_after(line):
            continue
        if found[0] > found[1]:
            text = f"{found[0]} workers came to a group of {found[1]}"
            yield Joining.RENDEZVOUS_INCOMPLETE, rendezvous_finding(view, [line], text, [], undetermined=TOO_MANY)
        else:
            text = f"{found[0]} of {found[1]} members had come when the log ended"
            waiting = rendezvous_finding(view, [line], text, [], undetermined=candidates(view))
            yield Joining.RENDEZVOUS_INCOMPLETE, replace(waiting, severity=Severity.WARNING)
        return


def _checked_in_twice(view: RendezvousView) -> Iterator[Decision]:
    """NCCL's bootstrap: a rank came that was there already."""
    twice = matching_lines(view.log, TWICE)
    if twice:
        ranks = tuple(sorted({int(m[1]) for line in twice if (m := re.search(r"rank (\d+) of", line.text))}))
        text = f"rank {', '.join(map(str, ranks))} came to NCCL's bootstrap twice: two processes say that they are it"
        yield Joining.DUPLICATE_RANK, rendezvous_finding(view, twice, text, [], ranks=ranks)


def _without_endpoint(view: RendezvousView) -> Iterator[Decision]:
    """c10d was given no endpoint, and then not all nodes met."""
    lines = matching_lines(view.log, NO_ENDPOINT)
    waited = matching_lines(view.log, (r"RendezvousTimeoutError",))
    if lines and waited and not view.failed_connections:
        text = (
            f"{view.speakers_of(lines)} started c10d without --rdzv-endpoint, or gave --master-addr in its place "
            f"(c10d ignores it), and not all nodes met: each waits at its own localhost:29400"
        )
        yield Joining.C10D_ENDPOINT_OMITTED, rendezvous_finding(view, lines, text, waited)


ORDER: tuple[Callable[[RendezvousView], Iterator[Decision]], ...] = (
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
