"""LAUNCH028 to 030, 038, 048, 064, 068: rendezvous options that are ignored, incomplete, or work by luck."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.job import Job
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, Word, quote
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.launch.jobs import agent_of
from ddpdoctor.launch.rendezvous import ACCELERATE_NAMES, DEFAULT_C10D_PORT, DEFAULT_PORT
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import after, agents, before, point, remove, revalue, shown, spelled

OVERRIDDEN = ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "master_addr", "master_port", "node_rank")


def _words(layer: Layer, dest: str) -> list[Word]:
    given = layer.given(dest)
    if given is None:
        return []
    return [given.word] if given.is_joined else [given.word, given.value_word]


@cause("LAUNCH028", "standalone-overrides-rendezvous", Severity.WARNING)
def standalone_overrides_rendezvous(launch: Launch) -> Iterator[Finding]:
    """--standalone overrides other rendezvous options of the same line.

    ## Why it matters
    --standalone sets backend, endpoint and id itself and never looks at the master's address. The other options are accepted
    without a word and do nothing; whoever reads the line believes otherwise.

    ## Fix
    Keep --standalone for one node, or the other options without it.

    ## Source
    torch/distributed/run.py: `run`.
    """
    for line, layer, plan in agents(launch):
        if not plan.is_standalone or layer.given("standalone") is None or plan.is_multinode:
            continue
        found = [d for d in OVERRIDDEN if layer.given(d) is not None and not _same(layer, d)]
        if found:
            words = [w for d in found for w in _words(layer, d)]
            told = ", ".join("--" + d.replace("_", "-") for d in found)
            text = f"--standalone ignores {told}: expected one or the other"
            yield point(launch, line, words[0], text, "no such option", remove(line, *words))


def _same(layer: Layer, dest: str) -> bool:
    return (dest, layer.value(dest)) in (("rdzv_backend", "c10d"), ("node_rank", "0"), ("rdzv_endpoint", "localhost:0"))


@cause("LAUNCH029", "static-endpoint-without-port", Severity.ERROR, signatures=(r"port is missing in endpoint",))
def static_endpoint_without_port(launch: Launch) -> Iterator[Finding]:
    """The --rdzv-endpoint of a static rendezvous has no port.

    ## Why it matters
    `ValueError: port is missing in endpoint: 10.77.0.1. Try to specify --master-port`, although --master-port is not read once
    an endpoint is given.

    ## Fix
    Write the port behind the host.
    """
    yield from _without_port(launch, "static", DEFAULT_PORT, "static rendezvous has no default port")


@cause("LAUNCH030", "c10d-endpoint-without-port", Severity.WARNING)
def c10d_endpoint_without_port(launch: Launch) -> Iterator[Finding]:
    """The --rdzv-endpoint of a c10d rendezvous has no port.

    ## Why it matters
    It works by a default, 29400. A node whose line names another port, or 29500 out of habit, never meets the others.

    ## Fix
    Write the port behind the host.
    """
    yield from _without_port(launch, "c10d", DEFAULT_C10D_PORT, "29400 is taken by default")


def _without_port(launch: Launch, backend: str, port: int, what: str) -> Iterator[Finding]:
    for line, layer, plan in agents(launch):
        value = plan.settings["rdzv_endpoint"].value
        given = layer.given("rdzv_endpoint")
        if plan.is_standalone is not False or plan.backend != backend or not value or ":" in value:
            continue
        edits = None if given is None else [revalue(given, quote(f"{value}:{port}"))]
        word = layer.program if given is None else given.value_word
        yield point(
            launch, line, word, f"{value} has no port, {what}: expected {value}:{port}", f"{value}:{port}", edits
        )


@cause("LAUNCH038", "node-rank-out-of-range", Severity.ERROR)
def node_rank_out_of_range(launch: Launch, job: Job) -> Iterator[Finding]:
    """A --node-rank is below 0 or not below the number of nodes.

    ## Why it matters
    The node joins under a rank that nobody waits for, and the rank that is waited for never comes: a silent hang of 15 to 30
    minutes. Mostly the ranks were counted from 1.

    ## Fix
    Give every node its own rank from 0 to nnodes-1.
    """
    ranks = [node.plan.node_rank for node in job.nodes]
    if len(ranks) > 1 and 0 not in ranks and None not in ranks:
        return  # nobody is rank 0: that is LAUNCH037
    for agent in (agent for each in launch.lines if (agent := agent_of(each)) is not None):
        line, layer, plan = agent.line, agent.layer, agent.plan
        rank, nodes = plan.node_rank, plan.nnodes
        given = layer.given("node_rank") or layer.given(ACCELERATE_NAMES["node_rank"])
        if rank is None or nodes is None or plan.backend != "static" or plan.given("node_rank") is False:
            continue
        if rank < 0 or (rank >= nodes[1] > 1):
            meant = str(max(0, min(rank, nodes[1]) - 1))
            edits = [revalue(given, meant)] if given is not None and (rank == nodes[1] or rank < 0) else None
            word = layer.program if given is None else given.value_word
            name = "--node-rank" if layer.launcher is not LauncherKind.ACCELERATE else "--machine_rank"
            text = f"{name} is {rank} of {nodes[1]} nodes: expected 0 to {nodes[1] - 1}"
            yield point(launch, line, word, text, f"0 to {nodes[1] - 1}", edits)


@cause("LAUNCH048", "max-restarts-unreliable", Severity.WARNING)
def max_restarts_unreliable(launch: Launch) -> Iterator[Finding]:
    """--max-restarts may fail, because the store still holds keys of the attempt before.

    ## Why it matters
    Since torch 2.6 the workers of every attempt share the agents' store without a prefix. A restarted rank can read an address
    of the dead attempt and fails with `Gloo connectFullMesh failed … Connection refused`, which hides the first error.

    ## Fix
    --max-restarts=0 while you look for an error; for elastic jobs c10d with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
    """
    for line, layer, plan in agents(launch):
        given = layer.given("max_restarts")
        if (
            given is None
            or launch.version < (2, 6)
            or not (given.value or "").strip().isdigit()
            or int(given.value or 0) < 1
        ):
            continue
        if line.environ.variables.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1" and plan.backend == "c10d":
            continue
        edits: list[SpanEdit] = []
        if plan.backend == "c10d":
            edits = [before(line.argv[0] if line.argv else layer.program, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")]
        else:
            edits = [revalue(given, "0")]
        text = f"{shown(given.word)}: a restart can meet keys of the dead attempt; expected 0, or c10d with a store of its own"
        yield point(launch, line, given.word, text, "0, or TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", edits)


@cause(
    "LAUNCH064",
    "sighup-ends-launcher",
    Severity.ERROR,
    stage=CausalStage.TERMINATED,
    signatures=(r"got signal: 1\b", r"Received (1|Signals\.SIGHUP|SIGHUP) death signal", r"closing signal SIGHUP"),
)
def sighup_ends_launcher(launch: Launch) -> Iterator[Finding]:
    """The terminal closes and torchrun ends on SIGHUP, in spite of nohup.

    ## Why it matters
    torchrun installs a SIGHUP handler of its own over the one that nohup ignores: logging out ends the job with
    `SignalException: Process … got signal: 1`.

    ## Fix
    Start it with setsid, in tmux, or by sbatch; with torch 2.10 and newer leave SIGHUP out of --signals-to-handle.
    """
    for line, layer, plan in agents(launch):
        nohup = next((x for x in line.layers if x.name == "nohup"), None)
        signals = plan.settings.get("signals_to_handle")
        if nohup is None or any(x.name in ("setsid", "srun", "tmux", "screen") for x in line.layers) or line.batch:
            continue
        if signals is not None and (signals.value is None or "SIGHUP" not in signals.value):
            continue
        option = f"{spelled(layer, 'signals_to_handle', launch.version)}=SIGTERM,SIGINT,SIGQUIT"
        given = layer.given("signals_to_handle")
        if signals is not None and given is None:
            edits = [after(layer.own[-1], option)]
        else:
            edits = [SpanEdit(nohup.program.start, nohup.program.end, "setsid")]
        text = "torchrun handles SIGHUP itself, so nohup does not keep it alive: expected setsid, or SIGHUP left out"
        yield point(launch, line, nohup.program, text, "setsid", edits, severity=Severity.WARNING)


@cause("LAUNCH068", "node-rank-on-single-node", Severity.WARNING)
def node_rank_on_single_node(launch: Launch) -> Iterator[Finding]:
    """--node-rank is above 0 in a launch of one node.

    ## Why it matters
    Without --nnodes the job has one node. Its rank is ignored, or, where --master-port makes the rendezvous static, the node is
    a client of a master that may not exist and waits half an hour.

    ## Fix
    Add --nnodes, or remove --node-rank.
    """
    several = any(line.plan is not None and line.plan.is_multinode for line in launch.nodes)
    for line, layer, plan in agents(launch):
        given = layer.given("node_rank")
        if given is None or not plan.node_rank or plan.node_rank < 1 or plan.nnodes is None or plan.nnodes[1] > 1:
            continue
        if plan.is_standalone or (several and _joins(launch, line)):
            continue
        text = f"--node-rank={plan.node_rank} in a job of one node: expected --nnodes above {plan.node_rank}, or no node rank"
        yield point(launch, line, given.word, text, "--nnodes", remove(line, *_words(layer, "node_rank")))


def _joins(launch: Launch, line: LaunchLine) -> bool:
    """Another line of the job says how many nodes there are: node 1 then works without."""
    return line.node is not None and len(launch.nodes) > 1 and line.layer(LauncherKind.TORCHRUN) is not None
