"""LAUNCH028 to 030, 038, 048, 064, 068: rendezvous options that are ignored, incomplete, or work only by chance."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.job import Job
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, Word, quote
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.launch.jobs import agent_of
from ddpdoctor.launch.rendezvous import ACCELERATE_NAMES, DEFAULT_C10D_PORT, DEFAULT_PORT
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import after, agents, before, option_text, point, remove, revalue, spelled
from ddpdoctor.rules.launch.submitted import agents_of, at_mark, is_varied, mark_of

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
    --standalone sets the backend, the endpoint and the id itself, and never reads the master address. The other
    options have no effect, and torchrun does not say so.

    ## Fix
    Remove the other options, or `--standalone` on several nodes.

    ## Example
        warning[LAUNCH028]: --standalone ignores --master-port

        # before
        torchrun --standalone --master-port=29600 train.py

        # after
        torchrun --standalone train.py

    ## Source
    torch/distributed/run.py: `run`.
    """
    for line, layer, plan in agents(launch):
        if not plan.is_standalone or layer.given("standalone") is None or plan.is_multinode:
            continue
        ignored = [d for d in OVERRIDDEN if layer.given(d) is not None and not _same(layer, d)]
        if ignored:
            words = [w for d in ignored for w in _words(layer, d)]
            options = ", ".join("--" + d.replace("_", "-") for d in ignored)
            text = f"--standalone ignores {options}"
            edits = remove(line, *words)
            yield point(launch, line, words[0], text, "no such option", edits, label="has no effect with --standalone")


def _same(layer: Layer, dest: str) -> bool:
    return (dest, layer.value(dest)) in (("rdzv_backend", "c10d"), ("node_rank", "0"), ("rdzv_endpoint", "localhost:0"))


@cause("LAUNCH029", "static-endpoint-without-port", Severity.ERROR, signatures=(r"port is missing in endpoint",))
def static_endpoint_without_port(launch: Launch) -> Iterator[Finding]:
    """The --rdzv-endpoint of a static rendezvous has no port.

    ## Why it matters
    torchrun fails with `ValueError: port is missing in endpoint: 10.77.0.1. Try to specify --master-port`.
    --master-port does not help: it is not read if there is an endpoint.

    ## Fix
    Add the port to the host.

    ## Example
        ValueError: port is missing in endpoint: 10.77.0.1. Try to specify --master-port

        # before
        torchrun --nnodes=2 --node-rank=0 --rdzv-endpoint=10.77.0.1 train.py

        # after
        torchrun --nnodes=2 --node-rank=0 --rdzv-endpoint=10.77.0.1:29500 train.py
    """
    yield from _without_port(launch, "static", DEFAULT_PORT, "static rendezvous has no default port")


def _host(endpoint: str) -> str:
    return endpoint if len(endpoint) <= 30 else endpoint[:29] + "…"


@cause("LAUNCH030", "c10d-endpoint-without-port", Severity.WARNING)
def c10d_endpoint_without_port(launch: Launch) -> Iterator[Finding]:
    """The --rdzv-endpoint of a c10d rendezvous has no port.

    ## Why it matters
    The default port 29400 is used. A node whose line names another port, such as 29500, never joins the others.

    ## Fix
    Add the port to the host.

    ## Example
        warning[LAUNCH030]: rendezvous endpoint HOST0 has no port

        # before
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0 train.py

        # after
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
    """
    yield from _without_port(launch, "c10d", DEFAULT_C10D_PORT, "port 29400 is the default")


def _without_port(launch: Launch, backend: str, port: int, label: str) -> Iterator[Finding]:
    for line, layer, plan in agents(launch):
        value = plan.settings["rdzv_endpoint"].value
        given = layer.given("rdzv_endpoint")
        if plan.is_standalone is not False or plan.backend != backend or not value or ":" in value:
            continue
        edits = None if given is None else [revalue(given, quote(f"{value}:{port}"))]
        word = layer.program if given is None else given.value_word
        text = f"rendezvous endpoint {_host(value)} has no port"
        yield point(launch, line, word, text, f"{value}:{port}", edits, label=label)


@cause("LAUNCH038", "node-rank-out-of-range", Severity.ERROR, repairs=("escape", "node-rank", "wrap", "task-count"))
def node_rank_out_of_range(launch: Launch, job: Job) -> Iterator[Finding]:
    """A --node-rank is below 0, or not below the number of nodes.

    ## Why it matters
    The node joins with a rank that no node expects, and the job waits 15 to 30 minutes for the missing rank, without
    a message. Usually the ranks were counted from 1.

    ## Fix
    Give every node its own rank from 0 to nnodes-1.

    ## Example
        error[LAUNCH038]: --node-rank is 2, but the job has only 2 nodes

        # before
        torchrun --nnodes=2 --node-rank=2 --master-addr=HOST0 train.py

        # after
        torchrun --nnodes=2 --node-rank=1 --master-addr=HOST0 train.py
    """
    ranks = [node.plan.node_rank for node in job.nodes]
    if len(ranks) > 1 and 0 not in ranks and None not in ranks:
        return  # no node has rank 0: LAUNCH037
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
            allowed = f"0 to {nodes[1] - 1}"
            text = f"{name} is {rank}, but the job has only {nodes[1]} node{'s' * (nodes[1] > 1)}"
            yield point(launch, line, word, text, allowed, edits, label=f"allowed: {allowed}")


@node_rank_out_of_range.look
def ranks_of_an_array(submission: Submission) -> Iterator[Finding]:
    """The jobs of an array are the nodes, and its indices begin at 1."""
    for _, task, agent in agents_of(submission):
        plan, word = agent.plan, agent.plan.settings["node_rank"].word
        if word is None or plan.backend != "static" or plan.nnodes is None or plan.node_rank is None:
            continue
        if not is_varied(task, word) or not plan.node_rank == plan.nnodes[1] > 1:
            continue
        text = f"--node-rank is {plan.node_rank} in the last job of the array, but --nnodes is {plan.nnodes[1]}"
        expected, label = f"0 to {plan.nnodes[1] - 1}", "subtract 1 from the index"
        yield at_mark(submission, mark_of(task, word), text, seen=str(plan.node_rank), expected=expected, label=label)


@cause("LAUNCH048", "max-restarts-unreliable", Severity.NOTE)
def max_restarts_unreliable(launch: Launch) -> Iterator[Finding]:
    """--max-restarts may fail because the store still has keys of the previous attempt.

    ## Why it matters
    Since torch 2.6 the workers of all attempts share the launcher's store without a prefix. A restarted rank can read
    an address of the previous attempt and fail with `Gloo connectFullMesh failed … Connection refused`, which hides
    the first error.

    ## Fix
    Use `--max-restarts=0` while you debug.

    For elastic jobs use c10d with `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`.

    ## Example
        note[LAUNCH048]: --max-restarts=3 can reuse keys of the failed attempt

        # before
        torchrun --max-restarts=3 --nproc-per-node=2 train.py

        # after
        torchrun --max-restarts=0 --nproc-per-node=2 train.py
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
        text = f"{option_text(given)} can reuse keys of the failed attempt"
        expected = "0, or TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
        yield point(launch, line, given.word, text, expected, edits, label="restarts share one store")


@cause(
    "LAUNCH064",
    "sighup-ends-launcher",
    Severity.ERROR,
    stage=CausalStage.TERMINATED,
    signatures=(r"got signal: 1\b", r"Received (1|Signals\.SIGHUP|SIGHUP) death signal", r"closing signal SIGHUP"),
)
def sighup_ends_launcher(launch: Launch) -> Iterator[Finding]:
    """torchrun ends when the terminal closes, although it was started with nohup.

    ## Why it matters
    torchrun installs its own SIGHUP handler, which replaces the setting of nohup. Logging out ends the job with
    `SignalException: Process … got signal: 1`.

    ## Fix
    Start it with setsid, in tmux, or with sbatch.

    With torch 2.10 and newer you can also leave SIGHUP out of `--signals-to-handle`.

    ## Example
        warning[LAUNCH064]: nohup does not protect torchrun from SIGHUP

        # before
        nohup torchrun --nproc-per-node=2 train.py &

        # after
        setsid torchrun --nproc-per-node=2 train.py &
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
        text = "nohup does not protect torchrun from SIGHUP"
        label = "torchrun installs its own SIGHUP handler"
        yield point(launch, line, nohup.program, text, "setsid", edits, label=label, severity=Severity.WARNING)


@cause("LAUNCH068", "node-rank-on-single-node", Severity.WARNING)
def node_rank_on_single_node(launch: Launch) -> Iterator[Finding]:
    """--node-rank is above 0 in a job of one node.

    ## Why it matters
    Without --nnodes the job has one node, and its rank is ignored. If --master-port makes the rendezvous static, the
    node is a client of a master that may not exist and waits 30 minutes.

    ## Fix
    Add `--nnodes`, or remove `--node-rank`.

    ## Example
        warning[LAUNCH068]: --node-rank=1 in a job of one node

        # before
        torchrun --node-rank=1 --nproc-per-node=2 train.py

        # after
        torchrun --nproc-per-node=2 train.py
    """
    several = any(line.plan is not None and line.plan.is_multinode for line in launch.nodes)
    for line, layer, plan in agents(launch):
        given = layer.given("node_rank")
        if given is None or not plan.node_rank or plan.node_rank < 1 or plan.nnodes is None or plan.nnodes[1] > 1:
            continue
        if plan.is_standalone or (several and _joins(launch, line)):
            continue
        edits = remove(line, *_words(layer, "node_rank"))
        text = f"--node-rank={plan.node_rank} in a job of one node"
        yield point(launch, line, given.word, text, "--nnodes", edits, label="add --nnodes, or remove it")


def _joins(launch: Launch, line: LaunchLine) -> bool:
    """Another line of the job has the number of nodes: node 1 then works without it."""
    return line.node is not None and len(launch.nodes) > 1 and line.layer(LauncherKind.TORCHRUN) is not None
