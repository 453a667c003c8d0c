"""SCRIPT556: ranks outside of a group call its collectives."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import code, point
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.interpreter.frames import CallResult
from ddpdoctor.scripts.simulation.joint_paths import program_simulations
from ddpdoctor.scripts.simulation.subgroups import group_members
from ddpdoctor.scripts.simulation.trace import Event
from ddpdoctor.scripts.syntax.module import modules
from ddpdoctor.scripts.syntax.vocabulary import GROUP_POSITION

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal


@cause("SCRIPT556", "group-used-by-outsider", Severity.WARNING)
@with_histories(MistakeKind.GROUP_OF_OTHERS)
def group_used_by_outsider(script: Script) -> Iterator[Finding]:
    """A rank calls a collective of a group that it is not a member of.

    ## Why it matters
    The call does nothing on that rank (`Running all_reduce on global rank 1 which does not belong to the given
    group.`), which continues with its own values as if they were the result.

    ## Fix
    Call it, and use its result, only on the members of the group.

    ## Example
        # before
        pair = dist.new_group([0, 2])
        dist.all_reduce(x, group=pair)

        # after
        pair = dist.new_group([0, 2])
        if dist.get_rank() in (0, 2):
            dist.all_reduce(x, group=pair)

    ## Source
    torch/distributed/distributed_c10d.py (_warn_not_in_group).
    """
    for module in modules(script):
        reported: set[ast.Call] = set()
        for run in program_simulations(module):
            for trace in run.traces:
                for event in trace.events:
                    members = _members(event)
                    rank = trace.context.rank
                    if members is None or rank in members or rank > max(members) or event.call in reported:
                        continue
                    reported.add(event.call)
                    yield point(
                        module,
                        event.call,
                        f"rank {rank} calls {code(module, event.call.func, 40)}() on the group {list(members)}",
                        f"only on ranks {list(members)}",
                        label="it is not a member: nothing is done",
                    )


def _members(event: Event) -> tuple[int, ...] | None:
    """The members of the group that a collective gets; None if they are not known."""
    position = GROUP_POSITION.get(event.name)
    given = event.argument(position, "group") if position is not None else None
    made = event.read(given)
    return group_members(event, made) if isinstance(made, CallResult) and made.name == "dist.new_group" else None


@group_used_by_outsider.look
def outsider_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Ranks call a collective of a group without being members."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.OUTSIDER,
        lambda o, who: (
            f"{who} call{'s' if len(o.ranks) == 1 else ''} {o.values['what']} of a group without being a member: nothing happens"
        ),
        label="its value stays that of this rank",
        expected="members of the group only",
    )
