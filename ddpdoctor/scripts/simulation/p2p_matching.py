"""Messages between ranks: the sends and receives of a rehearsal, matched as torch would match them.

A blocking send or recv waits for its partner, a collective of the default group waits for everybody, isend and irecv do
not wait here; those of a batch are waited for when the rest has ended. What is still waiting when nobody can go on has no
partner, or waits in a ring. A rehearsal in which one peer is unknown says nothing.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice

from ddpdoctor.scripts.interpreter.simulated_job import RankContext, one_node
from ddpdoctor.scripts.simulation.entry_points import entry_points, rank_contexts
from ddpdoctor.scripts.simulation.joint_paths import call_reach, is_default_group_collective
from ddpdoctor.scripts.simulation.simulate import simulate
from ddpdoctor.scripts.simulation.trace import Event, Simulation
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.vocabulary import P2P

__all__ = ["BlockedCall", "P2PCall", "P2POutcome", "blocked_calls", "p2p_outcomes"]

MAX_RUNS = 6
SIZES = (2, 3, 4)


@dataclass(frozen=True, slots=True, eq=False)
class P2PCall:
    """One call: `peer` None is any sender."""

    event: Event
    rank: int
    peer: int | None
    tag: object

    @property
    def sends(self) -> bool:
        return _sends(self.event)

    @property
    def waits(self) -> bool:
        return self.event.name in ("dist.send", "dist.recv")

    def fits(self, other: P2PCall) -> bool:
        """Whether a send and a receive belong together."""
        if self.sends is other.sends or self.peer not in (None, other.rank) or other.peer not in (None, self.rank):
            return False
        return self.tag == other.tag


@dataclass(frozen=True, slots=True, eq=False)
class BlockedCall:
    """A call that can never end. `kind` is `self`, `nobody` (no such rank), `ring` or `alone`; `other` what the peer does."""

    kind: str
    message: P2PCall
    other: P2PCall | None = None


@dataclass(slots=True, eq=False)
class P2POutcome:
    """What became of the messages of one rehearsal."""

    calls: set[ast.Call] = field(default_factory=set)
    stuck: list[BlockedCall] = field(default_factory=list)
    pairs: list[tuple[P2PCall, P2PCall]] = field(default_factory=list)


def _sends(event: Event) -> bool:
    if event.name != "dist.P2POp":
        return event.name in ("dist.send", "dist.isend")
    what = event.argument(0, "op")
    return what is not None and event.frame.module.names.of(what) == "dist.isend"


def _peer(event: Event) -> ast.expr | None:
    if event.name == "dist.P2POp":
        return event.argument(2, "peer")
    return event.argument(1, "dst" if _sends(event) else "src")


def _steps(run: Simulation) -> list[list[P2PCall | None]] | None:
    """Each rank's messages in order, None for a collective; None when a peer is unknown or in a group."""
    found = []
    for trace in run.traces:
        steps: list[P2PCall | None] = []
        for event in trace.events:
            if event.name in P2P:
                message = _message(event, trace.context)
                if message is None:
                    return None
                steps.append(message)
            elif is_default_group_collective(event) and event.name not in ("forward", "backward"):
                steps.append(None)
        found.append(steps)
    return found


def _message(event: Event, context: RankContext) -> P2PCall | None:
    batched = int(event.name == "dist.P2POp")
    outside = event.argument(None, "group_dst", "group_src", "group_peer")
    if event.argument(2 + batched, "group") is not None or outside is not None:
        return None
    node = _peer(event)
    peer = event.read(node) if node is not None else None
    if node is not None and type(peer) is not int and peer is not None:
        return None
    tag = event.argument(3 + batched, "tag")
    read = event.read(tag) if tag is not None else 0
    if type(read) is not int:
        return None
    return P2PCall(event, context.rank, peer if isinstance(peer, int) else None, read)


def _played(run: Simulation) -> P2POutcome | None:
    steps = _steps(run)
    if steps is None or not any(isinstance(s, P2PCall) for each in steps for s in each):
        return None
    size = len(steps)
    result = P2POutcome()
    for message in (s for each in steps for s in each if isinstance(s, P2PCall)):
        result.calls.add(message.event.call)
        if message.peer == message.rank:
            result.stuck.append(BlockedCall("self", message))
        elif message.peer is not None and not 0 <= message.peer < size:
            result.stuck.append(BlockedCall("nobody", message))
    if not result.stuck:
        _play(steps, result)
    return result


def _play(steps: list[list[P2PCall | None]], result: P2POutcome) -> None:
    at = [0] * len(steps)
    posted: list[P2PCall] = []
    moved = True
    while moved:
        moved = False
        for rank, mine in enumerate(steps):
            while at[rank] < len(mine) and (now := mine[at[rank]]) is not None:
                partner = _partner(now, steps, at, posted)
                if partner is not None:
                    result.pairs.append((now, partner) if now.sends else (partner, now))
                    if partner in posted:
                        posted.remove(partner)
                    else:
                        at[partner.rank] += 1
                elif not now.waits:
                    posted.append(now)
                else:
                    break
                at[rank] += 1
                moved = True
        if all(a < len(s) and s[a] is None for a, s in zip(at, steps, strict=True)):
            at = [a + 1 for a in at]
            moved = True
    result.stuck += _blocked(steps, at)
    if not result.stuck:
        result.stuck += [BlockedCall("alone", m) for m in posted if m.event.name == "dist.P2POp" and m.peer is not None]


def _partner(now: P2PCall, steps: list[list[P2PCall | None]], at: list[int], posted: list[P2PCall]) -> P2PCall | None:
    """A message that is posted already, or that another rank waits in."""
    for message in posted:
        if now.fits(message):
            return message
    for rank, others in enumerate(steps):
        other = others[at[rank]] if rank != now.rank and at[rank] < len(others) else None
        if other is not None and other.waits and now.fits(other):
            return other
    return None


def _blocked(steps: list[list[P2PCall | None]], at: list[int]) -> list[BlockedCall]:
    found = []
    for rank, mine in enumerate(steps):
        now = mine[at[rank]] if at[rank] < len(mine) else None
        if now is None or now.peer is None:
            continue
        theirs = steps[now.peer]
        ahead = theirs[at[now.peer] :]
        later = next((m for m in ahead if isinstance(m, P2PCall) and now.fits(m)), None)
        here = ahead[0] if ahead else None
        if later is not None and isinstance(here, P2PCall):
            found.append(BlockedCall("ring", now, here))
        elif later is None:
            found.append(BlockedCall("alone", now, here))
    return found


@lru_cache(maxsize=64)
def p2p_outcomes(module: Module) -> tuple[tuple[P2POutcome, ...], ...]:
    """For each world size that the text allows, what became of the messages of every way through its roots."""
    if not module.calls(*P2P):
        return ()
    reach = call_reach(module)
    found = []
    for contexts in _worlds(module):
        played: list[P2POutcome] = []
        for root in entry_points(module, reach):
            for run in islice(simulate(module, root, contexts, reach), MAX_RUNS):
                known = not run.is_open and not any(t.raised for t in run.traces) and _is_of_all(module, run)
                result = _played(run) if known else None
                if result is not None:
                    played.append(result)
        found.append(tuple(played))
    return tuple(found)


def _is_of_all(module: Module, run: Simulation) -> bool:
    """Whether every rank comes here: a program, or a function that tells the ranks apart itself."""
    if isinstance(run.root, ast.Module) or any(s.function is run.root for s in module.spawns):
        return True
    messages = [[e for e in t.events if e.name in P2P] for t in run.traces]
    is_method = isinstance(module.index.parents.get(run.root), ast.ClassDef)
    if is_method and len({_sends(e) for each in messages for e in each}) < 2:
        return False  # the other side of the messages may stand in another class
    if any(run.divergent(e.tests) for each in messages for e in each):
        return True
    peers = [[repr(e.read(_peer(e))) for e in each] for each in messages]
    return any(p != peers[0] for p in peers[1:])


def _worlds(module: Module) -> list[tuple[RankContext, ...]]:
    contexts = rank_contexts(module)
    if contexts[-1].node_rank == 0:
        return [contexts]
    return [one_node(size) for size in SIZES]


@lru_cache(maxsize=64)
def blocked_calls(module: Module) -> tuple[BlockedCall, ...]:
    """Calls that never end, whatever the world size in which some rank does them: each call once."""
    found: dict[ast.Call, BlockedCall] = {}
    ended: set[ast.Call] = set()
    for played in p2p_outcomes(module):
        stuck = {s.message.event.call: s for each in played for s in each.stuck}
        ended |= {call for each in played for call in each.calls if call not in stuck}
        found = {**stuck, **found}
    return tuple(stuck for call, stuck in found.items() if call not in ended)
