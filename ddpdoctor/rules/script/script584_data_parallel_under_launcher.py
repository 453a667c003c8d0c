"""SCRIPT584: nn.DataParallel in every rank of a launcher."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import point
from ddpdoctor.rules.script.script_questions import is_test, start_of
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal

_CHOICES = (ast.If, ast.IfExp, ast.Try, ast.match_case)


@cause("SCRIPT584", "data-parallel-under-launcher", Severity.ERROR)
def data_parallel_under_launcher(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """Every rank wraps the model in nn.DataParallel.

    ## Why it matters
    Each process uses all GPUs of the node, so that N processes share every GPU. Gradients are not averaged between the
    processes: N models are trained independently.

    ## Fix
    Wrap the model in DistributedDataParallel: `DDP(model, device_ids=[local_rank])`.

    ## Example
        # before
        dist.init_process_group("nccl")
        model = nn.DataParallel(model.cuda())

        # after
        dist.init_process_group("nccl")
        model = nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[local_rank])
    """
    for module in modules(script):
        if module.wraps or module.frameworks or is_test(module):
            continue
        inits = [c for c in module.calls("dist.init_process_group") if not _is_optional(module, c)]
        start = start_of(module, launch)
        if not inits or (start is not None and start.world == 1) or module.calls("dist.all_reduce"):
            continue
        for call in module.calls("nn.DataParallel", "nn.parallel.DataParallel"):
            if not _is_optional(module, call):
                yield point(
                    module,
                    call,
                    "nn.DataParallel in every rank: the models of the ranks are trained independently",
                    "DistributedDataParallel",
                    label="use DistributedDataParallel",
                )


def _is_optional(module: Module, node: ast.AST, within: frozenset[ast.AST] = frozenset()) -> bool:
    """Whether a condition, other than a main guard, decides about a call, or its function is never called here.

    Args:
        within: the functions whose callers are asked about: a function that only itself calls is never called.
    """
    for parent, child in module.index.enclosing(node):
        is_guard = isinstance(parent, ast.If) and "__name__" in ast.unparse(parent.test)
        if isinstance(parent, _CHOICES) and not is_guard and child is not getattr(parent, "test", None):
            return True
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            spawned = any(s.function is parent for s in module.spawns)
            if parent in within:
                return True
            callers = module.callers.get(parent, [])
            return not spawned and all(_is_optional(module, c, within | {parent}) for c in callers)
    return False


@data_parallel_under_launcher.look
def data_parallel(rehearsal: Rehearsal) -> Iterator[Finding]:
    """DataParallel in a world of several ranks."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.DATA_PARALLEL,
        lambda o, who: "every rank wraps its model in DataParallel, which uses all GPUs of the node",
        label="each rank uses all GPUs",
        expected="DistributedDataParallel",
    )
