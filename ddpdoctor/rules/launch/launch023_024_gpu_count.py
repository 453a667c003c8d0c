"""LAUNCH023, LAUNCH024: the processes of a node compared with the GPUs that they see, on a launch line or in variables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ, shorten
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import Word, is_known
from ddpdoctor.facts.submission import Submission, Task
from ddpdoctor.facts.versions import Versions
from ddpdoctor.facts.visibility import listed, visible
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import after, agents, point, revalue, spelled
from ddpdoctor.rules.launch.scheduler.granted import granted_gpus
from ddpdoctor.rules.launch.submitted import agents_of, at_mark, mark_of, option_mark

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu
    from ddpdoctor.facts.log import Log

CVD = "CUDA_VISIBLE_DEVICES"
COUNTED = "LOCAL_WORLD_SIZE"
"""The variable that torchrun sets, as do people who start ranks by hand."""
ONE_VALUE = ("torchrun", "deepspeed", "accelerate")
"""Launchers that start all ranks of a node with the same CUDA_VISIBLE_DEVICES."""


@cause(
    "LAUNCH023",
    "nproc-exceeds-visible-gpus",
    Severity.ERROR,
    also_in=("gpus",),
    signatures=(r"You requested (?i:gpus?): ?\[", r"But your machine only has: ?\["),
)
def nproc_exceeds_visible_gpus(
    environ: Environ, launch: Launch | None = None, gpu: Gpu | None = None, versions: Versions | None = None
) -> Iterator[Finding]:
    """The launch line starts more processes per node than there are visible GPUs.

    ## Why it matters
    torchrun does not count GPUs. Only the high local ranks fail with `CUDA error: invalid device ordinal`, or two
    ranks share a GPU and NCCL fails with `Duplicate GPU detected`.

    ## Fix
    Start one process per visible GPU: `--nproc-per-node=gpu`.

    ## Example
        error[LAUNCH023]: 4 processes for 2 GPUs (CUDA_VISIBLE_DEVICES=0,1)

        # before
        CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node=4 train.py

        # after
        CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node=2 train.py
    """
    if launch is not None:
        yield from _lines_exceed(launch, gpu)
        yield from _accelerate_exceeds(launch)
        return
    ranks, count = environ.local_world_size, _count(environ.variables, gpu)
    _needs_cuda(versions, gpu)
    if gpu is None and not environ.has(environ.local_size_name):
        not_here("NVML was not queried, and no launcher of torch set the number of ranks of this node")
    if ranks is None or not count or ranks <= count or _is_cut(environ, gpu, ranks) or _has_its_own(environ, count):
        return
    source = f"{CVD}={environ.get(CVD)}" if environ.get(CVD) is not None else "this node"
    yield Finding(
        f"{environ.local_size_name}={ranks}, but only {_gpus(count)} ({shorten(source, 40)})",
        (Evidence("environ.local_world_size", str(ranks), f"at most {count}"),),
        fix=f"Start {count} ranks on this node, or add GPUs to {CVD}.",
    )


@cause("LAUNCH024", "nproc-below-visible-gpus", Severity.NOTE, also_in=("gpus",))
def nproc_below_visible_gpus(
    environ: Environ, launch: Launch | None = None, gpu: Gpu | None = None, versions: Versions | None = None
) -> Iterator[Finding]:
    """The launch line starts fewer processes per node than there are visible GPUs.

    ## Why it matters
    Without --nproc-per-node torchrun starts one process per node. The job runs, and the other GPUs are idle.

    ## Fix
    Add `--nproc-per-node=gpu`, which starts one process per GPU.

    ## Example
        note[LAUNCH024]: 1 process for 4 visible GPUs

        # before
        CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun train.py

        # after
        CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --nproc-per-node=gpu train.py
    """
    if launch is not None:
        yield from _lines_below(launch, gpu)
        return
    ranks, count = environ.local_world_size, _count(environ.variables, gpu)
    _needs_cuda(versions, gpu)
    if ranks is None or count is None or ranks >= count or not environ.has(COUNTED):
        return
    if environ.launcher is not None and environ.launcher.name not in ("torchrun", "by-hand"):
        return
    yield Finding(
        f"{COUNTED}={ranks}, but {count} GPUs are visible",
        (Evidence("environ.variables.LOCAL_WORLD_SIZE", str(ranks), str(count)),),
        fix=f"Use `--nproc-per-node={count}` or `gpu`, unless a rank uses several GPUs.",
    )


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _count(variables: Mapping[str, str], gpu: Gpu | None) -> int | None:
    """How many GPUs a process sees, or, if NVML was not queried, how many the variable lists. None: unknown."""
    return listed(variables.get(CVD)) if gpu is None else visible(variables, gpu).count


def _needs_cuda(versions: Versions | None, gpu: Gpu | None) -> None:
    """If there are GPUs, a torch that uses none is VERSION009, and the counts are still compared."""
    if (
        (gpu is None or not gpu.devices)
        and versions is not None
        and versions.torch is not None
        and not versions.has_nccl
    ):
        not_here("the installed torch uses no GPU")


def _is_cut(environ: Environ, gpu: Gpu | None, ranks: int) -> bool:
    """The variable lists enough GPUs, but some of them do not exist: ENV063."""
    wanted = listed(environ.get(CVD))
    return gpu is not None and wanted is not None and wanted >= ranks


def _has_its_own(environ: Environ, count: int) -> bool:
    """One GPU per rank on purpose: Slurm, a wrapper or the user gave each rank its own CUDA_VISIBLE_DEVICES."""
    if count != 1 or environ.local_rank is None or environ.get(CVD) is None:
        return False
    launcher = environ.launcher
    if launcher is None or launcher.name not in ONE_VALUE:
        return True
    return environ.local_rank > 0 and environ.get(CVD) == str(environ.local_rank)


def _lines_exceed(launch: Launch, gpu: Gpu | None) -> Iterator[Finding]:
    for line, layer, plan in agents(launch):
        count, value = _visible_to(line.environ, gpu)
        granted, granted_by = granted_gpus(line)
        if value is None and granted is not None:
            count = granted
        elif line.script is not None and not line.script.nccl and not _chooses_gpus(line):
            continue
        if plan.nproc is None or not count or plan.nproc <= count:
            continue
        given = layer.given("nproc_per_node")
        source = f"{CVD}={value}" if value is not None else granted_by or "this node"
        text = f"{plan.nproc} processes for {_gpus(count)} ({shorten(source, 36)})"
        edits = None if given is None else [revalue(given, str(count))]
        word = layer.program if given is None else given.value_word
        yield point(launch, line, word, text, f"at most {count}", edits, label=f"use {count}")


def _chooses_gpus(line: LaunchLine) -> bool:
    """The GPUs are listed on the line or in its file, for a script that may use them in another module."""
    on_line = any(v.name == CVD for layer in line.layers for v in layer.variables) or CVD in line.places
    return on_line and line.script is not None and line.script.backend is None


def _accelerate_exceeds(launch: Launch) -> Iterator[Finding]:
    """accelerate, where --num_processes is the total of all machines."""
    for line in launch.lines:
        layer, value = line.layer(LauncherKind.ACCELERATE), line.environ.get(CVD)
        if layer is None or line.agent is not None or layer.is_garbled or layer.given("cpu") or line.config:
            continue
        given, count = layer.given("num_processes"), listed(value) if is_known(value) else None
        total, machines = layer.value("num_processes") or "", layer.value("num_machines") or "1"
        if given is None or not count or not (total.isdigit() and machines.isdigit() and int(machines)):
            continue
        per_machine = int(total) // int(machines)
        if per_machine > count:
            text = f"{per_machine} processes for {_gpus(count)} ({CVD}={shorten(value or '', 15)})"
            meant = str(count * int(machines))
            edits = [revalue(given, meant)]
            yield point(launch, line, given.value_word, text, f"at most {count}", edits, label=f"use {meant}")


def _lines_below(launch: Launch, gpu: Gpu | None) -> Iterator[Finding]:
    for line, layer, plan in agents(launch):
        count, value = _visible_to(line.environ, gpu)
        granted, _ = granted_gpus(line)
        count = granted if value is None and granted is not None else count
        if count is None or count < 2 or plan.given("nproc_per_node") or layer.reading.is_open:
            continue
        option = f"{spelled(layer, 'nproc_per_node', launch.version)}=gpu"
        text, edits = f"1 process for {count} visible GPUs", [after(layer.own[-1], option)]
        expected = "--nproc-per-node=gpu"
        yield point(launch, line, layer.program, text, expected, edits, label=f"add {expected}")


def _visible_to(environ: Environ, gpu: Gpu | None) -> tuple[int | None, str | None]:
    """The GPUs that the processes of a line see, and the line's own CUDA_VISIBLE_DEVICES if it is known."""
    value = environ.get(CVD)
    known = value if value is not None and is_known(value) else None
    if value is not None and known is None:
        return None, None
    return _count({name: v for name, v in environ.variables.items() if is_known(v)}, gpu), known


ASKED = (r"You requested (?i:gpus?): ?\[", r"But your machine only has: ?\[")


@nproc_exceeds_visible_gpus.look
def high_local_ranks(log: Log) -> Iterator[Finding]:
    """Only the high local ranks of a node select a GPU that does not exist."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.log011_020_device_errors import ORDINAL
    from ddpdoctor.rules.log.signatures import finding_of

    asked = matching_lines(log, ASKED)
    if asked:
        yield finding_of(log, asked, "The job requests GPUs that this process does not see", blames_speaker=True)
        return
    lines = matching_lines(log, ORDINAL)
    failed = {line.who.local_rank for line in lines} - {None}
    others = {each.who.local_rank for each in (*log.spoken, *log.tails)} - failed - {None}
    if failed and others and min(map(int, map(str, failed))) > max(map(int, map(str, others))):
        title = f"More processes than GPUs: no GPU for local ranks {min(map(int, map(str, failed)))} and above"
        yield finding_of(log, lines, title, blames_speaker=True)


@nproc_exceeds_visible_gpus.look
def more_than_the_host_gives(submission: Submission) -> Iterator[Finding]:
    """A launcher of the job file starts more processes on a host than the scheduler gives it GPUs."""
    told = set()
    for task, processes, word in _processes_of_tasks(submission):
        gpus = task.gpus if task.slots is None else task.slots.get(task.host)
        is_of_cpu = task.script is not None and not task.script.nccl
        if not gpus or processes <= gpus or is_of_cpu or CVD in task.set_at:
            continue
        mark = mark_of(task, word)
        if (mark.line, mark.column) in told:
            continue
        told.add((mark.line, mark.column))
        text = f"{processes} processes on {task.host}, which has {_gpus(gpus)}"
        yield at_mark(submission, mark, text, seen=str(processes), expected=f"at most {gpus}", label=f"use {gpus}")
    yield from _several_launchers(submission)
    yield from _same_devices(submission)
    for task, ranks, is_sure in _crowds(submission):
        gpus = task.gpus
        if gpus and ranks > gpus:
            mark = option_mark(submission, task, "--ntasks-per-node", "-np", "-n", "--ntasks", "-l")
            name = "the job file" if task.launcher is None else task.launcher.name
            text = f"{name} starts {ranks} ranks on {task.host}, which has {_gpus(gpus)}"
            label, severity = f"use {gpus} per host", None if is_sure else Severity.WARNING
            fix = "Start one process per GPU of the host."
            yield at_mark(
                submission, mark, text, seen=str(ranks), expected=str(gpus), label=label, severity=severity, fix=fix
            )
            return


def _several_launchers(submission: Submission) -> Iterator[Finding]:
    """Several launchers of one job are on the same host, such as one per line of a PBS node file, and share its GPUs."""
    for step in submission.steps:
        hosts: dict[str, list[tuple[Task, int]]] = {}
        for own, task, agent in agents_of(submission):
            is_of_cpu = task.script is not None and not task.script.nccl
            is_alone = task.launcher is None or task.launcher.name not in ("ssh", "pdsh", "clush", "pbsdsh")
            if own is step and agent.plan.nproc is not None and not (is_of_cpu or is_alone or CVD in task.set_at):
                hosts.setdefault(task.host, []).append((task, agent.plan.nproc))
        for host, launchers in hosts.items():
            task, each = launchers[0]
            ranks, gpus = sum(count for _, count in launchers), task.gpus
            if len(launchers) < 2 or not gpus or each > gpus or ranks <= gpus:
                continue
            text = f"{len(launchers)} launchers with {ranks} processes on {host}, which has {_gpus(gpus)}"
            mark = mark_of(task, None) if task.launcher is None else task.launcher.at
            fix = "List each host once, for example with `sort -u`."
            label = "start one launcher per host"
            yield at_mark(submission, mark, text, seen=str(ranks), expected=f"at most {gpus}", label=label, fix=fix)
            return


def _same_devices(submission: Submission) -> Iterator[Finding]:
    """All ranks of a host are given the same GPUs, and there are fewer GPUs than ranks that select one by local rank."""
    for step in submission.steps:
        hosts: dict[str, list[Task]] = {}
        for task in step.tasks if step.is_certain and not step.job.agents else ():
            hosts.setdefault(task.host, []).append(task)
        for tasks in hosts.values():
            values = {task.line.environ.variables.get(CVD) for task in tasks}
            value, first = next(iter(values)), tasks[0]
            count = listed(value) if len(values) == 1 and is_known(value) else None
            selects = all(task.script is not None and task.script.takes_gpu_of_local_rank for task in tasks)
            if not count or not selects or len(tasks) <= count or CVD not in first.set_at:
                continue
            text = f"{len(tasks)} ranks on {first.host}, and {CVD}={shorten(value or '', 20)} for all of them"
            expected = ",".join(map(str, range(len(tasks))))
            fix = f"Set `{CVD}={expected}`, or leave it to the scheduler."
            label = f"use {expected}" if len(tasks) < 9 else "list a GPU per rank"
            yield at_mark(
                submission, first.set_at[CVD], text, seen=value or "", expected=expected, label=label, fix=fix
            )
            return


def _crowds(submission: Submission) -> Iterator[tuple[Task, int, bool]]:
    """The hosts of ranks that no torchrun starts, with their number, and whether each of them certainly uses a GPU."""
    limits = {"--gpus-per-task", "-g", "--gpu_per_rs", "--gpu_per_task"}
    for step in submission.steps:
        if not step.is_certain or step.job.agents:
            continue
        sizes = Counter(task.host for task in step.tasks if task.layer.launcher is LauncherKind.PYTHON)
        for task in step.tasks:
            launcher = task.launcher
            if launcher is None or task.local != 0 or task.layer.launcher is not LauncherKind.PYTHON:
                continue
            if limits & (launcher.places.keys() | submission.grant.places.keys()) or CVD in task.set_at:
                continue
            knows = task.script is not None
            is_of_pods = submission.grant.scheduler == "" and submission.file.endswith((".yaml", ".yml"))
            is_rank = "RANK" in task.line.environ.variables or (task.script is not None and task.script.initialises)
            if task.script is not None and not task.script.nccl:
                continue
            if is_of_pods or is_rank:
                yield task, sizes[task.host], knows


def _processes_of_tasks(submission: Submission) -> Iterator[tuple[Task, int, Word | None]]:
    """What each launcher starts on its host, and the word that says it."""
    for _, task, agent in agents_of(submission):
        layer = agent.layer
        given = layer.given("num_processes" if layer.launcher is LauncherKind.ACCELERATE else "nproc_per_node")
        if agent.plan.nproc is not None:
            yield task, agent.plan.nproc, None if given is None else given.value_word
    for step in submission.steps:
        for task in step.tasks if step.is_certain else ():
            if task.layer.launcher is LauncherKind.DEEPSPEED and task.ranks is not None:
                given = task.layer.given("num_gpus")
                yield task, task.ranks, None if given is None else given.value_word
