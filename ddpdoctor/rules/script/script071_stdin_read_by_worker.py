"""SCRIPT071: workers that read standard input."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, delete, point
from ddpdoctor.rules.script.rank_branches import in_rank_branch
from ddpdoctor.rules.script.script_questions import is_distributed
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.facts.hang import Hang

READS = (
    "input",
    "pdb.set_trace",
    "breakpoint",
    "ipdb.set_trace",
    "sys.stdin.read",
    "sys.stdin.readline",
    "sys.stdin.readlines",
    "IPython.embed",
)


@cause("SCRIPT071", "stdin-read-by-worker", Severity.WARNING)
def stdin_read_by_worker(script: Script) -> Iterator[Finding]:
    """A worker reads from standard input.

    ## Why it matters
    All workers share one standard input: one worker gets a part of it, the others nothing. A debugger waits for input
    that cannot be typed.

    ## Fix
    Use `torch.distributed.breakpoint()`, a remote debugger, or start one rank alone.

    ## Example
        # before
        breakpoint()

        # after
        dist.breakpoint(rank=0)  # on all ranks: the others wait for rank 0
    """
    for module in modules(script):
        if not is_distributed(module):
            continue
        streams = [
            n.iter for n in module.index.parents if isinstance(n, ast.For) and module.names.of(n.iter) == "sys.stdin"
        ]
        for call in (*module.calls(*READS), *streams):
            statement = module.index.statement(call)
            if not in_rank_branch(module, call) and not _of_parent(module, call):
                yield point(
                    module,
                    call,
                    f"{code(module, call, 40)} reads standard input in every worker",
                    "dist.breakpoint() for debugging",
                    label="the workers share it and wait",
                    edits=(delete(module, statement),) if isinstance(statement, ast.Expr) else (),
                )


def _of_parent(module: Module, call: ast.expr) -> bool:
    """Whether the process that spawns runs a call, not the ranks."""
    function = module.index.function_of(call)
    spawned = {s.function for s in module.spawns}
    return bool(spawned) and function not in spawned and (function is None or function not in module.callers)


@stdin_read_by_worker.look
def reads_input(hang: Hang) -> Iterator[Finding]:
    """A rank waits for input."""
    from ddpdoctor.dumps.rank_activity import Activity
    from ddpdoctor.rules.hang.rank_findings import outlier_findings

    yield from outlier_findings(hang, lambda outlier: outlier.activity is Activity.INPUT)
