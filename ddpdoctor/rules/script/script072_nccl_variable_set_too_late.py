"""SCRIPT072: NCCL variables that are set too late."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import before, delete, point
from ddpdoctor.rules.script.variables import defaults, sets
from ddpdoctor.scripts.syntax.module import Module, modules


@cause("SCRIPT072", "nccl-variable-set-too-late", Severity.NOTE)
def nccl_variable_set_too_late(script: Script) -> Iterator[Finding]:
    """An NCCL variable is set after the first communicator.

    ## Why it matters
    NCCL reads each of its variables once, when the first communicator is created. A later assignment has no effect,
    and there is no error.

    ## Fix
    Set it in the launch environment, or before init_process_group.

    ## Example
        # before
        dist.init_process_group("nccl")
        os.environ["NCCL_SOCKET_IFNAME"] = "eth0"

        # after
        os.environ["NCCL_SOCKET_IFNAME"] = "eth0"
        dist.init_process_group("nccl")
    """
    for module in modules(script):
        inits = module.calls("dist.init_process_group")
        for setting in (*sets(module), *defaults(module)) if inits else ():
            if not setting.name.startswith(("NCCL_", "TORCH_NCCL_")):
                continue
            function = module.index.function_of(setting.node)
            first = next((c for c in inits if module.index.function_of(c) is function), None)
            if first is not None and first.lineno < setting.node.lineno:  # type: ignore[attr-defined]
                yield point(
                    module,
                    setting.node,
                    f"{setting.name} is set after init_process_group() (line {first.lineno})",
                    f"before line {first.lineno}",
                    label="NCCL may have read it already",
                    edits=_earlier(module, setting.node, module.index.statement(first)),
                )


def _earlier(module: Module, node: ast.AST, first: ast.stmt) -> tuple[Edit, ...]:
    """Move a one-line setting before a statement of the same block."""
    one_line = isinstance(node, ast.stmt) and node.lineno == node.end_lineno
    if not isinstance(node, ast.stmt) or not one_line or module.index.parents[node] is not module.index.parents[first]:
        return ()
    return (delete(module, node), before(module, first, module.lines[node.lineno - 1].strip()))
