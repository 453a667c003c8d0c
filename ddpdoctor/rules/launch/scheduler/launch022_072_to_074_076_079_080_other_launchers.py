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
from ddpdoctor.facts.submission import Submission
from ddpdoctor.facts.visibility import listed
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import HOST0, after, agents, option_text, point, remove, revalue, spelled
from ddpdoctor.rules.launch.submitted import agents_of, at_mark, count_of, mark_of

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
    """The number of an option, or of accelerate's config file."""
    if layer.given(dest) is not None:
        return _number(layer, dest)
    value = (line.config or {}).get(dest, "")
    return int(value) if re.fullmatch(r"\d{1,9}", value) else None


def _visible(line: LaunchLine) -> int | None:
    """How many GPUs the line's own CUDA_VISIBLE_DEVICES shows; None if it is not known."""
    value = line.environ.variables.get(CVD)
    return listed(value) if is_known(value or "") else None


@cause(
    "LAUNCH022", "nproc-per-node-gpu-without-gpu", Severity.ERROR, signatures=(r"ValueError: Cuda is not available\.",)
)
def nproc_per_node_gpu_without_gpu(launch: Launch, gpu: Gpu) -> Iterator[Finding]:
    """--nproc-per-node=gpu is given on a node without a visible GPU.

    ## Why it matters
    torchrun fails with `ValueError: Cuda is not available.`: there is no driver, torch was built without CUDA, or the
    GPU is hidden.

    ## Fix
    Make the GPU visible, or use a number.

    ## Example
        ValueError: Cuda is not available.

        # before
        torchrun --nproc-per-node=gpu train.py

        # after
        torchrun --nproc-per-node=1 train.py
    """
    # If the driver did not answer, the number of GPUs is unknown.
    if not gpu.devices and (gap := gpu.gap("devices")) is not None and gap.why is not Why.NOT_HERE:
        unanswered(gap.reason)
    for line, layer, plan in agents(launch):
        given = layer.given("nproc_per_node")
        if given is not None and plan.settings["nproc_per_node"].value == "gpu" and not gpu.devices:
            text = f"{option_text(given)} on a node without a GPU"
            yield point(launch, line, given.value_word, text, "a number", [revalue(given, "1")], label="use a number")


@cause("LAUNCH072", "accelerate-num-processes-per-node", Severity.ERROR)
def accelerate_num_processes_per_node(launch: Launch) -> Iterator[Finding]:
    """accelerate's --num_processes is the number of one machine, but it must be the total.

    ## Why it matters
    --num_processes counts the processes of all machines. With the number of one machine, each machine starts too few,
    and the job has a smaller world than intended or waits.

    ## Fix
    Use machines times GPUs per machine.

    It is the same on every machine.

    ## Example
        error[LAUNCH072]: --num_processes=1 for 2 machines

        # before
        accelerate launch --num_machines=2 --num_processes=1 --machine_rank=0 --main_process_ip=HOST0 train.py

        # after
        accelerate launch --num_machines=2 --num_processes=2 --machine_rank=0 --main_process_ip=HOST0 train.py
    """
    for line, layer in _layers(launch, LauncherKind.ACCELERATE):
        total, machines = _count(line, layer, "num_processes"), _count(line, layer, "num_machines")
        if total is None or machines is None or machines < 2 or (total >= machines and total % machines == 0):
            continue
        given, meant = layer.given("num_processes"), str(total * machines)
        if given is not None:
            edits = [revalue(given, meant)]
        else:
            edits = [after(layer.own[-1], f"{spelled(layer, 'num_processes', (2, 0))}={meant}")]
        word = layer.program if given is None else given.value_word
        source = f"{total} process{'es' * (total != 1)}" if given is None else option_text(given)
        text, label = f"{source} for {machines} machines", f"use the total, such as {meant}"
        yield point(launch, line, word, text, meant, edits, label=label)


@accelerate_num_processes_per_node.look
def number_of_one_machine(submission: Submission) -> Iterator[Finding]:
    """The total is just the number of GPUs of one machine, on the command line or in the configuration file."""
    for task in (task for step in submission.steps if step.is_certain for task in step.tasks):
        layer, gpus = task.layer, task.gpus
        if layer.launcher is not LauncherKind.ACCELERATE or layer.is_garbled or not gpus or gpus < 2:
            continue
        total, machines = (_count(task.line, layer, name) for name in ("num_processes", "num_machines"))
        hosts = () if task.launcher is None else task.launcher.hosts
        if total != gpus or machines is None or machines < 2 or len(hosts) != machines or layer.given("cpu"):
            continue
        meant, given = str(total * machines), layer.given("num_processes")
        text = f"{total} processes for {machines} machines with {count_of(gpus, 'GPU')} each"
        mark = mark_of(task, None if given is None else given.value_word)
        fix = f"Set num_processes to {meant}, the total of all machines."
        label, severity = f"use the total, {meant}", Severity.WARNING
        yield at_mark(submission, mark, text, seen=str(total), expected=meant, label=label, fix=fix, severity=severity)
        return


@cause("LAUNCH073", "accelerate-cpu-single-process", Severity.ERROR)
def accelerate_cpu_single_process(launch: Launch) -> Iterator[Finding]:
    """accelerate launch --cpu starts one process, although more were requested.

    ## Why it matters
    With --cpu accelerate starts several processes only through MPI: `--num_processes 2` starts one and exits with 0.

    ## Fix
    Use torchrun, or add `--mpirun_hostfile`.

    ## Example
        error[LAUNCH073]: --cpu starts 1 process, not 2

        # before
        accelerate launch --cpu --num_processes=2 train.py

        # after
        torchrun --nproc-per-node=2 train.py
    """
    for line, layer in _layers(launch, LauncherKind.ACCELERATE):
        total, flag = _number(layer, "num_processes"), layer.given("cpu")
        if flag is None or total is None or total < 2 or layer.given("mpirun_hostfile") or layer.given("config_file"):
            continue
        if layer.given("num_machines") is not None and (_number(layer, "num_machines") or 1) > 1:
            continue
        text = f"--cpu starts 1 process, not {total}"
        label = f"use torchrun --nproc-per-node={total}"
        yield point(launch, line, flag.word, text, "torchrun", None, label=label)


@cause(
    "LAUNCH074",
    "accelerate-main-process-ip-missing",
    Severity.ERROR,
    signatures=(r"you need to specify the main process IP",),
)
def accelerate_main_process_ip_missing(launch: Launch) -> Iterator[Finding]:
    """accelerate runs on several machines without the address of the main process.

    ## Why it matters
    accelerate fails with `When using multiple machines, you need to specify the main process IP.`, or with a
    TypeError about NoneType.

    ## Fix
    Add `--main_process_ip` and `--main_process_port`.

    They are the same on every machine.

    ## Example
        ValueError: When using multiple machines, you need to specify the main process IP.

        # before
        accelerate launch --num_machines=2 --num_processes=16 --machine_rank=0 train.py

        # after
        accelerate launch --num_machines=2 --num_processes=16 --machine_rank=0 --main_process_ip=HOST0 train.py
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
        source = f"{machines} machines" if given is None else option_text(given)
        word, expected = layer.program if given is None else given.word, "--main_process_ip"
        edits = [after(layer.own[-1], options)]
        yield point(launch, line, word, f"{source} without {expected}", expected, edits, label=f"add {expected}")


def _is_set(value: str | None) -> bool:
    return value not in (None, "null", "~")


@cause(
    "LAUNCH076",
    "deepspeed-include-renumbered",
    Severity.ERROR,
    signatures=(r"No slot '?\d+'? specif",),
)
def deepspeed_include_renumbered(launch: Launch) -> Iterator[Finding]:
    """deepspeed --include has GPU numbers that CUDA_VISIBLE_DEVICES changes.

    ## Why it matters
    A deepspeed that does not remove CUDA_VISIBLE_DEVICES itself counts only the visible GPUs, from 0, and fails with `No
    slot '2' specified on host 'localhost'`. Newer ones ignore the variable.

    ## Fix
    Unset CUDA_VISIBLE_DEVICES, and select GPUs only with `--include`.

    ## Example
        ValueError: No slot '2' specified on host 'localhost'

        # before
        CUDA_VISIBLE_DEVICES=2,3 deepspeed --include=localhost:2,3 train.py

        # after
        deepspeed --include=localhost:2,3 train.py
    """
    for line, layer in _layers(launch, LauncherKind.DEEPSPEED):
        count, given = _visible(line), layer.given("include")
        if count is None or given is None or not is_known(given.value) or layer.given("hostfile") is not None:
            continue
        slots = [int(n) for n in re.findall(r"\d+", (given.value or "").partition(":")[2])]
        if any(slot >= count for slot in slots):
            word = next((v.word for v in layer.variables if v.name == CVD), None)
            edits = None if word is None or not word.raw else remove(line, word)
            text = f"{option_text(given):.30} exceeds the {count} visible GPU{'s' * (count != 1)}"
            label = "visible GPUs are numbered from 0"
            note = Severity.NOTE
            yield point(launch, line, given.value_word, text, f"no {CVD}", edits, label=label, severity=note)


@cause(
    "LAUNCH079",
    "deepspeed-hostfile-missing",
    Severity.ERROR,
    signatures=(r"no extra nodes available via hostfile",),
)
def deepspeed_hostfile_missing(launch: Launch) -> Iterator[Finding]:
    """deepspeed runs on several nodes without a hostfile.

    ## Why it matters
    deepspeed fails with `Num nodes is >1 but no extra nodes available via hostfile`.

    ## Fix
    Add `--hostfile` with lines such as `node1 slots=8`.

    ## Example
        Num nodes is >1 but no extra nodes available via hostfile

        # before
        deepspeed --num_nodes=2 train.py

        # after
        deepspeed --num_nodes=2 --hostfile=hostfile train.py
    """
    for line, layer in _layers(launch, LauncherKind.DEEPSPEED):
        count, given = _number(layer, "num_nodes"), layer.given("num_nodes")
        if count is None or count < 2 or given is None or layer.reading.is_open:
            continue
        if layer.given("hostfile") is not None or layer.given("no_ssh") is not None:
            continue
        text, edits = f"{option_text(given)} without --hostfile", [after(layer.own[-1], "--hostfile=hostfile")]
        yield point(launch, line, given.word, text, "--hostfile", edits, label="add --hostfile")


@cause(
    "LAUNCH080",
    "deepspeed-selection-conflict",
    Severity.ERROR,
    signatures=(r"Cannot specify num_nodes/gpus with include/exclude",),
)
def deepspeed_selection_conflict(launch: Launch) -> Iterator[Finding]:
    """deepspeed is given options that exclude each other, such as --include and --num_gpus.

    ## Why it matters
    deepspeed fails with `ValueError: Cannot specify num_nodes/gpus with include/exclude`, or `include_str and
    exclude_str are mutually exclusive.`

    ## Fix
    Keep only one of --include, --exclude, and --num_gpus or --num_nodes.

    ## Example
        ValueError: Cannot specify num_nodes/gpus with include/exclude

        # before
        deepspeed --include=localhost:0,1 --num_gpus=2 train.py

        # after
        deepspeed --include=localhost:0,1 train.py
    """
    for line, layer in _layers(launch, LauncherKind.DEEPSPEED):
        chosen = next((g for d in ("include", "exclude") if (g := layer.given(d))), None)
        others = ("exclude", "num_gpus", "num_nodes", "num_accelerators")
        counted: list[Given] = [g for d in others if (g := layer.given(d)) and g is not chosen]
        if chosen is None or not counted:
            continue
        words = [w for g in counted for w in ([g.word] if g.is_joined else [g.word, g.value_word])]
        text = f"{counted[0].written} cannot be combined with {chosen.written}"
        edits = remove(line, *words)
        yield point(launch, line, counted[0].word, text, chosen.written, edits, label="keep only one of them")


@accelerate_num_processes_per_node.look
def processes_of_one_machine(submission: Submission) -> Iterator[Finding]:
    """The job file gives each machine as many GPUs as --num_processes counts for all of them."""
    for _step, task, agent in agents_of(submission):
        layer, machines, gpus = agent.layer, agent.plan.nnodes, task.gpus
        if layer.launcher is not LauncherKind.ACCELERATE or machines is None or not gpus or agent.plan.nproc is None:
            continue
        given = layer.given("num_processes")
        total = _count(agent.line, layer, "num_processes")
        if total is None or total != gpus or gpus < 2 or machines[1] < 2:
            continue
        meant = str(gpus * machines[1])
        text = f"--num_processes={total} is the total of {machines[1]} machines with {gpus} GPUs each"
        mark = mark_of(task, None if given is None else given.value_word)
        yield at_mark(submission, mark, text, seen=str(total), expected=meant, label=f"use the total, {meant}")
        return
