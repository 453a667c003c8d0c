"""LAUNCH059, LAUNCH060: variables of the scheduler that the wrong shell puts in."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, escape
from ddpdoctor.findings import Finding, Severity, Speaker
from ddpdoctor.launch.task_counts import nodes
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import agents, point, revalue

__all__ = ["EARLY"]

EARLY = re.compile(r"(?<!\\)\$\{?(SLURM_NODEID|SLURM_PROCID|SLURM_LOCALID)\b")


@cause("LAUNCH059", "node-rank-expanded-too-early", Severity.ERROR, explains=("LAUNCH036",))
def node_rank_expanded_too_early(launch: Launch) -> Iterator[Finding]:
    """The node rank is expanded by the shell of the batch script and is 0 on every node.

    ## Why it matters
    $SLURM_NODEID is put in before srun runs, where it is 0: every node becomes node rank 0. On different hosts they wait for
    each other for 15 minutes, on one host the second says EADDRINUSE.

    ## Fix
    Let a shell inside the task expand it: srun bash -c 'torchrun --node-rank=$SLURM_NODEID …' in single quotes; or use c10d.
    """
    for line, layer, plan in agents(launch):
        srun = line.layer(LauncherKind.SRUN)
        given = layer.given("node_rank")
        if srun is None or given is None or plan.backend == "c10d" or "'" in given.value_word.context:
            continue
        match = EARLY.search(given.value_word.raw)
        if match is None or _task_variable(line, srun):
            continue
        text = f"${match[1]} is expanded before srun starts and is 0 on every node: expected it inside bash -c '…'"
        yield point(launch, line, given.value_word, text, "bash -c '…' in single quotes", _in_shell(line, layer))


def _task_variable(line: LaunchLine, srun: Layer) -> bool:
    """The line stands inside a task already: srun is not outside of it."""
    return not any(each is srun for each in line.layers)


def _in_shell(line: LaunchLine, layer: Layer) -> list[SpanEdit] | None:
    """The torchrun part wrapped in `bash -c '…'`, or the double quotes around it made single."""
    shell = next((each for each in line.layers if each.is_shell_text), None)
    if shell is not None:
        text = shell.own[-1]
        if not text.raw.startswith('"') or "'" in text.raw:
            return None
        return [SpanEdit(text.start, text.start + 1, "'"), SpanEdit(text.end - 1, text.end, "'")]
    first = layer.program
    last = layer.reading.arguments[-1] if layer.reading.arguments else layer.reading.script or layer.own[-1]
    body = line.source[first.start : last.end]
    return [SpanEdit(first.start, last.end, f"bash -c '{escape(body, chr(39))}'")]


@cause(
    "LAUNCH060",
    "scheduler-variable-unset",
    Severity.ERROR,
    yields_to=("ENV010",),
    speaker=Speaker.TORCH,
    signatures=(r"invalid literal for int\(\) with base 10: ''",),
)
def scheduler_variable_unset(launch: Launch) -> Iterator[Finding]:
    """An option that counts nodes is empty, because the shell that expanded it does not know the scheduler's variable.

    ## Why it matters
    `invalid literal for int() with base 10: ''`: SLURM_NNODES and its like exist inside the allocation or the task, not in the
    shell of the login node.

    ## Fix
    Start the line inside sbatch or salloc, or let bash -c '…' under srun expand the variable.
    """
    for line in launch.lines:
        layer, plan = line.agent, line.plan
        if layer is None or plan is None or layer.typos:
            continue
        for dest in ("nnodes", "node_rank"):
            given = layer.given(dest)
            if given is None or given.value != "":
                continue
            count = nodes(line)
            edits = [revalue(given, str(count))] if dest == "nnodes" and count else None
            if edits is None and dest == "nnodes" and line.layer(LauncherKind.SRUN) is None:
                edits = [revalue(given, "1")]
            text = f"{given.written} is empty, its variable is not set in this shell: expected a number"
            yield point(launch, line, given.value_word, text, "a number", edits)
