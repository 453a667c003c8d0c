"""SCRIPT024 to SCRIPT027 and SCRIPT033: the ranks do not call the same collectives."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import CausalStage, Finding, Severity, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import code, point
from ddpdoctor.rules.script.rank_branches import truths
from ddpdoctor.rules.script.rewriting import agreed, called_by_all, in_one_order, reached_by_all
from ddpdoctor.rules.script.script_questions import argument, each_rank, is_quiet
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.simulation.divergence import (
    Divergence,
    DivergenceKind,
    divergences,
)
from ddpdoctor.scripts.simulation.entry_points import rank_contexts
from ddpdoctor.scripts.simulation.joint_paths import is_default_group_collective, program_simulations
from ddpdoctor.scripts.simulation.trace import Event
from ddpdoctor.scripts.syntax.index import Binding
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.dumps.rank_activity import RankActivity
    from ddpdoctor.facts.hang import Hang
    from ddpdoctor.facts.log import Log
    from ddpdoctor.facts.rehearsal import Rehearsal

_INIT = "dist.init_process_group"
_PASSES = {"backward": "the backward pass", "forward": "the forward pass"}


def _called(event: Event) -> str:
    """A collective as the script calls it: `dist.barrier()`."""
    if event.name in _PASSES:
        return _PASSES[event.name]
    written = code(event.frame.module, event.call.func, 50)
    is_same = written.rpartition(".")[2] == event.name.rpartition(".")[2]
    return f"{written}()" if is_same else f"{written}() ({event.name})"


def _entering(divergence: Divergence) -> list[int] | None:
    """The ranks that take the way of the condition on which the collective is, or the exit; None if unknown."""
    test = divergence.test
    node = test.node.test if isinstance(test.node, (ast.If, ast.While)) else test.node
    if not isinstance(node, ast.expr):
        return None
    values = truths(test.module, node)
    contexts = rank_contexts(test.module, test.module.index.function_of(node))
    if any(isinstance(value, Unknown) for value in values):
        return None
    return [place.rank for place, value in zip(contexts, values, strict=True) if value is test.taken]


def _ranks(divergence: Divergence) -> str:
    """Which ranks enter a branch, for a message: "rank 0", "all ranks but rank 0" or "some ranks"."""
    entering = _entering(divergence)
    if entering is None:
        return "some ranks"
    test = divergence.test
    everyone = [place.rank for place in rank_contexts(test.module, test.module.index.function_of(test.node))]
    if len(entering) == 1:
        return f"rank {entering[0]}"
    left_out = [rank for rank in everyone if rank not in entering]
    return f"all ranks but rank {left_out[0]}" if len(left_out) == 1 else "some ranks"


def _only(divergence: Divergence) -> str:
    """Which ranks call a collective, for the end of a headline."""
    ranks = _ranks(divergence)
    return ranks if ranks.startswith("all") else f"{ranks} only"


def _found(script: Script, kind: str, *, data: bool = False) -> Iterator[tuple[Module, Divergence]]:
    for module in modules(script):
        for divergence in divergences(module):
            if divergence.data is data and (divergence.kind == kind or kind == ""):
                yield module, divergence


def _condition(module: Module, divergence: Divergence) -> str:
    node = divergence.test.node
    if isinstance(node, (ast.If, ast.While)):
        return f"`{code(module, node.test, 50)}` (line {node.lineno})"
    if isinstance(node, ast.ExceptHandler):
        caught = f" {code(module, node.type, 50)}" if node.type is not None else ""
        return f"`except{caught}` (line {node.lineno})"
    if isinstance(node, (ast.expr, ast.pattern)):
        case = "case " if isinstance(node, ast.pattern) else ""
        return f"`{case}{code(module, node, 50)}` (line {node.lineno})"
    return f"the decorator of {getattr(node, 'name', 'the function')}"


def _branch(divergence: Divergence) -> str:
    """The branch that some ranks do not enter, for a fix."""
    node = divergence.test.node
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return f"{node.name}(), whose decorator excludes ranks"
    statements = {ast.If: "`if`", ast.While: "`while`", ast.ExceptHandler: "`except`"}
    kind = statements.get(type(node), "`case`" if isinstance(node, ast.pattern) else "condition")
    return f"the {kind} in line {getattr(node, 'lineno', 0)}"


def _place(divergence: Divergence) -> str:
    """The line of the collective, if it is not the line that is shown."""
    event = divergence.event
    if event.call is divergence.at:
        return ""
    return f" (line {event.call.lineno})"


def _softer(divergence: Divergence) -> Severity | None:
    """A forward pass communicates if the model has buffers, and hardly ever without gradients."""
    event = divergence.event
    if event.name != "forward":
        return None
    enclosing = [p for p, _ in event.frame.module.index.enclosing(event.call)]
    has_no_gradients = any(is_quiet(p) for p in enclosing)
    return Severity.NOTE if has_no_gradients else Severity.WARNING


@cause("SCRIPT024", "collective-in-rank-branch", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
@with_histories(MistakeKind.SHARDED_ON_ONE_RANK, MistakeKind.HIDDEN_ON_ONE_RANK, MistakeKind.BUFFERS_ON_ONE_RANK)
def collective_in_rank_branch(script: Script) -> Iterator[Finding]:
    """A collective runs inside a branch that only some ranks enter.

    ## Why it matters
    The ranks that enter it wait for the others, whose next collective is paired with this one. The hang or the error
    (`Timed out waiting 1800000ms for recv operation to complete`, or NCCL's watchdog) therefore appears at a later,
    correct line.

    ## Fix
    Call it on all ranks, outside the branch.

    A checkpoint of a sharded model and the forward pass of a wrapped model communicate as well. Call `ddp.module` for
    an evaluation on rank 0 only.

    ## Example
        # before
        if dist.get_rank() == 0:
            save(model)
            dist.barrier()
        # other ranks: Timed out waiting 1800000ms for recv operation to complete

        # after
        if dist.get_rank() == 0:
            save(model)
        dist.barrier()
    """
    for module, divergence in (*_found(script, DivergenceKind.BRANCH), *_joined_by_some(script)):
        is_of_world = is_default_group_collective(divergence.event)
        is_forward = divergence.event.name == "forward"
        runs = "runs on" if divergence.event.name in _PASSES else "is called by"
        yield point(
            module,
            divergence.at,
            f"{_called(divergence.event)}{_place(divergence)} {runs} {_only(divergence)}",
            "the same collectives on every rank",
            label=f"the other {'ranks' if is_of_world else 'members'} never get here: deadlock",
            fix="Call `ddp.module` for an evaluation on some ranks."
            if is_forward
            else f"Move it out of {_branch(divergence)}, so that all {'ranks' if is_of_world else 'members'} call it.",
            severity=_softer(divergence),
            edits=called_by_all(module, divergence) if not is_forward and is_of_world else (),
        )


def _joined_by_some(script: Script) -> Iterator[tuple[Module, Divergence]]:
    """init_process_group in a branch on the rank, if the other ranks of the program call none."""
    for module in modules(script):
        reported: set[ast.AST] = set()
        for run in program_simulations(module) if module.calls(_INIT) else ():
            joins = [[e for e in trace.events if e.name == _INIT] for trace in run.traces]
            event = next((e for events in joins for e in events), None)
            tests = run.divergent(event.tests) if event is not None else []
            if event is None or not tests or all(joins) or event.call in reported or event.frame.module is not module:
                continue
            if any(t.raised or t.early_exits for t, own in zip(run.traces, joins, strict=True) if not own):
                continue
            reported.add(event.call)
            at = event.chain[tests[-1].depth]
            yield module, Divergence(DivergenceKind.BRANCH, at, event, None, tests[-1], data=False)


@cause("SCRIPT025", "early-exit-in-rank-branch", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def early_exit_in_rank_branch(script: Script) -> Iterator[Finding]:
    """A rank leaves before a collective that the other ranks call.

    ## Why it matters
    The rank that leaves ends normally, with exit code 0. The others fail with `Connection closed by peer`, or wait
    until the timeout.

    ## Fix
    Let all ranks reach the collective, or decide together: all_reduce a stop flag.

    ## Example
        # before
        if rank != 0:
            return
        write_report()
        dist.barrier()
        # rank 0: Connection closed by peer

        # after
        if rank == 0:
            write_report()
        dist.barrier()
    """
    for module, divergence in _found(script, DivergenceKind.EXIT):
        who = _ranks(divergence)
        yield point(
            module,
            divergence.at,
            f"{who} {'leaves' if who.startswith('rank ') else 'leave'} before {_called(divergence.event)} "
            f"(line {divergence.event.call.lineno})",
            f"all ranks in line {divergence.event.call.lineno}",
            label="the other ranks wait there: deadlock",
            edits=reached_by_all(module, divergence),
        ).if_certain(divergence.sure)


@cause("SCRIPT026", "rank-dependent-control-flow", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
@with_histories(MistakeKind.DECIDED_ALONE)
def rank_dependent_control_flow(script: Script) -> Iterator[Finding]:
    """Data on one rank decides whether it calls a collective.

    ## Why it matters
    A batch without labels, a loss that is not finite, or an early stop makes one rank skip a collective in which the
    others wait. This happens at a random step, and the error names a rank that waited.

    ## Fix
    Make one decision for all ranks: all_reduce the condition first.

    Or run the backward pass on all ranks, with a loss of zero over all parameters.

    ## Example
        # before
        if not torch.isfinite(loss):
            continue
        loss.backward()
        # at a random step: the other ranks time out in the backward pass

        # after
        bad = (~torch.isfinite(loss)).float()
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad.item() > 0:
            continue
        loss.backward()
    """
    reported: set[ast.AST] = set()
    candidates = list(_found(script, "", data=True))
    for module, divergence in sorted(candidates, key=lambda f: f[1].at not in set(ast.walk(f[1].test.node))):
        failed = isinstance(divergence.test.node, ast.ExceptHandler)
        if divergence.test.node in reported or _may_join(module, divergence.test.node):
            continue
        reported.add(divergence.test.node)
        why = "runs on some ranks only" if failed else "depends on local data"
        yield point(
            module,
            divergence.test.node if failed else divergence.at,
            f"{_condition(module, divergence)} {why} and decides about {_called(divergence.event)} "
            f"(line {divergence.event.call.lineno})",
            "one decision for all ranks",
            label="ranks that decide differently deadlock",
            severity=Severity.WARNING if failed else None,
            edits=agreed(module, divergence),
        )


def _may_join(module: Module, node: ast.AST) -> bool:
    """Whether `with model.join():` or `with Join([model]):` is around it, so that ranks may skip a batch."""
    around = [p for p, _ in module.index.enclosing(node) if isinstance(p, (ast.With, ast.AsyncWith))]
    opened = [item.context_expr for statement in around for item in statement.items]
    made = [c.func for c in opened if isinstance(c, ast.Call)]
    names = {getattr(f, "attr", getattr(f, "id", "")) for f in made}
    kept = [b.value for f in made if isinstance(f, ast.Name) for b in _bindings(module, f)]
    names |= {v.attr for v in kept if isinstance(v, ast.Attribute)}
    return bool(names & {"join", "Join"})


def _bindings(module: Module, name: ast.Name) -> list[Binding]:
    bound = module.names.bindings(name.id, module.index.scope(name))
    return bound[1] if bound is not None else []


@cause("SCRIPT027", "collective-order-mismatch", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
@with_histories(MistakeKind.GROUPS_CROSSED)
def collective_order_mismatch(script: Script) -> Iterator[Finding]:
    """The ranks call collectives in different orders.

    ## Why it matters
    Each side waits in its own call until the timeout. With `TORCH_DISTRIBUTED_DEBUG=DETAIL` torch reports `Detected
    mismatch between collectives on ranks` at once.

    ## Fix
    Call the collectives in the same order on all ranks, outside the branch.

    ## Example
        # before
        if rank == 0:
            dist.broadcast(x, 0)
            dist.all_reduce(y)
        else:
            dist.all_reduce(y)
            dist.broadcast(x, 0)
        # Detected mismatch between collectives on ranks

        # after
        dist.broadcast(x, 0)
        dist.all_reduce(y)
    """
    for module, divergence in _found(script, DivergenceKind.ORDER):
        other = divergence.other
        instead = (
            "in a different order"
            if other is None
            else f"while others call {_called(other)} (line {other.call.lineno})"
        )
        yield point(
            module,
            divergence.at,
            f"{_called(divergence.event)} is called by some ranks {instead}",
            "the same collectives in the same order",
            label="the calls do not match: deadlock",
            edits=in_one_order(module, divergence),
        )


@cause("SCRIPT033", "new-group-on-some-ranks", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
@with_histories(MistakeKind.GROUP_ON_ONE_RANK)
def new_group_on_some_ranks(script: Script) -> Iterator[Finding]:
    """new_group is called by some ranks only.

    ## Why it matters
    Nothing happens at first. The next new_group on all ranks waits for a key that the others never write, because
    each rank counts its groups: `wait timeout after …, keys: /default_pg/0//2//cpu//0/1`.

    ## Fix
    Call new_group on all ranks, members or not, in the same order.

    With `use_local_synchronization=True` only the members have to call it.

    ## Example
        # before
        if rank < 2:
            pair = dist.new_group([0, 1])
        # later: wait timeout after ..., keys: /default_pg/0//2//cpu//0/1

        # after
        pair = dist.new_group([0, 1])
    """
    for module, divergence in _found(script, DivergenceKind.GROUP):
        yield point(
            module,
            divergence.at,
            f"{_called(divergence.event)} is called by {_only(divergence)}",
            "new_group on every rank",
            label="later groups no longer match: hang",
            fix="Call it on all ranks, members or not.",
            edits=called_by_all(module, divergence),
        )
    for module in modules(script):
        for call in module.calls("dist.new_group"):
            if _is_of_each(module, call):
                yield point(
                    module,
                    call,
                    "new_group() creates a different group on each rank",
                    "new_group for all groups on every rank",
                    label="create all groups on every rank",
                    fix="Create all groups on every rank, in the same order.",
                )


def _is_of_each(module: Module, call: ast.Call) -> bool:
    """Whether the ranks of a group depend on the caller's rank; a group of that rank only is harmless."""
    ranks = argument(call, 0, "ranks")
    if ranks is None or argument(call, None, "use_local_synchronization") is not None:
        return False
    values = each_rank(module, ranks, rank_contexts(module, module.index.function_of(call)), trusting=True)
    plain = all(isinstance(f, (list, tuple)) and len(f) > 1 and all(type(r) is int for r in f) for f in values)
    return plain and any(f != values[0] for f in values[1:])


@collective_in_rank_branch.look
def in_rank_branch(hang: Hang) -> Iterator[Finding]:
    """Some ranks call one more collective."""
    from ddpdoctor.dumps.conflict import ConflictCause
    from ddpdoctor.rules.hang.dump_findings import conflict_finding, conflicts

    for conflict in conflicts(hang, ConflictCause.EXTRA):
        yield conflict_finding(hang, conflict)


@rank_dependent_control_flow.look
def rank_dependent(hang: Hang) -> Iterator[Finding]:
    """Some ranks skip a collective."""
    from ddpdoctor.dumps.conflict import ConflictCause
    from ddpdoctor.rules.hang.dump_findings import conflict_finding, conflicts

    for conflict in conflicts(hang, ConflictCause.SKIPPED):
        yield conflict_finding(hang, conflict)


@collective_order_mismatch.look
def order(hang: Hang) -> Iterator[Finding]:
    """The calls are in different orders, in one group or across groups."""
    from ddpdoctor.dumps.conflict import ConflictCause
    from ddpdoctor.rules.hang.dump_findings import conflict_finding, conflicts

    for conflict in conflicts(hang, ConflictCause.ORDER):
        doubt = "" if conflict.is_certain else "; different order, or a call that only some ranks make"
        yield conflict_finding(hang, conflict, doubt)
    for conflict in conflicts(hang, ConflictCause.CYCLE):
        yield conflict_finding(hang, conflict)


@collective_order_mismatch.look
def in_different_calls(hang: Hang) -> Iterator[Finding]:
    """Ranks wait in collectives at different places in the script."""
    from ddpdoctor.dumps.rank_activity import Activity
    from ddpdoctor.rules.hang.rank_findings import jobs_of

    for job in jobs_of(hang):
        places: dict[str, list[RankActivity]] = {}
        for activity in job.waiting:
            if activity.activity is Activity.COLLECTIVE and activity.frame is not None:
                places.setdefault(str(activity.frame), []).append(activity)
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
        f"{'; '.join(parts[:4])}: different order, or a call that only some ranks make",
        where=Where(
            rank=blamed[0] if len(blamed) == 1 else None,
            file=frame.file if frame else None,
            line=frame.line if frame else None,
        ),
        ranks=blamed,
    )


@collective_order_mismatch.look
def order_differs(log: Log) -> Iterator[Finding]:
    """All ranks wait, but not in the same call: different operations with one number, or different lines of the script."""
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
            yield differing_calls(log, same, f"collective number {seq} differs")
            return
    places = {wait.place for wait in waited}
    if (
        all(wait.seq is None for wait in waited)
        and None not in places
        and len(places) > 1
        and not missing_participants(log)
    ):
        yield differing_calls(log, waited, "the ranks wait in different calls")


@collective_in_rank_branch.look
def in_a_branch(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A collective in a branch that only some ranks enter."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    yield from difference_findings(
        rehearsal, DifferenceKind.EXTRA, label="the other ranks do not make this call: deadlock"
    )


@early_exit_in_rank_branch.look
def left_early(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A rank left before a collective of the others."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    yield from difference_findings(rehearsal, DifferenceKind.LEFT, label="the other ranks wait: deadlock")


@rank_dependent_control_flow.look
def data_decides(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A condition on the data of one rank decides about a collective."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    yield from difference_findings(rehearsal, DifferenceKind.DATA, label="ranks that decide differently deadlock")


@collective_order_mismatch.look
def other_order(rehearsal: Rehearsal) -> Iterator[Finding]:
    """The ranks call other collectives, or wait for each other in different groups."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    yield from difference_findings(
        rehearsal, DifferenceKind.ORDER, DifferenceKind.CYCLE, label="the calls do not match: deadlock"
    )


@new_group_on_some_ranks.look
def other_groups(rehearsal: Rehearsal) -> Iterator[Finding]:
    """new_group with other ranks, or on some ranks only."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    yield from difference_findings(rehearsal, DifferenceKind.GROUPS, label="later groups no longer match: hang")


@rank_dependent_control_flow.look
def local_value_decides(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A condition on a value that differs between ranks decides about collectives."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.LOCAL_DECISION,
        lambda o, who: (
            f"`{o.values['name']}` differs between ranks and decides about collectives: {o.values['values']}"
        ),
        label="ranks that decide differently deadlock",
        expected="one decision for all ranks",
    )


@collective_in_rank_branch.look
def in_unreached_branch(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A branch on the rank that did not run calls a function with a collective."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.RANK_BRANCH,
        lambda o, who: f"a branch on the rank calls a function with {o.values['what']}; it did not run here",
        label="only some ranks come to this collective",
        expected="the same call on all ranks",
    )
