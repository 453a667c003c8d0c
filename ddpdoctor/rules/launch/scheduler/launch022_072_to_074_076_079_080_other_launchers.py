"""LAUNCH022, 072 to 074, 076, 079, 080: accelerate, deepspeed, and nodes without a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.gaps import Why, unanswered
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.reading import Given
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import is_known
from ddpdoctor.facts.visibility import listed
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import HOST0, after, agents, point, remove, revalue, shown, spelled

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu

CVD = "CUDA_VISIBLE_DEVICES"


def _layers(launch: Launch, launcher: LauncherKind) -> Iterator[tuple[LaunchLine, Layer]]:
    for line in launch.lines:
        layer = line.layer(launcher)
        if layer is not None and not layer.is_garbled and not layer.reading.is_help:
            yield line, layer


def _number(layer: Layer, dest: str) -> int | None:
    value = layer.value(dest)
    return int(value) if value is not None and re.fullmatch(r"\d{1,9}", value) else None


def _count(line: LaunchLine, layer: Layer, dest: str) -> int | None:
    """An option's number, else the one of accelerate's config file."""
    if layer.given(dest) is not None:
        return _number(layer, dest)
    value = (line.config or {}).get(dest, "")
    return int(value) if re.fullmatch(r"\d{1,9}", value) else None


def _visible(line: LaunchLine) -> int | None:
    """How many GPUs the line's own CUDA_VISIBLE_DEVICES leaves; None when it says nothing."""
    value = line.environ.variables.get(CVD)
    return listed(value) if is_known(value or "") else None


@cause(
    "LAUNCH022", "nproc-per-node-gpu-without-gpu", Severity.ERROR, signatures=(r"ValueError: Cuda is not available\.",)
)
def nproc_per_node_gpu_without_gpu(launch: Launch, gpu: Gpu) -> Iterator[Finding]:
    """--nproc-per-node=gpu on a node without a GPU.

    ## Why it matters
    `ValueError: Cuda is not available.` from the launcher: no driver, a torch without CUDA, or a GPU that is hidden.

    ## Fix
    Repair the access to the GPU, or give a number.
    """
    # A driver that did not answer says nothing of how many GPUs there are.
    if not gpu.devices and (gap := gpu.gap("devices")) is not None and gap.why is not Why.NOT_HERE:
        unanswered(gap.reason)
    for line, layer, plan in agents(launch):
        given = layer.given("nproc_per_node")
        if given is not None and plan.settings["nproc_per_node"].value == "gpu" and not gpu.devices:
            text = f"{shown(given.word)} on a node without a GPU: expected a number"
            yield point(launch, line, given.value_word, text, "a number", [revalue(given, "1")])


@cause("LAUNCH072", "accelerate-num-processes-per-node", Severity.ERROR)
def accelerate_num_processes_per_node(launch: Launch) -> Iterator[Finding]:
    """accelerate's --num_processes is given for one machine, but it is the total.

    ## Why it matters
    --num_processes counts the processes of all machines. With the number of one machine each of them starts too few, and the
    launch runs a smaller world than meant, or waits.

    ## Fix
    Multiply: machines times GPUs of one machine, the same on every machine.
    """
    for line, layer in _layers(launch, LauncherKind.ACCELERATE):
        total, machines = _count(line, layer, "num_processes"), _count(line, layer, "num_machines")
        if total is None or machines is None or machines < 2 or (total >= machines and total % machines == 0):
            continue
        given, wanted = layer.given("num_processes"), str(total * machines)
        if given is not None:
            edits = [revalue(given, wanted)]
        else:
            edits = [after(layer.own[-1], f"{spelled(layer, 'num_processes', (2, 0))}={wanted}")]
        word = layer.program if given is None else given.value_word
        text = f"{total} processes in all for {machines} machines: expected a multiple of {machines}"
        yield point(launch, line, word, text, wanted, edits)


@cause("LAUNCH073", "accelerate-cpu-single-process", Severity.ERROR)
def accelerate_cpu_single_process(launch: Launch) -> Iterator[Finding]:
    """accelerate launch on the CPU starts one process, although more were asked for.

    ## Why it matters
    With --cpu accelerate starts more than one process only by MPI: --num_processes 2 starts one and exits 0.

    ## Fix
    Use torchrun, or give --mpirun_hostfile.
    """
    for line, layer in _layers(launch, LauncherKind.ACCELERATE):
        total, flag = _number(layer, "num_processes"), layer.given("cpu")
        if flag is None or total is None or total < 2 or layer.given("mpirun_hostfile") or layer.given("config_file"):
            continue
        if layer.given("num_machines") is not None and (_number(layer, "num_machines") or 1) > 1:
            continue
        text = f"--cpu with {total} processes starts one: expected torchrun --nproc-per-node={total}"
        yield point(launch, line, flag.word, text, "torchrun", None)


@cause(
    "LAUNCH074",
    "accelerate-main-process-ip-missing",
    Severity.ERROR,
    signatures=(r"you need to specify the main process IP",),
)
def accelerate_main_process_ip_missing(launch: Launch) -> Iterator[Finding]:
    """accelerate is given several machines but no address of the main process.

    ## Why it matters
    `When using multiple machines, you need to specify the main process IP.`, or a TypeError about NoneType.

    ## Fix
    Add --main_process_ip and --main_process_port, the same on every machine.
    """
    for line, layer in _layers(launch, LauncherKind.ACCELERATE):
        machines, given = _count(line, layer, "num_machines"), layer.given("num_machines")
        if machines is None or machines < 2 or layer.reading.is_open:
            continue
        if any(layer.given(d) for d in ("main_process_ip", "deepspeed_hostfile")):
            continue
        config = line.config or {}
        if (layer.given("config_file") is not None and line.config is None) or _is_set(config.get("main_process_ip")):
            continue
        options = f"{spelled(layer, 'main_process_ip', (2, 0))}={HOST0}"
        if layer.given("main_process_port") is None and not _is_set(config.get("main_process_port")):
            options += f" {spelled(layer, 'main_process_port', (2, 0))}=29500"
        text = f"{machines} machines and no --main_process_ip: expected the address of machine 0"
        word = layer.program if given is None else given.word
        yield point(launch, line, word, text, "--main_process_ip", [after(layer.own[-1], options)])


def _is_set(value: str | None) -> bool:
    return value not in (None, "null", "~")


@cause(
    "LAUNCH076",
    "deepspeed-include-renumbered",
    Severity.ERROR,
    signatures=(r"No slot '?\d+'? specif",),
)
def deepspeed_include_renumbered(launch: Launch) -> Iterator[Finding]:
    """deepspeed is given GPU numbers that CUDA_VISIBLE_DEVICES has renumbered.

    ## Why it matters
    `No slot '2' specified on host 'localhost'`: deepspeed counts the visible GPUs and then looks up the number of the board.

    ## Fix
    Unset CUDA_VISIBLE_DEVICES and choose with --include alone.
    """
    for line, layer in _layers(launch, LauncherKind.DEEPSPEED):
        count, given = _visible(line), layer.given("include")
        if count is None or given is None or not is_known(given.value) or layer.given("hostfile") is not None:
            continue
        slots = [int(n) for n in re.findall(r"\d+", (given.value or "").partition(":")[2])]
        if any(slot >= count for slot in slots):
            word = next((v.word for v in layer.variables if v.name == CVD), None)
            edits = None if word is None or not word.raw else remove(line, word)
            value = line.environ.variables[CVD]
            text = f"{shown(given.value_word)} names GPUs beyond the {count} of {CVD}={value}: expected --include alone"
            yield point(launch, line, given.value_word, text, f"no {CVD}", edits)


@cause(
    "LAUNCH079",
    "deepspeed-hostfile-missing",
    Severity.ERROR,
    signatures=(r"no extra nodes available via hostfile",),
)
def deepspeed_hostfile_missing(launch: Launch) -> Iterator[Finding]:
    """deepspeed is given several nodes but no hostfile.

    ## Why it matters
    `Num nodes is >1 but no extra nodes available via hostfile`.

    ## Fix
    Add --hostfile with lines such as `node1 slots=8`.
    """
    for line, layer in _layers(launch, LauncherKind.DEEPSPEED):
        count, given = _number(layer, "num_nodes"), layer.given("num_nodes")
        if count is None or count < 2 or given is None or layer.reading.is_open:
            continue
        if layer.given("hostfile") is not None or layer.given("no_ssh") is not None:
            continue
        text = f"{count} nodes and no --hostfile: expected a file with the nodes' names"
        yield point(launch, line, given.word, text, "--hostfile", [after(layer.own[-1], "--hostfile=hostfile")])


@cause(
    "LAUNCH080",
    "deepspeed-selection-conflict",
    Severity.ERROR,
    signatures=(r"Cannot specify num_nodes/gpus with include/exclude",),
)
def deepspeed_selection_conflict(launch: Launch) -> Iterator[Finding]:
    """deepspeed is given two of --include, --exclude and the numbers --num_gpus or --num_nodes.

    ## Why it matters
    `ValueError: Cannot specify num_nodes/gpus with include/exclude`, or `include_str and exclude_str are mutually exclusive.`

    ## Fix
    Keep one of them.
    """
    for line, layer in _layers(launch, LauncherKind.DEEPSPEED):
        chosen = next((g for d in ("include", "exclude") if (g := layer.given(d))), None)
        others = ("exclude", "num_gpus", "num_nodes", "num_accelerators")
        counted: list[Given] = [g for d in others if (g := layer.given(d)) and g is not chosen]
        if chosen is None or not counted:
            continue
        words = [w for g in counted for w in ([g.word] if g.is_joined else [g.word, g.value_word])]
        text = f"{chosen.written} and {counted[0].written} exclude each other: expected one of them"
        yield point(launch, line, counted[0].word, text, chosen.written, remove(line, *words))
