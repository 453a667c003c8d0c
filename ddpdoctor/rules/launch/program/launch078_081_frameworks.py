"""LAUNCH078, LAUNCH081: what DeepSpeed and Lightning expect of the launcher."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.launch.words import SpanEdit, Word, escape
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import agents, before, point, revalue, spelled
from ddpdoctor.rules.launch.program.launch049_to_051_053_to_056_launcher_of_program import plain_python


@cause(
    "LAUNCH078",
    "deepspeed-mpi-discovery",
    Severity.ERROR,
    signatures=(r"attempting to detect MPI environment", r"No module named 'mpi4py'"),
)
def deepspeed_mpi_discovery(launch: Launch) -> Iterator[Finding]:
    """A script that uses DeepSpeed is started by plain python, so that DeepSpeed looks for MPI.

    ## Why it matters
    `Not using the DeepSpeed or dist launchers, attempting to detect MPI environment…`, then `No module named 'mpi4py'`. MPI is
    not what is missing: nothing has set RANK.

    ## Fix
    Start it with deepspeed, torchrun or accelerate launch.
    """
    for line, layer, script in plain_python(launch):
        if "deepspeed" not in script.frameworks or "RANK" in line.environ.variables or line.task_starter or line.batch:
            continue
        if "RANK" in script.sets or {"accelerate", "transformers", "lightning", "pytorch_lightning"} & set(
            script.frameworks
        ):
            continue
        edits = [SpanEdit(layer.program.start, layer.own[-1].end, escape("deepspeed", layer.program.context))]
        text = (
            f"{script.path} uses DeepSpeed and python sets no RANK: expected deepspeed, torchrun or accelerate launch"
        )
        yield point(launch, line, layer.program, text, "deepspeed", edits)


@cause(
    "LAUNCH081",
    "lightning-world-mismatch",
    Severity.ERROR,
    signatures=(r"in Lightning, but the product \(\d+ \* \d+\) does not match the world size",),
)
def lightning_world_mismatch(launch: Launch) -> Iterator[Finding]:
    """Lightning's Trainer and the launcher disagree on the world size.

    ## Why it matters
    ``You set `devices=2` and `num_nodes=1` in Lightning, but the product (2 * 1) does not match the world size (3).``

    ## Fix
    Make devices times num_nodes what the launcher starts, or devices="auto".
    """
    for line, layer, plan in agents(launch):
        script = line.script
        if script is None or script.trainer_devices is None or plan.nproc is None or plan.nnodes is None:
            continue
        if not {"lightning", "pytorch_lightning"} & set(script.frameworks) or plan.nnodes[0] != plan.nnodes[1]:
            continue
        nodes = script.trainer_nodes or 1
        if script.trainer_devices * nodes != plan.nproc * plan.nnodes[1]:
            given = layer.given("nproc_per_node")
            edits = None
            if nodes == plan.nnodes[1]:
                edits = _nproc(layer, launch, script.trainer_devices)
            text = (
                f"the Trainer has devices={script.trainer_devices} and num_nodes={nodes}, the launcher starts "
                f"{plan.nproc * plan.nnodes[1]}: expected {script.trainer_devices * nodes}"
            )
            word: Word = layer.program if given is None else given.value_word
            yield point(launch, line, word, text, f"{script.trainer_devices} processes a node", edits)


def _nproc(layer: Layer, launch: Launch, count: int) -> list[SpanEdit]:
    given = layer.given("nproc_per_node")
    if given is not None:
        return [revalue(given, str(count))]
    assert layer.reading.script is not None
    return [before(layer.reading.script, f"{spelled(layer, 'nproc_per_node', launch.version)}={count}")]
