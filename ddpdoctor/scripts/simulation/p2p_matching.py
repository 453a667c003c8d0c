"""Point-to-point matching: pairs the sends and receives of a simulation as torch would.

A blocking send or recv waits for its partner, and a collective of the default group waits for all ranks. isend and irecv do not
wait here; those of a batch are waited for after the rest. A call that is still waiting when no rank can continue has
no partner, or waits in a cycle. Nothing is concluded from a simulation with an unknown peer.
"""

from __future__ import annotations

import ast
from dataclasses import field
from functools import lru_cache
from itertools import islice

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.scripts.interpreter.simulated_job import RankContext, one_node
from ddpdoctor.scripts.simulation.entry_points import entry_points, rank_contexts
from ddpdoctor.scripts.simulation.joint_paths import COMMUNICATION, is_default_group_collective
from ddpdoctor.scripts.simulation.simulate import simulate
from ddpdoctor.scripts.simulation.trace import Event, Simulation
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.vocabulary import P2P

__all__ = ["BlockedCall", "P2PCall", "P2POutcome", "blocked_calls", "p2p_outcomes"]

MAX_SIMULATIONS = 6
"""Most paths through one entry point whose messages are matched."""
WORLD_SIZES = (2, 3, 4)
"""The simulated jobs, if the source does not fix the world size."""


@dataclass(frozen=True, slots=True, eq=False)
class P2PCall:
    """One send or receive of one rank; `peer` None is any sender."""

    event: Event
    rank: int
    peer: int | None
    tag: object

    @property
    def sends(self) -> bool:
        """Whether it is a send."""
        return _sends(self.event)

    @property
    def waits(self) -> bool:
        """Whether it blocks until its partner joins."""
        return self.event.name in ("dist.send", "dist.recv")

    def fits(self, other: P2PCall) -> bool:
        """Whether a send and a receive match."""
        if self.sends is other.sends or self.peer not in (None, other.rank) or other.peer not in (None, self.rank):
            return False
        return self.tag == other.tag


@dataclass(frozen=True, slots=True, eq=False)
class BlockedCall:
    """A call that never ends. `kind` is `self`, `no_such_rank`, `cycle` or `unmatched` (no partner); `other` is what the peer
    waits in."""

    kind: str
    message: P2PCall
    other: P2PCall | None = None


@dataclass(slots=True, eq=False)
class P2POutcome:
    """The outcome of the sends and receives of one simulation: which calls there are, which never end, and which match."""

    calls: set[ast.Call] = field(default_factory=set)
    stuck: list[BlockedCall] = field(default_factory=list)
    pairs: list[tuple[P2PCall, P2PCall]] = field(default_factory=list)


def _sends(event: Event) -> bool:
    if event.name != "dist.P2POp":
        return event.name in ("dist.send", "dist.isend")
    operation = event.argument(0, "op")
    return operation is not None and event.frame.module.names.of(operation) == "dist.isend"


def _peer(event: Event) -> ast.expr | None:
    if event.name == "dist.P2POp":
        return event.argument(2, "peer")
    return event.argument(1, "dst" if _sends(event) else "src")


def _steps(simulation: Simulation) -> list[list[P2PCall | None]] | None:
    """Each rank's sends and receives in order, with None for a collective; None if a peer is unknown or in a group."""
    by_rank = []
    for trace in simulation.traces:
        steps: list[P2PCall | None] = []
        for event in trace.events:
            if event.name in P2P:
                message = _p2p_call(event, trace.context)
                if message is None:
                    return None
                steps.append(message)
            elif is_default_group_collective(event) and event.name not in ("forward", "backward"):
                steps.append(None)
        by_rank.append(steps)
    return by_rank


def _p2p_call(event: Event, context: RankContext) -> P2PCall | None:
    is_batched = int(event.name == "dist.P2POp")
    group_peer = event.argument(None, "group_dst", "group_src", "group_peer")
    if event.argument(2 + is_batched, "group") is not None or group_peer is not None:
        return None
    node = _peer(event)
    peer = event.read(node) if node is not None else None
    if node is not None and type(peer) is not int and peer is not None:
        return None
    tag = event.argument(3 + is_batched, "tag")
    tag_value = event.read(tag) if tag is not None else 0
    if type(tag_value) is not int:
        return None
    return P2PCall(event, context.rank, peer if isinstance(peer, int) else None, tag_value)


def _outcome(simulation: Simulation) -> P2POutcome | None:
    """Match the messages of one simulation; None if there are none or one is unknown."""
    steps = _steps(simulation)
    messages = [m for rank_steps in steps or () for m in rank_steps if m is not None]
    if steps is None or not messages:
        return None
    outcome = P2POutcome()
    for message in messages:
        outcome.calls.add(message.event.call)
        if message.peer == message.rank:
            outcome.stuck.append(BlockedCall("self", message))
        elif message.peer is not None and not 0 <= message.peer < len(steps):
            outcome.stuck.append(BlockedCall("no_such_rank", message))
    if not outcome.stuck:
        _match(steps, outcome)
    return outcome


def _match(steps: list[list[P2PCall | None]], outcome: P2POutcome) -> None:
    """Let each rank advance until it has to wait; then all complete a collective together. Ends when no rank can advance."""
    positions = [0] * len(steps)
    posted: list[P2PCall] = []
    advanced = True
    while advanced:
        advanced = False
        for rank in range(len(steps)):
            while _advance(rank, steps, positions, posted, outcome):
                advanced = True
        if all(p < len(s) and s[p] is None for p, s in zip(positions, steps, strict=True)):
            positions = [p + 1 for p in positions]
            advanced = True
    outcome.stuck += _blocked(steps, positions)
    if not outcome.stuck:
        unmatched = (m for m in posted if m.event.name == "dist.P2POp" and m.peer is not None)
        outcome.stuck += [BlockedCall("unmatched", message) for message in unmatched]


def _advance(
    rank: int,
    steps: list[list[P2PCall | None]],
    positions: list[int],
    posted: list[P2PCall],
    outcome: P2POutcome,
) -> bool:
    """Execute the next send or receive of a rank, unless it has to wait or a collective is next."""
    current = steps[rank][positions[rank]] if positions[rank] < len(steps[rank]) else None
    if current is None:
        return False
    partner = _partner(current, steps, positions, posted)
    if partner is not None:
        outcome.pairs.append((current, partner) if current.sends else (partner, current))
        if partner in posted:
            posted.remove(partner)
        else:
            positions[partner.rank] += 1
    elif current.waits:
        return False
    else:
        posted.append(current)
    positions[rank] += 1
    return True


def _partner(
    current: P2PCall, steps: list[list[P2PCall | None]], positions: list[int], posted: list[P2PCall]
) -> P2PCall | None:
    """A matching message that is already posted, or in which another rank waits."""
    for message in posted:
        if current.fits(message):
            return message
    for rank, others in enumerate(steps):
        other = others[positions[rank]] if rank != current.rank and positions[rank] < len(others) else None
        if other is not None and other.waits and current.fits(other):
            return other
    return None


def _blocked(steps: list[list[P2PCall | None]], positions: list[int]) -> list[BlockedCall]:
    """The calls in which ranks still wait: for a peer that also waits, or for a partner that does not exist."""
    blocked = []
    for rank, own in enumerate(steps):
        current = own[positions[rank]] if positions[rank] < len(own) else None
        if current is None or current.peer is None:
            continue
        ahead = steps[current.peer][positions[current.peer] :]
        has_partner = any(isinstance(m, P2PCall) and current.fits(m) for m in ahead)
        peer_waits_in = ahead[0] if ahead else None
        if not has_partner:
            blocked.append(BlockedCall("unmatched", current, peer_waits_in))
        elif isinstance(peer_waits_in, P2PCall):
            blocked.append(BlockedCall("cycle", current, peer_waits_in))
    return blocked


@lru_cache(maxsize=64)
def p2p_outcomes(module: Module) -> tuple[tuple[P2POutcome, ...], ...]:
    """For each world size that the source allows, the outcomes of every path through its entry points."""
    if not module.calls(*P2P):
        return ()
    by_world_size = []
    for contexts in _jobs(module):
        outcomes: list[P2POutcome] = []
        for root in entry_points(module, COMMUNICATION):
            for simulation in islice(simulate(module, root, contexts, COMMUNICATION), MAX_SIMULATIONS):
                is_complete = not simulation.is_open and not any(t.raised for t in simulation.traces)
                outcome = _outcome(simulation) if is_complete and _involves_all_ranks(module, simulation) else None
                if outcome is not None:
                    outcomes.append(outcome)
        by_world_size.append(tuple(outcomes))
    return tuple(by_world_size)


def _involves_all_ranks(module: Module, simulation: Simulation) -> bool:
    """Whether every rank executes the root: it is a program, or a function that checks the rank itself."""
    root = simulation.root
    if isinstance(root, ast.Module) or any(s.function is root for s in module.spawns):
        return True
    messages = [[e for e in t.events if e.name in P2P] for t in simulation.traces]
    is_method = isinstance(module.index.parents.get(root), ast.ClassDef)
    if is_method and len({_sends(e) for events in messages for e in events}) < 2:
        return False  # the other side of the messages may be in another class
    if any(simulation.divergent(e.tests) for events in messages for e in events):
        return True
    peers = [[repr(e.read(_peer(e))) for e in events] for events in messages]
    return any(p != peers[0] for p in peers[1:])


def _jobs(module: Module) -> list[tuple[RankContext, ...]]:
    contexts = rank_contexts(module)
    if contexts[-1].node_rank == 0:
        return [contexts]
    return [one_node(size) for size in WORLD_SIZES]


@lru_cache(maxsize=64)
def blocked_calls(module: Module) -> tuple[BlockedCall, ...]:
    """Calls that never end in any world size in which some rank executes them, each once."""
    blocked: dict[ast.Call, BlockedCall] = {}
    ended: set[ast.Call] = set()
    for outcomes in p2p_outcomes(module):
        stuck = {b.message.event.call: b for outcome in outcomes for b in outcome.stuck}
        ended |= {call for outcome in outcomes for call in outcome.calls if call not in stuck}
        blocked = {**stuck, **blocked}
    return tuple(b for call, b in blocked.items() if call not in ended)
