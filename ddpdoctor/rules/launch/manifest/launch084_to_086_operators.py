"""LAUNCH084 to 086: what Kubeflow's operators set for a pod, compared with the line that the pod runs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.pod import Operator, Pod
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.reading import Given
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, is_known
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import agents, option_text, point, remove, revalue, shown

_OPERATORS = (Operator.PYTORCHJOB, Operator.TRAINJOB)
_STARTS_ITSELF = re.compile(
    r"spawn|multiprocessing|launch|deepspeed|nproc|num[-_]gpus|devices|world[-_]size", re.IGNORECASE
)
_RANK_OPTION = re.compile(r"--?(?:global[-_]?)?rank|--local[-_]rank")


def _uses(text: str, name: str) -> bool:
    return bool(re.search(rf"\$(?:{name}\b|\{{{name}\}}|\({name}\))", text))


@cause("LAUNCH084", "pod-without-launcher", Severity.WARNING)
def pod_without_launcher(launch: Launch) -> Iterator[Finding]:
    """A PyTorchJob pod with several GPUs runs the script in one process.

    ## Why it matters
    The operator counts pods in RANK and WORLD_SIZE. `python train.py` is one process per pod, and all other GPUs of
    the pod are idle, unless the script starts processes itself.

    ## Fix
    Start the script with torchrun, one process per GPU.

    ## Example
        warning[LAUNCH084]: 1 process in a pod with 8 GPUs

        # before
        command: [python, train.py]

        # after
        command: [torchrun, --nnodes=$(WORLD_SIZE), --node-rank=$(RANK), --master-addr=$(MASTER_ADDR),
                  --master-port=$(MASTER_PORT), --nproc-per-node=8, train.py]
    """
    for line in launch.lines:
        pod, program = line.pod, line.program
        if pod is None or pod.operator is not Operator.PYTORCHJOB or (pod.gpus or 0) < 2 or program is None:
            continue
        if program.launcher is not LauncherKind.PYTHON or line.starter is not None or line.task_starter is not None:
            continue
        script = program.reading.script
        arguments = (script, *program.reading.arguments)
        if script is None or any(w is not None and _STARTS_ITSELF.search(w.text) for w in arguments):
            continue
        if _pod_rank(program) is not None:
            continue
        text, edits = f"1 process in a pod with {pod.gpus} GPUs", [_torchrun(program, pod)]
        label = f"use torchrun --nproc-per-node={pod.gpus}"
        yield point(launch, line, program.program, text, "torchrun", edits, label=label)


def _torchrun(program: Layer, pod: Pod) -> SpanEdit:
    """Replace Python and its options by torchrun with the variables of the operator. With an nprocPerNode its WORLD_SIZE
    counts processes, so the number of pods is written out.
    """
    form = "${}" if pod.in_shell else "$({})"
    counts_processes = (pod.nproc or "1").isdigit() and int(pod.nproc or "1") > 1
    nodes = form.format("WORLD_SIZE")
    if counts_processes:
        nodes = form.format("PET_NNODES") if pod.pods is None else str(pod.pods)
    options = (("node-rank", "RANK"), ("master-addr", "MASTER_ADDR"), ("master-port", "MASTER_PORT"))
    passed = " ".join((f"--nnodes={nodes}", *(f"--{option}={form.format(name)}" for option, name in options)))
    script = program.reading.script
    module = " -m" if program.given("module") is not None else ""
    assert script is not None
    return SpanEdit(program.program.start, script.start, f"torchrun {passed} --nproc-per-node={pod.gpus}{module} ")


@cause(
    "LAUNCH085",
    "operator-settings-overridden",
    Severity.ERROR,
    explains=("LAUNCH035", "LAUNCH036", "LAUNCH037", "LAUNCH038", "LAUNCH070", "ENV020", "NET012"),
)
def operator_settings_overridden(launch: Launch) -> Iterator[Finding]:
    """Options of the launch line contradict what the operator sets for the pods.

    ## Why it matters
    Options of torchrun override the PET_ variables of the operator. A size that is not the number of pods, one node
    rank for all pods or the address of another job makes the pods wait until the rendezvous times out.

    ## Fix
    Remove the options that the operator sets.

    These are --nnodes, --node-rank, --master-addr, --master-port and the rendezvous options.

    ## Example
        error[LAUNCH085]: --nnodes=2, but the PyTorchJob has 4 pods

        # before
        command: [torchrun, --nnodes=2, --nproc-per-node=8, train.py]

        # after
        command: [torchrun, --nproc-per-node=8, train.py]
    """
    for line, layer, plan in agents(launch):
        if line.pod is None or line.pod.operator not in _OPERATORS:
            continue
        for given, text, expected in _contradictions(layer, plan, line.pod):
            words = [given.word] if given.is_joined or given.value is None else [given.word, given.value_word]
            label = "remove it: the operator sets it"
            yield point(launch, line, given.value_word, text, expected, remove(line, *words), label=label)


def _contradictions(layer: Layer, plan: Plan, pod: Pod) -> Iterator[tuple[Given, str, str]]:
    nnodes, standalone, rank = layer.given("nnodes"), layer.given("standalone"), layer.given("node_rank")
    job = f"the {pod.operator.value} has {pod.pods} pods"
    if pod.pods is not None and pod.pods > 1 and standalone is not None and not plan.is_multinode:
        yield standalone, f"--standalone, but {job}", "no --standalone"
    if (
        pod.pods is not None
        and nnodes is not None
        and plan.nnodes is not None
        and not plan.nnodes[0] <= pod.pods <= plan.nnodes[1]
    ):
        yield nnodes, f"{option_text(nnodes)}, but {job}", f"--nnodes={pod.pods}"
    static = plan.backend == "static" or (plan.backend is None and layer.given("rdzv_backend") is None)
    if rank is not None and static and plan.node_rank is not None and _is_shared(plan.node_rank, pod):
        yield rank, f"{option_text(rank)} on every pod, but {job}", "no --node-rank"
    address = layer.given("master_addr")
    if address is not None and is_known(address.value) and (wanted := _other_job(address.value or "", pod)):
        yield address, f"{address.value:.30} is not a pod of {pod.name:.20}", wanted


def _is_shared(rank: int, pod: Pod) -> bool:
    """Several pods get this literal node rank, or a pod that cannot have it."""
    if pod.pods is None or pod.pods < 2:
        return False
    if pod.operator is Operator.TRAINJOB:
        return True
    return pod.role == "Worker" and (pod.pods > 2 or rank == 0)


def _other_job(address: str, pod: Pod) -> str | None:
    """The first pod's name, if the address is the first pod of a job with another name."""
    if pod.name is None:
        return None
    if pod.operator is Operator.PYTORCHJOB:
        match = re.fullmatch(r"([a-z0-9.-]+)-master-0(\..*)?", address)
        return f"{pod.name}-master-0" if match and match[1] != pod.name else None
    match = re.fullmatch(r"([a-z0-9-]+)-node-0-0\.([a-z0-9-]+)(\..*)?", address)
    return f"{pod.name}-node-0-0.{pod.name}" if match and match[1] != pod.name else None


@cause("LAUNCH086", "pod-rank-used-as-process-rank", Severity.ERROR)
def pod_rank_used_as_process_rank(launch: Launch) -> Iterator[Finding]:
    """The pod's index is used as a process rank, or the pod count as process count.

    ## Why it matters
    RANK and WORLD_SIZE of a PyTorchJob count pods. With several GPUs per pod, ranks collide (`Duplicate GPU
    detected`) or GPUs are idle.

    ## Fix
    Pass them to torchrun: `--node-rank=$RANK --nnodes=$WORLD_SIZE`.

    --nproc-per-node is the number of GPUs of one pod.

    ## Example
        error[LAUNCH086]: --nproc-per-node=$(WORLD_SIZE) is the number of pods

        # before
        command: [torchrun, --nproc-per-node=$(WORLD_SIZE), train.py]

        # after
        command: [torchrun, --nproc-per-node=8, train.py]
    """
    for line in launch.lines:
        pod, program = line.pod, line.program
        if pod is None or pod.operator is not Operator.PYTORCHJOB or (pod.gpus or 0) < 2 or program is None:
            continue
        given = _counted(line, pod)
        if given is not None:
            text, edits = f"{option_text(given)} is the number of pods", [revalue(given, str(pod.gpus))]
            label = f"use {pod.gpus}, the GPUs per pod"
            yield point(launch, line, given.value_word, text, str(pod.gpus), edits, label=label)
        index = _pod_rank(program) if program.launcher is LauncherKind.PYTHON and line.starter is None else None
        if index is not None:
            word = program.reading.arguments[index]
            text = f"{shown(word):.24} is the index of the pod, not of a process"
            label = "use torchrun with --node-rank=$RANK"
            yield point(launch, line, word, text, "--node-rank=$RANK of torchrun", None, label=label)


def _counted(line: LaunchLine, pod: Pod) -> Given | None:
    """--nproc-per-node that is set to the number of pods, if that is another number."""
    agent = line.agent
    given = None if agent is None or agent.is_garbled else agent.given("nproc_per_node")
    if given is None or pod.pods == pod.gpus:
        return None
    return given if _uses(given.value_word.raw, "WORLD_SIZE") else None


def _pod_rank(program: Layer) -> int | None:
    """Which argument of the script is $RANK, passed as a rank."""
    words = program.reading.arguments
    for i, word in enumerate(words):
        if not _uses(word.raw, "RANK"):
            continue
        name = word.text.partition("=")[0] if "=" in word.text else words[i - 1].text if i else ""
        if _RANK_OPTION.fullmatch(name):
            return i
    return None
