"""SCRIPT019: SyncBatchNorm needs a process group."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, point, replace
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log


@cause(
    "SCRIPT019",
    "syncbn-without-process-group",
    Severity.ERROR,
)
def syncbn_without_process_group(script: Script) -> Iterator[Finding]:
    """SyncBatchNorm runs without a process group.

    ## Why it matters
    In training on a GPU its forward pass asks for the world size: `Default process group has not been initialized`.
    The error is about process groups, although the model runs on one GPU.

    ## Fix
    Convert to SyncBatchNorm only in a distributed job, or call init_process_group first.

    A job with one GPU can be started with `torchrun --nproc-per-node=1`.

    ## Example
        # before
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda()
        loss = model(x).sum()
        # ValueError: Default process group has not been initialized, ...

        # after
        if dist.is_initialized():
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        loss = model.cuda()(x).sum()
    """
    for module in modules(script):
        trains = bool(module.method_calls.get("backward")) and module.is_program
        if (
            not trains
            or module.frameworks
            or re.search(r"init_process_group|init_dist|setup_dist|dist_init", module.text)
        ):
            continue
        for call in module.calls("nn.SyncBatchNorm", "nn.SyncBatchNorm.convert_sync_batchnorm"):
            guarded = any(
                isinstance(p, ast.If) and c is not p.test and not _is_main(p) for p, c in module.index.enclosing(call)
            )
            if not guarded:
                yield point(
                    module,
                    call,
                    "SyncBatchNorm without a process group: this program never creates one",
                    "a process group",
                    label="the first training step on a GPU fails",
                    edits=(replace(module, call, code(module, call.args[0], 400)),) if _converts(module, call) else (),
                )


def _converts(module: Module, call: ast.Call) -> bool:
    return module.names.of(call.func) != "nn.SyncBatchNorm" and len(call.args) == 1


def _is_main(statement: ast.If) -> bool:
    return "__name__" in ast.dump(statement.test)


@syncbn_without_process_group.look
def batch_norm_without_group(log: Log) -> Iterator[Finding]:
    """The process group is missing for SyncBatchNorm."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of
    from ddpdoctor.rules.log.world_sizes import NO_GROUP, is_of_batch_norm

    lines = [line for line in matching_lines(log, NO_GROUP) if is_of_batch_norm(log, line)]
    if lines:
        yield finding_of(log, lines, "SyncBatchNorm runs without a process group", blames_speaker=True)
