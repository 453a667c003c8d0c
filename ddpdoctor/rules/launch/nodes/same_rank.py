"""LAUNCH036 on a single line: a scheduler or Kubernetes starts it on every node with the same node rank."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.job import Job
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.pod import Operator
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, escape
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.findings import Finding
from ddpdoctor.rules.launch.pointing import after, point, revalue, spelled
from ddpdoctor.rules.launch.scheduler.granted import allocated_nodes
from ddpdoctor.rules.launch.scheduler.launch059_060_early_expansion import EARLY
from ddpdoctor.rules.launch.scheduler.launch510_nnodes_not_allocated import is_one_of_several

__all__ = ["same_for_all"]

_COPIES = (Operator.JOBSET, Operator.JOB, Operator.STATEFULSET)


def same_for_all(launch: Launch, job: Job) -> Iterator[Finding]:
    """One finding for each line of a job that all its nodes run with the same literal node rank, or without one."""
    for agent in job.agents:
        line, layer, plan = agent.line, agent.layer, agent.plan
        if line.agent is None or layer.reading.is_help:
            continue  # other launchers number their nodes in other ways
        copies, starter = _copies(line)
        if copies < 2 or plan.node_rank is None or plan.backend != "static" or not plan.is_multinode:
            continue
        if not (plan.given("master_addr") or plan.settings["rdzv_endpoint"].value or plan.given("node_rank")):
            continue  # no rendezvous address: LAUNCH025
        given = layer.given("node_rank")
        if given is not None and EARLY.search(given.value_word.raw):
            continue  # the batch script's shell expands it to 0: LAUNCH059
        rank = f"with --node-rank={plan.node_rank}" if plan.given("node_rank") else "without --node-rank"
        text = f"{starter} starts {copies} nodes {rank}"
        word = layer.program if given is None else given.value_word
        edits = _fixed(line, layer, plan, launch.version)
        yield point(launch, line, word, text, "the node's index", edits, label="use each node's own index")


def _copies(line: LaunchLine) -> tuple[int, str]:
    """On how many nodes this line runs, and what starts it."""
    if line.pod is not None:
        several = line.pod.operator in _COPIES and line.pod.pods
        return (line.pod.pods or 0, f"the {line.pod.operator.value}") if several else (0, "")
    srun = line.layer(LauncherKind.SRUN)
    if srun is None or is_one_of_several(line, srun):
        return 0, ""
    return allocated_nodes(line) or 0, "srun"


def _fixed(line: LaunchLine, layer: Layer, plan: Plan, version: Version) -> list[SpanEdit] | None:
    """The index of the node, expanded by a shell inside the task."""
    index = "$JOB_COMPLETION_INDEX" if line.pod is not None else "$SLURM_NODEID"
    if line.pod is not None and line.pod.operator is Operator.STATEFULSET:
        index = "${HOSTNAME##*-}"
    given = layer.given("node_rank")
    option = f"{spelled(layer, 'node_rank', version)}={index}"
    if any(each.is_shell_text for each in line.layers) or (line.pod is not None and line.pod.in_shell):
        return [after(layer.own[-1], option) if given is None else revalue(given, index)]
    if line.pod is not None or (given is not None and not given.is_joined):
        return None
    first = layer.program
    last = layer.reading.arguments[-1] if layer.reading.arguments else layer.reading.script or layer.own[-1]
    start, end = (layer.own[-1].end, layer.own[-1].end) if given is None else (given.word.start, given.word.end)
    blank = " " if given is None else ""
    body = f"{line.source[first.start : start]}{blank}{option}{line.source[end : last.end]}"
    return [SpanEdit(first.start, last.end, f"bash -c '{escape(body, chr(39))}'")]
