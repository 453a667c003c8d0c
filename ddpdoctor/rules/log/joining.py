"""Which rank or node did not join the rendezvous, and why: one decision over what all nodes printed while they waited.

No single line is enough: "1/2 clients joined" on one node has to be seen together with a time-out at (localhost, 29500) on
another, or the messages of two launchers that both wait for all nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum

from ddpdoctor.facts.addresses import is_loopback
from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.distances import LAST_WORDS_LINES
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.logs.rendezvous_lines import client_counts, failed_connections, missing_keys
from ddpdoctor.logs.rendezvous_view import (
    UNNAMED,
    RendezvousView,
    clients_joined,
    is_at_exit_barrier,
    names,
    workers_joined,
)
from ddpdoctor.rules.log.headlines import ranks_named
from ddpdoctor.rules.log.rendezvous_findings import FIX_OF_TOO_MANY, TOO_MANY, candidates, rendezvous_finding

__all__ = ["Joining", "joining_findings"]


class Joining(Enum):
    """Why ranks or nodes did not join: each member is reported by the cause of that name."""

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
SWALLOWED = (r"server socket on \[[^\]]{0,100}\]:\d+ has timed out, will retry",)
RENDEZVOUS = (
    r"RendezvousTimeoutError",
    r"initializing process group in store based barrier on rank\W*$",
    r"worker_count=\d+, timeout",
    r"Error: (?:Socket|Wait) [Tt]imeout\W*$",
)


def _decide(log: Log) -> Iterator[Decision]:
    view = RendezvousView(log, failed_connections(log), client_counts(log), missing_keys(log))
    if any("cannot be retrieved (gai error" in line.text for line in log.lines):
        return  # a name that does not resolve explains all of it
    decision = next((decided for look in ORDER for decided in look(view)), None)
    if decision is not None:
        yield decision
    if decision is None or decision[0] != Joining.RENDEZVOUS_INCOMPLETE:
        yield from _incomplete(view)


def _by(view: RendezvousView, lines: list[LogLine]) -> str:
    """`node1, node2: `, the beginning of a headline; "" if the log does not name the process."""
    speakers = view.speakers_of(lines)
    return "" if speakers == UNNAMED else f"{speakers}: "


def _loopback(view: RendezvousView) -> Iterator[Decision]:
    """Several nodes try to connect to the store at a loopback address, or one does while the store waits on another node."""
    own = [k for k in view.failed_connections if is_loopback(k.host)]
    if own and view.spans_hosts([*(k.line for k in own), *(c.line for c in view.client_counts)]):
        first = own[0]
        yield (
            Joining.MASTER_ADDR_LOOPBACK,
            rendezvous_finding(
                view,
                [k.line for k in own],
                f"{_by(view, [k.line for k in own])}master address {first.host}:{first.port} is the node itself",
                [c.line for c in view.client_counts],
            ),
        )


def _addresses_differ(view: RendezvousView) -> Iterator[Decision]:
    addresses = {(k.host, k.port) for k in view.failed_connections}
    for code, what, values in (
        (Joining.MASTER_PORT_DIFFERS, "ports", sorted({str(port) for _, port in addresses})),
        (Joining.MASTER_ADDR_DIFFERS, "addresses", sorted({host for host, _ in addresses})),
    ):
        if len(values) > 1 and len(view.nodes_of([k.line for k in view.failed_connections])) > 1:
            lines = [k.line for k in view.failed_connections]
            yield (
                code,
                rendezvous_finding(view, lines, f"the nodes use different master {what}: {', '.join(values)}", []),
            )
            return
    at_own_name = [
        k
        for k in view.failed_connections
        if k.line.who.host is not None and k.host.partition(".")[0] == k.line.who.host
    ]
    if at_own_name and view.client_counts and view.node_of(view.client_counts[0].line) != at_own_name[0].line.who.host:
        text = (
            f"{at_own_name[0].line.who.host}: uses its own name as the master address; the store runs on another node "
            f"({clients_joined(view.client_counts[0])})"
        )
        yield (
            Joining.MASTER_ADDR_DIFFERS,
            rendezvous_finding(view, [k.line for k in at_own_name], text, [c.line for c in view.client_counts]),
        )


def _no_route(view: RendezvousView) -> Iterator[Decision]:
    """No route to host: a firewall rejects it if the host of the store waits; otherwise, no machine has the address."""
    lost = [k for k in view.failed_connections if k.errno == NO_ROUTE]
    if not lost:
        return
    lines = [k.line for k in lost]
    where = f"{lost[0].host}:{lost[0].port}"
    if view.client_counts:
        joined = clients_joined(view.client_counts[0])
        text = f"{_by(view, lines)}connection to {where} rejected (No route to host; {joined})"
        yield Joining.MASTER_PORT_REJECTED, rendezvous_finding(view, lines, text, [c.line for c in view.client_counts])
    else:
        text = f"{_by(view, lines)}no machine has the address {where} (No route to host)"
        yield Joining.MASTER_ADDR_WITHOUT_HOST, rendezvous_finding(view, lines, text, [])


def _swallowed(view: RendezvousView) -> Iterator[Decision]:
    """Packets to the master get no answer; only its port is blocked if its host waits for clients."""
    lines = matching_lines(view.log, SWALLOWED)
    if not lines:
        return
    by = _by(view, lines)
    if view.client_counts:
        joined = clients_joined(view.client_counts[0])
        text = f"{by}no answer from the master port, packets are dropped ({joined})"
        yield Joining.MASTER_PORT_DROPPED, rendezvous_finding(view, lines, text, [c.line for c in view.client_counts])
    elif len(view.nodes) > 1 and len(view.nodes_of(lines)) == len(view.nodes):
        yield (
            Joining.MASTER_ADDR_SWALLOWS_PACKETS,
            rendezvous_finding(view, lines, f"{by}no answer from the master address", []),
        )


def _launchers(view: RendezvousView) -> Iterator[Decision]:
    """Two launchers have the same node rank."""
    first = [k for k in view.missing_keys if k.is_first_node]
    if len(first) > 1:
        lines = [k.line for k in first]
        text = f"{_by(view, lines)}all wait as --node-rank 0 for the other nodes"
        yield Joining.DUPLICATE_NODE_RANK, rendezvous_finding(view, lines, text, [])
        return
    for node in sorted({n for k in view.missing_keys for n in k.nodes if not k.is_first_node}):
        same = [k.line for k in view.missing_keys if k.nodes == (node,) and not k.is_first_node]
        if len(same) > 1 and first:
            text = f"{_by(view, same)}both wait as --node-rank {node}"
            yield Joining.DUPLICATE_NODE_RANK, rendezvous_finding(view, same, text, [k.line for k in first])
            return


def _duplicates(view: RendezvousView) -> Iterator[Decision]:
    """As many processes as ranks wait for a rank that no process has: two processes have the same rank."""
    waited = {k.ranks for k in view.missing_keys if k.ranks}
    lines = [k.line for k in view.missing_keys if k.ranks]
    if len(waited) != 1 or view.client_counts or view.failed_connections:
        return
    missing = next(iter(waited))
    is_all = {line.source for line in lines} == {i for i, each in enumerate(view.log.sources) if each.lines}
    if missing != (0,) and len(lines) > max(missing) and is_all and not history_of(view.log).failed_exits:
        text = f"{len(lines)} processes wait for rank {missing[0]}, which no process has: two have the same RANK"
        yield Joining.DUPLICATE_RANK, rendezvous_finding(view, lines, text, [])


def _worlds_differ(view: RendezvousView) -> Iterator[Decision]:
    """A process waits for a rank that is not below the world size of the others."""
    sizes = {int(found["size"]): line for line, found in context_lines(view.log, "size")}
    waited = [(max(k.ranks), k.line) for k in view.missing_keys if k.ranks]
    if len(sizes) > 1 or any(rank >= size for rank, _ in waited for size in sizes):
        rank, line = max(waited, default=(None, next(iter(sizes.values()))), key=lambda pair: pair[0] or 0)
        other = next(iter(sizes))
        values = (
            f"one waits for rank {rank}, another has {other}"
            if rank is not None
            else ", ".join(map(str, sorted({*sizes, other})))
        )
        text = f"the processes have different values of WORLD_SIZE: {values}"
        yield Joining.WORLD_SIZE_MISMATCH, rendezvous_finding(view, [line], text, list(sizes.values()))


def _head_missing(view: RendezvousView) -> Iterator[Decision]:
    addresses = {(k.host, k.port) for k in view.failed_connections}
    lines = [k.line for k in view.failed_connections]
    nodes = view.nodes_of(lines)
    if len(addresses) != 1 or view.client_counts or len(nodes) < 2 or len(nodes) != len(view.nodes):
        return
    host, port = next(iter(addresses))
    if host not in view.nodes and not any(host in node for node in view.nodes):
        text = f"{names(nodes)}: could not connect to {host}:{port}; {host} did not start, or its port is closed"
        yield Joining.HEAD_NODE_NEVER_JOINED, rendezvous_finding(view, lines, text, [])


def _node_missing(view: RendezvousView) -> Iterator[Decision]:
    if view.failed_connections or not view.client_counts or len(view.nodes) < 2:
        return
    first = view.client_counts[0]
    if len(view.nodes) > first.joined:
        return
    present = sorted(rank for rank in history_of(view.log).speaking_ranks if rank < first.expected)
    missing = [rank for rank in range(first.expected) if rank not in present] if len(present) == first.joined else []
    who = f"rank {missing[0]}" if len(missing) == 1 else f"{first.expected - first.joined} of {first.expected} clients"
    text = f"{who} did not join: {clients_joined(first)}, output only from {names(sorted(view.nodes))}"
    finding = rendezvous_finding(
        view, [c.line for c in view.client_counts], text, [k.line for k in view.missing_keys], ranks=tuple(missing)
    )
    yield Joining.NODE_NEVER_JOINED, finding


def _unreachable(view: RendezvousView) -> Iterator[Decision]:
    """The master was not reached, for one of several reasons with the same messages."""
    if view.failed_connections:
        first = view.failed_connections[0]
        lines = [k.line for k in view.failed_connections]
        other = f" ({clients_joined(view.client_counts[0])})" if view.client_counts else ""
        text = f"{_by(view, lines)}could not connect to {first.host}:{first.port}{other}"
        also = [c.line for c in view.client_counts]
        found = rendezvous_finding(view, lines, text, also, undetermined=candidates(view))
        yield Joining.STORE_UNREACHABLE, found
        return
    lines = [c.line for c in view.client_counts] or matching_lines(view.log, SWALLOWED + NO_ANSWER)
    if lines:
        text = (
            f"{_by(view, lines)}only {clients_joined(view.client_counts[0])}"
            if view.client_counts
            else f"{_by(view, lines)}no answer from the master address"
        )
        yield Joining.STORE_UNREACHABLE, rendezvous_finding(view, lines, text, [], undetermined=candidates(view))


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
    joined, world = max((found for line in waited if (found := workers_joined(line))), default=(0, 0))
    if joined > world and any(context_lines(view.log, "left_file")):
        return  # a closed rendezvous has its own cause
    if joined > world:
        text = f"{joined} workers joined a group of {world}"
        many = rendezvous_finding(view, waited, text, [], undetermined=TOO_MANY)
        yield Joining.RENDEZVOUS_INCOMPLETE, replace(many, fix=FIX_OF_TOO_MANY)
        return
    ranks = tuple(sorted({rank for k in view.missing_keys for rank in k.ranks}))
    missing = ranks if len({k.ranks for k in view.missing_keys}) == 1 and ranks != (0,) else ()
    reason = f"only {joined} of {world} members joined in time" if joined else "not all members joined in time"
    reason = f"rank {missing[0]} did not publish its address" if len(missing) == 1 else reason
    text = f"{_by(view, lines)}timed out, {reason}"
    finding = rendezvous_finding(view, lines, text, [], missing, candidates(view))
    yield Joining.RENDEZVOUS_INCOMPLETE, finding


def _still_waiting(view: RendezvousView) -> Iterator[Decision]:
    """The log ends while ranks wait and before a time-out, as the log of a hung job does."""
    log = view.log
    for line, counts in ((candidate, workers_joined(candidate)) for candidate in matching_lines(log, RENDEZVOUS)):
        if not counts or counts[0] == counts[1] or history_of(log).progress_after(line):
            continue
        if counts[0] > counts[1]:
            text = f"{counts[0]} workers joined a group of {counts[1]}"
            found = rendezvous_finding(view, [line], text, [], undetermined=TOO_MANY)
            yield Joining.RENDEZVOUS_INCOMPLETE, replace(found, fix=FIX_OF_TOO_MANY)
        else:
            text = f"only {counts[0]} of {counts[1]} members had joined when the log ended"
            waiting = rendezvous_finding(view, [line], text, [], undetermined=candidates(view))
            yield Joining.RENDEZVOUS_INCOMPLETE, replace(waiting, severity=Severity.WARNING)
        return
    yield from _some_members(view)


def _some_members(view: RendezvousView) -> Iterator[Decision]:
    """Lightning counts the members as they join, and the log ends before all have joined."""
    counts = [(line, int(found["member"]), int(found["members"])) for line, found in context_lines(view.log, "member")]
    if not counts or history_of(view.log).has_failed:
        return
    line, _, total = counts[-1]
    joined = len({member for _, member, _ in counts})
    is_end = view.log.sources[line.source].lines - line.number <= LAST_WORDS_LINES
    if 1 < joined < total and is_end and not history_of(view.log).progress_after(line):
        text = f"only {joined} of {total} members had joined when the log ended"
        found = rendezvous_finding(view, [line], text, [], undetermined=candidates(view))
        yield Joining.RENDEZVOUS_INCOMPLETE, replace(found, severity=Severity.WARNING)


def _checked_in_twice(view: RendezvousView) -> Iterator[Decision]:
    """A rank joined NCCL's bootstrap that had already joined."""
    twice = matching_lines(view.log, TWICE)
    if twice:
        ranks = tuple(sorted({int(m[1]) for line in twice if (m := re.search(r"rank (\d+) of", line.text))}))
        text = f"{ranks_named(ranks)}: joined NCCL's bootstrap twice; two processes have the same rank"
        yield Joining.DUPLICATE_RANK, rendezvous_finding(view, twice, text, [], ranks=ranks)


def _without_endpoint(view: RendezvousView) -> Iterator[Decision]:
    """c10d was started without an endpoint, and not all nodes joined."""
    lines = matching_lines(view.log, NO_ENDPOINT)
    waited = matching_lines(view.log, (r"RendezvousTimeoutError",))
    if lines and waited and not view.failed_connections:
        text = f"{_by(view, lines)}c10d without --rdzv-endpoint waits at its own localhost:29400"
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
"""The precise ones first; the last one is the general one."""


def joining_findings(log: Log, why: Joining) -> Iterator[Finding]:
    """The findings of one cause in the decision over all nodes."""
    return (finding for decided, finding in _decide(log) if decided is why)
