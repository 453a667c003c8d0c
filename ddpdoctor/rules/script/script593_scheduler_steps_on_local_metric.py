"""SCRIPT593: a learning rate scheduler that follows the metric of one rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import code, point
from ddpdoctor.rules.script.rank_branches import in_rank_branch
from ddpdoctor.rules.script.script_questions import each_rank, is_test
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal

_PLATEAU = "torch.optim.lr_scheduler.ReduceLROnPlateau"


@cause("SCRIPT593", "scheduler-steps-on-local-metric", Severity.ERROR)
@with_histories(MistakeKind.SCHEDULER_LOCAL)
def scheduler_steps_on_local_metric(script: Script) -> Iterator[Finding]:
    """ReduceLROnPlateau gets a metric that differs between the ranks.

    ## Why it matters
    One rank reduces its learning rate and the others do not. Each rank then applies the same gradients with a
    different step size, and the models drift apart without any error.

    ## Fix
    All-reduce the metric before `scheduler.step(metric)`.

    ## Example
        # before
        scheduler.step(validation_loss)

        # after
        dist.all_reduce(validation_loss)
        scheduler.step(validation_loss / dist.get_world_size())
    """
    for module in modules(script):
        if not module.wraps or module.frameworks or is_test(module):
            continue
        schedulers = {name for call in module.calls(_PLATEAU) for name in _names(module, call)}
        for call in module.method_calls.get("step", ()):
            base = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
            if base not in schedulers or not call.args or in_rank_branch(module, call):
                continue
            values = each_rank(module, call.args[0], trusting=True)
            if values[0] in (Unknown.DATA, Unknown.VARIES):
                yield point(
                    module,
                    call,
                    f"{code(module, call.args[0], 40)} is the metric of one rank, and sets its learning rate",
                    "the same metric on all ranks",
                    label="learning rates differ between ranks",
                )


def _names(module: Module, call: ast.Call) -> list[str]:
    parent = module.index.parents.get(call)
    return [ast.unparse(t) for t in parent.targets] if isinstance(parent, ast.Assign) else []


@scheduler_steps_on_local_metric.look
def metric_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A scheduler is fed with another metric on each rank."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.METRIC_DIFFERS,
        lambda o, who: "ReduceLROnPlateau gets a different metric on each rank",
        label="the learning rates of the ranks diverge",
        expected="a metric that is reduced over all ranks",
    )
