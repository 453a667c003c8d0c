"""SCRIPT034, SCRIPT035, and SCRIPT039: send and recv between ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.script import Script
from ddpdoctor.findings import CausalStage, Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, dist_of, point, replace, under, with_keyword, without_argument
from ddpdoctor.rules.script.rank_branches import blocks
from ddpdoctor.rules.script.script_questions import argument, each_rank, has_more, start_of
from ddpdoctor.scripts.interpreter.simulated_job import one_node
from ddpdoctor.scripts.simulation.entry_points import rank_contexts
from ddpdoctor.scripts.simulation.p2p_matching import BlockedCall, P2PCall, blocked_calls
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.vocabulary import GROUP_POSITION

if TYPE_CHECKING:
    from ddpdoctor.facts.hang import Hang
    from ddpdoctor.facts.rehearsal import Rehearsal

_ROOTS = {
    "dist.broadcast": (1, "src"),
    "dist.broadcast_object_list": (1, "src"),
    "dist.gather": (2, "dst"),
    "dist.reduce": (1, "dst"),
    "dist.scatter": (2, "src"),
}


def _stuck(module: Module, *kinds: str) -> Iterator[BlockedCall]:
    for blocked in blocked_calls(module):
        if blocked.kind in kinds and blocked.message.event.call in module.index.parents:
            yield blocked


@cause("SCRIPT034", "send-recv-order", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def send_recv_order(script: Script) -> Iterator[Finding]:
    """Two ranks both send first or both receive first.

    ## Why it matters
    send and recv block until the other rank makes the matching call; with Gloo, even for one element. Both ranks wait:
    `Timed out waiting 1800000ms for send operation to complete`.

    ## Fix
    Order by rank: even ranks send first, odd ranks receive first.

    isend and irecv, or batch_isend_irecv, need no order.

    ## Example
        # before
        dist.send(x, dst=1 - rank)
        dist.recv(y, src=1 - rank)
        # Timed out waiting 1800000ms for send operation to complete

        # after
        request = dist.isend(x, dst=1 - rank)
        dist.recv(y, src=1 - rank)
        request.wait()
    """
    for module in modules(script):
        reported: set[tuple[int, ...]] = set()
        for blocked in _stuck(module, "cycle"):
            other = blocked.other.event.call if blocked.other is not None else blocked.message.event.call
            places = tuple(sorted((blocked.message.event.call.lineno, other.lineno)))
            if places in reported:
                continue
            reported.add(places)
            call = blocked.message.event.call
            what = "sends" if blocked.message.sends else "receives"
            yield point(
                module,
                call,
                f"rank {blocked.message.rank} {what} first, and rank {blocked.message.peer} also {what} first "
                f"(line {other.lineno})",
                "send on one side, recv on the other",
                label="both ranks wait: deadlock",
                edits=_without_waiting(module, call, other),
            )


def _without_waiting(module: Module, call: ast.Call, other: ast.Call) -> tuple[Edit, ...]:
    """Replace send with isend and wait after the recv, if all ranks run the same two lines."""
    statement = module.index.statement(call)
    block = next((b for b in blocks(module.index.parents[statement]) if statement in b), [])
    following = block[block.index(statement) + 1] if block and statement is not block[-1] else None
    names = ("dist.send", "dist.recv")
    pair = [s.value for s in (statement, following) if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)]
    if other is not call or len(pair) < 2 or {module.names.of(p.func) for p in pair} != set(names) or following is None:
        return ()
    send, recv = pair if module.names.of(pair[0].func) == names[0] else pair[::-1]
    prefix = code(module, send.func).removesuffix("send")
    text = f"request = {prefix}i{code(module, send, 400)[len(prefix) :]}"
    indent = " " * statement.col_offset
    return (
        replace(module, statement, text),
        replace(module, following, f"{code(module, recv, 400)}\n{indent}request.wait()"),
    )


@cause("SCRIPT035", "send-without-recv", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def send_without_recv(script: Script) -> Iterator[Finding]:
    """A send has no matching recv.

    ## Why it matters
    The rank waits for a message, or for a tag, that the other rank never posts. It fails with `Timed out waiting
    1800000ms for send operation to complete`.

    ## Fix
    Pair every send with a recv on the other rank, with the same tag.

    ## Example
        # before
        if rank == 0:
            dist.send(x, dst=1, tag=7)
        else:
            dist.recv(x, src=0)
        # Timed out waiting 1800000ms for send operation to complete

        # after
        if rank == 0:
            dist.send(x, dst=1, tag=7)
        else:
            dist.recv(x, src=0, tag=7)
    """
    for module in modules(script):
        unmatched = list(_stuck(module, "unmatched"))
        for blocked in unmatched:
            message = blocked.message
            what = ("send", "recv") if message.sends else ("recv", "send")
            tag = f" with tag {message.tag}" if message.tag else ""
            yield point(
                module,
                message.event.call,
                f"{what[0]}{tag} on rank {message.rank} has no matching {what[1]} on rank {message.peer}",
                f"a matching {what[1]}",
                label="it waits until the timeout",
                fix=f"Call {what[1]} on rank {message.peer} with the same tag.",
                edits=_same_tag(module, message, [other.message for other in unmatched]),
            )


def _same_tag(module: Module, message: P2PCall, unmatched: list[P2PCall]) -> tuple[Edit, ...]:
    """Copy the tag of the send to the only recv of the same two ranks that waits for another tag."""
    partners = {
        other.event.call: other
        for other in unmatched
        if (other.rank, other.peer, message.sends) == (message.peer, message.rank, not other.sends)
    }
    if len(partners) != 1:
        return ()
    sent, received = sorted((message, *partners.values()), key=lambda call: not call.sends)
    tag = received.event.argument(3, "tag")
    if tag is None:
        return (with_keyword(module, received.event.call, f"tag={sent.tag}"),)
    if sent.event.argument(3, "tag") is None:
        return without_argument(module, received.event.call, tag)
    return (replace(module, tag, str(sent.tag)),)


@cause(
    "SCRIPT039",
    "send-to-self",
    Severity.ERROR,
    signatures=(r"rank should not be the same as the rank of the current process", r"invalid root rank: \d+"),
)
def send_to_self(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """A point-to-point call names its own rank or a rank that does not exist.

    ## Why it matters
    A send to the rank itself fails with `Invalid destination rank: destination rank should not be the same as the rank
    of the current process`. With a rank beyond the world, the others wait for a key until the timeout.

    ## Fix
    Keep the peer inside the world: `(rank + 1) % world_size` for a ring.

    ## Example
        # before
        request = dist.isend(x, dst=rank + 1)
        # last rank: waits for a rank that does not exist

        # after
        request = dist.isend(x, dst=(rank + 1) % world_size)
    """
    for module in modules(script):
        for blocked in _stuck(module, "self", "no_such_rank"):
            message = blocked.message
            verb = "sends to" if message.sends else "receives from"
            peer = "itself" if blocked.kind == "self" else f"rank {message.peer}, which does not exist"
            yield point(
                module,
                message.event.call,
                f"rank {message.rank} {verb} {peer}",
                "0 <= peer < world_size, not the rank itself",
                label="ValueError" if blocked.kind == "self" else "no such rank in this world",
                edits=_within(module, message) if blocked.kind == "no_such_rank" else (),
            )
        start = start_of(module, launch)
        yield from _beyond(module, start.world if start is not None and start.gives_ranks else None)


def _within(module: Module, message: P2PCall) -> tuple[Edit, ...]:
    """Wrap the peer of an isend around in a ring; guard a send at the ends of a line."""
    call = message.event.call
    peer = argument(call, 1, "dst" if message.sends else "src")
    if not isinstance(peer, ast.BinOp) or not isinstance(peer.op, (ast.Add, ast.Sub)):
        return ()
    size = f"{dist_of(module)}.get_world_size()"
    function = module.index.function_of(call)
    free = module.calls("dist.isend", "dist.irecv")
    if any(module.index.function_of(c) is function for c in free):
        return (replace(module, peer, f"({code(module, peer)}) % {size}"),)
    ends = f"{code(module, peer)} < {size}" if isinstance(peer.op, ast.Add) else f"{code(module, peer)} >= 0"
    return under(module, module.index.statement(call), f"if {ends}:")


def _beyond(module: Module, started: int | None) -> Iterator[Finding]:
    """Roots of collectives that are not ranks of the world, such as `src=world_size`; `started`: ranks of the launch line."""
    for name, (position, word) in _ROOTS.items():
        for call in module.calls(name):
            root = argument(call, position, word)
            if root is None or has_more(call) or argument(call, GROUP_POSITION.get(name), "group") is not None:
                continue
            places = rank_contexts(module, module.index.function_of(call))
            if started is not None and isinstance(root, ast.Constant) and isinstance(root.value, int):
                places = one_node(started) if 1 < started <= 64 else places
            roots = each_rank(module, root, places, trusting=True)
            far = all(type(f) is int and f >= len(places) for f in roots)
            fixed = isinstance(root, ast.Constant) and places[-1].node_rank != 0
            if far and not fixed:
                yield point(
                    module,
                    call,
                    f"{word}={code(module, root)} is rank {roots[0]}, but the world has {len(places)} ranks",
                    f"0 <= {word} < world_size",
                    label="invalid root rank",
                    fix=f"Pass a rank below the world size as {word}.",
                    edits=(replace(module, root, f"{code(module, root)} - 1"),) if {*roots} == {len(places)} else (),
                )


@send_recv_order.look
def send_order(hang: Hang) -> Iterator[Finding]:
    """Both ends send first, or both receive first."""
    from ddpdoctor.dumps.conflict import ConflictCause
    from ddpdoctor.rules.hang.dump_findings import conflict_finding, conflicts

    for conflict in conflicts(hang, ConflictCause.SEND_ORDER):
        yield conflict_finding(hang, conflict)


@send_without_recv.look
def no_receiver(hang: Hang) -> Iterator[Finding]:
    """The other end of a send or recv was never posted."""
    from ddpdoctor.dumps.conflict import ConflictCause
    from ddpdoctor.rules.hang.dump_findings import conflict_finding, conflicts

    for conflict in conflicts(hang, ConflictCause.NO_RECEIVER):
        yield conflict_finding(hang, conflict).if_certain(conflict.is_certain)


@send_recv_order.look
def same_direction(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Two ranks both send, or both receive, first."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    yield from difference_findings(rehearsal, DifferenceKind.SEND_ORDER, label="both wait for the other: deadlock")


@send_without_recv.look
def no_counterpart(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A send or receive whose peer never makes its counterpart."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    yield from difference_findings(rehearsal, DifferenceKind.UNMATCHED, label="no rank makes the matching call: hang")
