"""LAUNCH070: each node starts a job of one node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.job import Job
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, escape
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.launch.task_counts import scheduled_nodes
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.launch.pointing import agents, correcting, point, remove, spelled
from ddpdoctor.rules.launch.rendezvous.launch025_to_027_031_to_033_046_rendezvous_settings import host0
from ddpdoctor.rules.launch.submitted import at_mark, mark_of

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log, LogLine


@cause(
    "LAUNCH070",
    "each-node-own-world",
    Severity.ERROR,
    scope=CauseScope.LINES_OF_NODES,
    repairs=("address", "node-count"),
)
def each_node_own_world(launch: Launch, job: Job) -> Iterator[Finding]:
    """Every node starts a separate job of one node.

    ## Why it matters
    All nodes train and exit with 0, but each one alone, with its own rank 0. Throughput does not grow, and the
    checkpoints overwrite each other.

    ## Fix
    Give all nodes the same `--nnodes` and one endpoint.

    ## Example
        error[LAUNCH070]: 2 nodes each start a separate job of one node

        # before
        torchrun --nproc-per-node=8 train.py
        torchrun --nproc-per-node=8 train.py

        # after
        torchrun --nproc-per-node=8 --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
        torchrun --nproc-per-node=8 --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
    """
    yield from _one_line_for_many(launch)
    unread = dict.fromkeys(layer.launcher.value for line in launch.lines for layer in line.unread)
    if unread and len(launch.lines) == 1:
        not_here(f"{' and '.join(unread)}: options not judged")
    nodes = job.nodes
    if not nodes or not all(_is_alone(n.plan) for n in nodes):
        return
    finding = Finding(
        f"{len(nodes)} nodes each start a separate job of one node",
        tuple(Evidence(f"launch.lines[{n.line.node}]", "nnodes 1", f"nnodes {len(nodes)}") for n in nodes[:16]),
    )
    edits = _joined(launch, nodes[0].line, nodes[0].layer, nodes[0].plan, len(nodes))
    yield correcting(finding, launch, (nodes[0].line, edits))


def _one_line_for_many(launch: Launch) -> Iterator[Finding]:
    """A scheduler starts one line on several nodes."""
    if len(launch.nodes) > 1:
        return
    for line, layer, plan in agents(launch):
        count = scheduled_nodes(line)
        if count is None or count < 2 or not _is_alone(plan):
            continue
        outer = line.task_starter
        assert outer is not None
        text = f"{outer.name} starts {count} separate jobs of one node"
        edits = _joined(launch, line, layer, plan, count)
        label = f"add --nnodes={count} and an endpoint"
        yield point(launch, line, layer.program, text, f"--nnodes={count}", edits, label=label)


def _is_alone(plan: Plan) -> bool:
    return plan.nnodes == (1, 1) and not plan.settings["nnodes"].is_unknown


def _joined(launch: Launch, line: LaunchLine, layer: Layer, plan: Plan, count: int) -> list[SpanEdit]:
    """The edits that add the number of nodes and an endpoint; none if other options set them."""
    options = [("nnodes", str(count))]
    if not plan.given("rdzv_endpoint") and not plan.given("master_addr"):
        options += [("rdzv_backend", "c10d"), ("rdzv_endpoint", f"{host0(line)}:29400")]
    given = layer.given("nnodes")
    removed = [g.word for g in layer.reading.given if g.dest == "standalone"]
    if layer.given("rdzv_backend") is not None or (given is not None and not given.is_joined):
        return []
    if given is not None:
        removed.append(given.word)
    text = " ".join(f"{spelled(layer, name, launch.version)}={value}" for name, value in options)
    return [
        SpanEdit(layer.own[-1].end, layer.own[-1].end, " " + escape(text, layer.program.context)),
        *remove(line, *removed),
    ]


@each_node_own_world.look
def machines_of_accelerate(submission: Submission) -> Iterator[Finding]:
    """accelerate starts on several hosts with a machine rank or a main address, but its settings say one machine."""
    for step in submission.steps:
        task, hosts = step.tasks[0], len(step.hosts)
        layer, config = task.layer, task.line.config or {}
        if not step.is_certain or hosts < 2 or layer.launcher is not LauncherKind.ACCELERATE or layer.is_garbled:
            continue
        given = layer.given("num_machines")
        count = config.get("num_machines") if given is None else given.value
        is_joint = any(layer.given(name) is not None for name in ("machine_rank", "main_process_ip"))
        if count != "1" or not (is_joint or config.get("main_process_ip")):
            continue
        mark, expected = mark_of(task, None if given is None else given.value_word), f"--num_machines={hosts}"
        source = "" if given is not None else " in its config file"
        text = f"num_machines is 1{source}, but accelerate starts on {hosts} hosts"
        yield at_mark(submission, mark, text, seen="1", expected=expected, label=f"add {expected}")


@each_node_own_world.look
def own_worlds(log: Log) -> Iterator[Finding]:
    """Several nodes each report that they are the only member."""
    from ddpdoctor.logs.context_patterns import context_lines
    from ddpdoctor.rules.log.world_sizes import worlds_finding

    alone: dict[str, LogLine] = {}
    for line, found in context_lines(log, "member"):
        if found["members"] == "1":
            alone.setdefault(line.who.host or log.sources[line.source].name, line)
    if len(alone) > 1:
        first = next(iter(alone.values()))
        yield worlds_finding(log, f"{', '.join(alone)} each formed a world of one rank", list(alone.values()), first)
