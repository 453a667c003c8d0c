"""SCRIPT024 to SCRIPT027 and SCRIPT033: the ranks do not call the same collectives."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import CausalStage, Finding, Severity, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, point
from ddpdoctor.rules.script.rewriting import agreed, called_by_all, in_one_order, reached_by_all
from ddpdoctor.rules.script.script_questions import argument, each_rank, is_quiet
from ddpdoctor.scripts.simulation.divergence import (
    Divergence,
    DivergenceKind,
    divergences,
)
from ddpdoctor.scripts.simulation.entry_points import rank_contexts
from ddpdoctor.scripts.simulation.joint_paths import is_default_group_collective
from ddpdoctor.scripts.syntax.index import Binding
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.dumps.rank_activity import RankActivity
    from ddpdoctor.facts.hang import Hang
    from ddpdoctor.facts.log import Log

_WORDS = {"backward": "the backward pass of the wrapped model", "forward": "the forward pass of the wrapped model"}


def _named(disagreement: Divergence) -> str:
    name = disagreement.event.name
    return _WORDS.get(name, name.replace("dist.", "").replace("dcp.", ""))


def _found(script: Script, kind: str, *, data: bool = False) -> Iterator[tuple[Module, Divergence]]:
    for module in modules(script):
        for each in divergences(module):
            if each.data is data and (each.kind == kind or kind == ""):
                yield module, each


def _test(module: Module, disagreement: Divergence) -> str:
    node = disagreement.test.node
    if isinstance(node, (ast.If, ast.While)):
        return f"`{code(module, node.test, 50)}` (line {node.lineno})"
    if isinstance(node, ast.ExceptHandler):
        caught = f" {code(module, node.type, 50)}" if node.type is not None else ""
        return f"`except{caught}` (line {node.lineno})"
    if isinstance(node, (ast.expr, ast.pattern)):
        case = "case " if isinstance(node, ast.pattern) else ""
        return f"`{case}{code(module, node, 50)}` (line {node.lineno})"
    return f"the decorator of {getattr(node, 'name', 'the function')}"


def _place(disagreement: Divergence) -> str:
    """Where the collective itself stands when it is not at the place that is shown."""
    event = disagreement.event
    if event.call is disagreement.at:
        return ""
    return f" (line {event.call.lineno})"


def _softer(disagreement: Divergence) -> Severity | None:
    """A forward pass communicates when the model has buffers, without gradients hardly ever."""
    event = disagreement.event
    if event.name != "forward":
        return None
    around = [p for p, _ in event.frame.module.index.enclosing(event.call)]
    quiet = any(is_quiet(p) for p in around)
    return Severity.NOTE if quiet else Severity.WARNING


@cause("SCRIPT024", "collective-in-rank-branch", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def collective_in_rank_branch(script: Script) -> Iterator[Finding]:
    """A collective runs inside a branch that only some ranks enter.

    ## Why it matters
    The ranks that enter wait for those that do not. Their next collective pairs with this one, so that the hang or the
    error (`Timed out waiting 1800000ms for recv operation to complete`, or NCCL's watchdog) appears at an innocent
    later line. A checkpoint of a sharded model and the forward pass of a wrapped model communicate as well.

    ## Fix
    Call it on all ranks, outside of the branch; use `ddp.module` for an evaluation on rank 0 alone.
    """
    for module, each in _found(script, DivergenceKind.BRANCH):
        name = _named(each)
        whose = "" if is_default_group_collective(each.event) else " of its group"
        yield point(
            module,
            each.at,
            f"{name}{_place(each)} runs only where {_test(module, each)} is {str(each.test.taken).lower()}: those "
            "ranks wait for the "
            f"others, which never call it; expected it on all ranks{whose}",
            "the same collectives on every rank",
            severity=_softer(each),
            edits=called_by_all(module, each) if each.event.name != "forward" and not whose else (),
        )


@cause("SCRIPT025", "early-exit-in-rank-branch", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def early_exit_in_rank_branch(script: Script) -> Iterator[Finding]:
    """A rank leaves before a collective that the others enter.

    ## Why it matters
    The rank that leaves ends well, with exit code 0. The others get `Connection closed by peer` or wait for it until
    the timeout.

    ## Fix
    Let all ranks reach the collective, or decide together: all_reduce the wish to stop.
    """
    for module, each in _found(script, DivergenceKind.EXIT):
        yield point(
            module,
            each.at,
            f"ranks for which {_test(module, each)} is {str(each.test.taken).lower()} leave here, the others go on "
            f"to {_named(each)} in "
            f"line {each.event.call.lineno} and wait for them; expected all ranks to reach it",
            f"all ranks in line {each.event.call.lineno}",
            edits=reached_by_all(module, each),
        ).if_certain(each.sure)


@cause("SCRIPT026", "rank-dependent-control-flow", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def rank_dependent_control_flow(script: Script) -> Iterator[Finding]:
    """Data on one rank decides whether it enters a collective.

    ## Why it matters
    A batch without labels, a loss that is not finite or an early stop on one rank: that rank skips what the others wait
    in. It happens at a random step, and the error names whichever rank waited.

    ## Fix
    Take the same path on all ranks: all_reduce the decision first, or compute a loss of zero over all parameters.
    """
    told: set[ast.AST] = set()
    found = list(_found(script, "", data=True))
    for module, each in sorted(found, key=lambda f: f[1].at not in set(ast.walk(f[1].test.node))):
        failed = isinstance(each.test.node, ast.ExceptHandler)
        if each.test.node in told or _may_join(module, each.test.node):
            continue
        told.add(each.test.node)
        looks = "runs where this rank alone fails" if failed else "looks at this rank's own data"
        yield point(
            module,
            each.test.node if failed else each.at,
            f"{_test(module, each)} {looks} and decides whether it reaches {_named(each)} in "
            "line "
            f"{each.event.call.lineno}; ranks that decide otherwise wait; expected one decision for all ranks",
            "a decision that all ranks share",
            severity=Severity.WARNING if failed else None,
            edits=agreed(module, each),
        )


def _may_join(module: Module, node: ast.AST) -> bool:
    """Whether `with model.join():` or `with Join([model]):` stands around, where ranks may skip a batch."""
    around = [p for p, _ in module.index.enclosing(node) if isinstance(p, (ast.With, ast.AsyncWith))]
    opened = [item.context_expr for each in around for item in each.items]
    made = [c.func for c in opened if isinstance(c, ast.Call)]
    names = {getattr(f, "attr", getattr(f, "id", "")) for f in made}
    kept = [b.value for f in made if isinstance(f, ast.Name) for b in _bindings(module, f)]
    names |= {v.attr for v in kept if isinstance(v, ast.Attribute)}
    return bool(names & {"join", "Join"})


def _bindings(module: Module, name: ast.Name) -> list[Binding]:
    bound = module.names.bindings(name.id, module.index.scope(name))
    return bound[1] if bound is not None else []


@cause("SCRIPT027", "collective-order-mismatch", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def collective_order_mismatch(script: Script) -> Iterator[Finding]:
    """The ranks call collectives in different orders.

    ## Why it matters
    Each side waits in its own call until the timeout. With `TORCH_DISTRIBUTED_DEBUG=DETAIL` torch says at once
    `Detected mismatch between collectives on ranks`.

    ## Fix
    Call the collectives in one order on all ranks, outside of the branch.
    """
    for module, each in _found(script, DivergenceKind.ORDER):
        other = each.other
        instead = (
            ""
            if other is None
            else f", while the others are in {other.name.replace('dist.', '')} (line {other.call.lineno})"
        )
        yield point(
            module,
            each.at,
            f"some ranks call {_named(each)} here{instead}: the calls do not match and both sides wait; expected one "
            "order on all "
            "ranks",
            "the same collectives in the same order",
            edits=in_one_order(module, each),
        )


@cause("SCRIPT033", "new-group-on-some-ranks", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def new_group_on_some_ranks(script: Script) -> Iterator[Finding]:
    """new_group is called by some ranks only.

    ## Why it matters
    Nothing happens at first. The next new_group on all ranks waits for a key that the others never write, because the
    ranks count their groups: `wait timeout after …, keys: /default_pg/0//2//cpu//0/1`.

    ## Fix
    Call new_group on all ranks, members or not, in the same order; or give `use_local_synchronization=True`.
    """
    for module, each in _found(script, DivergenceKind.GROUP):
        yield point(
            module,
            each.at,
            f"{_named(each)} runs only where {_test(module, each)} is {str(each.test.taken).lower()}: the ranks "
            "number their groups "
            "differently from here on; expected it on all ranks, members or not",
            "new_group on every rank",
            edits=called_by_all(module, each),
        )
    for module in modules(script):
        for call in module.calls("dist.new_group"):
            if _is_of_each(module, call):
                yield point(
                    module,
                    call,
                    "every rank makes a group of other ranks here, and the groups count as one: their members look for "
                    "each other under one name; expected all groups on every rank, in one order",
                    "new_group for all groups on every rank",
                )


def _is_of_each(module: Module, call: ast.Call) -> bool:
    """Whether the ranks of a group are computed from the own rank; a group of that rank alone does no harm."""
    ranks = argument(call, 0, "ranks")
    if ranks is None or argument(call, None, "use_local_synchronization") is not None:
        return False
    found = each_rank(module, ranks, rank_contexts(module, module.index.function_of(call)), trusting=True)
    plain = all(isinstance(f, (list, tuple)) and len(f) > 1 and all(type(r) is int for r in f) for f in found)
    return plain and any(f != found[0] for f in found[1:])


@collective_in_rank_branch.look
def in_rank_branch(hang: Hang) -> Iterator[Finding]:
    """Some ranks call one collective more."""
    from ddpdoctor.dumps.conflict import ConflictCause
    from ddpdoctor.rules.hang.dump_findings import conflict_finding, conflicts

    for each in conflicts(hang, ConflictCause.EXTRA):
        yield conflict_finding(hang, each)


@rank_dependent_control_flow.look
def rank_dependent(hang: Hang) -> Iterator[Finding]:
    """Some ranks leave a collective out."""
    from ddpdoctor.dumps.conflict import ConflictCause
    from ddpdoctor.rules.hang.dump_findings import conflict_finding, conflicts

    for each in conflicts(hang, ConflictCause.SKIPPED):
        yield conflict_finding(hang, each)


@collective_order_mismatch.look
def order(hang: Hang) -> Iterator[Finding]:
    """The calls stand in different orders, in one group or across groups."""
    from ddpdoctor.dumps.conflict import ConflictCause
    from ddpdoctor.rules.hang.dump_findings import conflict_finding, conflicts

    for each in conflicts(hang, ConflictCause.ORDER):
        words = "" if each.is_certain else "; another order, or a call that only some ranks make"
        yield conflict_finding(hang, each, words)
    for each in conflicts(hang, ConflictCause.CYCLE):
        yield conflict_finding(hang, each)


@collective_order_mismatch.look
def in_different_calls(hang: Hang) -> Iterator[Finding]:
    """Ranks that wait in collectives at different places of the script."""
    from ddpdoctor.dumps.rank_activity import Activity
    from ddpdoctor.rules.hang.rank_findings import jobs_of

    for job in jobs_of(hang):
        places: dict[str, list[RankActivity]] = {}
        for each in job.waiting:
            if each.activity is Activity.COLLECTIVE and each.frame is not None:
                places.setdefault(str(each.frame), []).append(each)
        if len(places) > 1 and len(job.waiting) == len(job.ranks):
            yield _unlike(sorted(places.items(), key=lambda item: len(item[1])))


def _unlike(places: list[tuple[str, list[RankActivity]]]) -> Finding:
    from ddpdoctor.dumps.conflict import ranges
    from ddpdoctor.rules.hang.rank_findings import ranks_of

    parts = [f"{ranges(ranks_of(group))} in a collective at {place}" for place, group in places]
    odd = ranks_of(places[0][1])
    is_tie = len(places[0][1]) == len(places[-1][1])
    blamed = tuple(sorted(rank for _, group in places for rank in ranks_of(group))) if is_tie else odd
    frame = places[0][1][0].frame
    return Finding(
        f"{'; '.join(parts[:4])}: they wait for each other, in another order or in a call that only some make",
        where=Where(
            rank=blamed[0] if len(blamed) == 1 else None,
            file=frame.file if frame else None,
            line=frame.line if frame else None,
        ),
        ranks=blamed,
    )


@collective_order_mismatch.look
def order_differs(log: Log) -> Iterator[Finding]:
    """All ranks wait, but not in the same call: other operations under one number, or other lines of the script."""
    from ddpdoctor.logs.collective_waits import collective_waits
    from ddpdoctor.logs.missing_participants import missing_participants
    from ddpdoctor.rules.log.differing_calls import differing_calls
    from ddpdoctor.rules.log.fingerprints import fingerprints

    named = fingerprints(log, "Op type")
    if named is not None:
        yield named
        return
    waited = collective_waits(log)
    if len(waited) < 2:
        return
    for seq in sorted({wait.seq for wait in waited if wait.seq is not None}):
        same = [wait for wait in waited if wait.seq == seq and wait.op is not None]
        if len({wait.op for wait in same}) > 1 and len({wait.group for wait in same} - {None}) <= 1:
            yield differing_calls(log, same, f"different operations as collective number {seq}")
            return
    places = {wait.place for wait in waited}
    if (
        all(wait.seq is None for wait in waited)
        and None not in places
        and len(places) > 1
        and not missing_participants(log)
    ):
        yield differing_calls(log, waited, "different calls")
