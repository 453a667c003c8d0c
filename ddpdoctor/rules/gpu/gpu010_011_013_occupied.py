"""GPU010, GPU011, GPU013: another process uses the GPU, or its compute mode allows only one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.device import Device, GpuProcess
from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import readable
from ddpdoctor.facts.visibility import visible
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.logs.distances import SIBLING_PID_GAP
from ddpdoctor.rules import cause
from ddpdoctor.rules.gpu.finding import at

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

MIB = 1 << 20
IDLE_BYTES = 15 * MIB
IDLE_SHARE = 0.01
LITTLE_SHARE = 0.1
"""A foreign process with less than this share of the memory leaves enough for a job."""
SERVICES = ("nvidia-cuda-mps", "nvidia-persiste", "nv-hostengine", "dcgm")
"""Prefixes of the names of system processes: MPS, persistence, DCGM."""
EXCLUSIVE = 3


def _used(environ: Environ, gpu: Gpu) -> tuple[Device, ...]:
    """The devices that are visible to the job."""
    indices = visible(environ.variables, gpu).devices
    return tuple(d for d in gpu.answering() if d.index in indices)


def _foreign(device: Device) -> list[GpuProcess]:
    """Running processes that belong neither to us nor to the system. A pid that does not exist here may be the job's own."""
    return [
        p
        for p in device.processes or ()
        if p.command is not None and not p.is_ours and not p.command.startswith(SERVICES)
    ]


@cause(
    "GPU010",
    "gpu-busy",
    Severity.ERROR,
    signatures=(r"Process \d+ has [\d.]+ (GiB|MiB) memory in use",),
)
def gpu_busy(gpu: Gpu, environ: Environ) -> Iterator[Finding]:
    """Another process uses a GPU of the job.

    ## Why it matters
    The job fails with `CUDA out of memory` although it has allocated little itself, or runs at half speed. The other process is
    often a rank of the last run that did not exit.

    ## Fix
    End the process if it is left over from an earlier run, or give the job other GPUs.

    ## Example
    In the log:

        torch.OutOfMemoryError: CUDA out of memory. [...] Process 4711 has 61.20 GiB memory in use.

    On that node:

        ps -fp 4711
        kill 4711

    ## Source
    nvmlDeviceGetComputeRunningProcesses. Parent processes of ddpdoctor and processes of the same job do not count.
    """
    list(gpu.each("processes"))
    for device in _used(environ, gpu):
        foreign = _foreign(device)
        if not foreign:
            continue
        first = max(foreign, key=lambda p: p.memory_used_bytes or 0)
        held = sum(p.memory_used_bytes or 0 for p in foreign)
        is_little = all(p.memory_used_bytes is not None for p in foreign) and held < LITTLE_SHARE * (
            device.memory_total_bytes or 0
        )
        memory = "" if first.memory_used_bytes is None else f", {readable(first.memory_used_bytes)}"
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        yield Finding(
            f"GPU {device.index} is in use by {first.command} (pid {first.pid}"
            f"{', user ' + first.user if first.user else ''}{memory}){more}",
            (Evidence(f"gpu.devices[{device.index}].processes", f"pid {first.pid}", "no foreign process"),),
            fix_command=f"ps -fp {','.join(str(p.pid) for p in foreign)}",
            where=Where(gpu=device.index),
            severity=Severity.WARNING if is_little and not device.is_loaded else None,
        )


@cause("GPU011", "gpu-memory-in-use", Severity.WARNING)
def gpu_memory_in_use(gpu: Gpu, environ: Environ) -> Iterator[Finding]:
    """Memory of a GPU is in use, but no process that holds it is visible.

    ## Why it matters
    The job gets `CUDA out of memory` earlier than the size of the card suggests. The holder is a dead process that the driver has
    not cleaned up, or a process in another container (NVML then lists a pid that does not exist here).

    ## Fix
    Find the holder as root on the host and end it; if there is none, reset the GPU.

    ## Example
    ddpdoctor's message:

        GPU 0 has 24 GiB in use, but no process is listed

    On the host, as root:

        fuser -v /dev/nvidia0
        nvidia-smi --gpu-reset -i 0

    ## Source
    nvmlDeviceGetMemoryInfo version 2: `used` without the driver's reserve; more than 15 MiB (GCM's limit) and 1 % of the card.
    """
    if environ.local_rank is not None:
        not_here("the ranks of the running job use GPU memory themselves")
    list(gpu.each("memory_used_bytes"))
    for device in _used(environ, gpu):
        used, total = device.memory_used_bytes, device.memory_total_bytes
        # The memory of a GPU that is a NUMA node of its own may hold pages of the system.
        if device.gpu_numa_id is not None or device.memory_reserved_bytes is None or device.mig_mode:
            continue
        if used is None or total is None or device.processes is None or device.graphics_processes:
            continue
        if any(p.command is not None for p in device.processes):
            continue  # the holder is visible: GPU010 judges it
        if used > max(IDLE_BYTES, IDLE_SHARE * total):
            yield at(
                device,
                "memory_used_bytes",
                f"GPU {device.index} has {readable(used)} in use, but {_no_visible_holder(device)}",
                f"at most {readable(int(max(IDLE_BYTES, IDLE_SHARE * total)))} on an idle GPU",
                fix_command=f"fuser -v {device.node or '/dev/nvidia*'}",
            )


def _no_visible_holder(device: Device) -> str:
    """Why no holder of the memory can be named from here."""
    pids = ", ".join(str(p.pid) for p in (device.processes or ())[:3])
    return f"pid {pids} does not exist here" if pids else "no process is listed"


@cause(
    "GPU013",
    "compute-mode-exclusive",
    Severity.NOTE,
    candidates=("GPU013", "GPU004"),
    signatures=(r"CUDA-capable device(\(s\))?s? (is/are|are) busy or unavailable",),
)
def compute_mode_exclusive(gpu: Gpu) -> Iterator[Finding]:
    """A GPU has compute mode EXCLUSIVE_PROCESS: only one process can use it.

    ## Why it matters
    The second process gets `CUDA-capable device(s) is/are busy or unavailable`. Usually it is a rank that did not call
    set_device, or a DataLoader worker that uses CUDA.

    ## Fix
    Call torch.cuda.set_device(LOCAL_RANK) first and do not use CUDA in DataLoader workers, or set the default mode on that node:
    `nvidia-smi -i N -c 0`.

    ## Example
    In the log of rank 1:

        RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable

    In the script:

        # before
        model = model.cuda()
        # after
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        model = model.cuda()

    ## Source
    nvmlDeviceGetComputeMode returns 3.
    """
    for device, mode in gpu.each("compute_mode"):
        if mode == EXCLUSIVE:
            text = f"GPU {device.index} has compute mode EXCLUSIVE_PROCESS"
            yield at(device, "compute_mode", text, "0", fix_command=f"nvidia-smi -i {device.index} -c 0")


BUSY_OR_UNAVAILABLE = "CUDA reports a GPU as busy or unavailable"


BUSY_OR_BROKEN = (
    "Either its compute mode allows only one process and another one uses it (GPU013), "
    "or an earlier fault left it unusable (GPU004); run `ddpdoctor gpus` on that node to find out"
)


IN_USE = (r"Process \d+ has [\d.]+ (GiB|MiB) memory in use",)


BUSY = re.compile(r"Process (?P<pid>\d+) has (?P<size>[\d.]+) (?P<unit>[GM])iB memory in use")


OWN = re.compile(r"this process has (?P<size>[\d.]+) (?P<unit>[GM])iB memory in use")


ALLOCATED = re.compile(r"Of the allocated memory (?P<size>[\d.]+) (?P<unit>[GM])iB is allocated by PyTorch")


CONTEXT_MIB = 1500
"""CUDA's context and the libraries of one process."""


SIBLINGS = 3


SHARE = 0.2
"""A foreign process that holds less than this share of what the rank itself holds is not the reason."""


@compute_mode_exclusive.look
def gpu_busy_or_unavailable(log: Log) -> Iterator[Finding]:
    """CUDA refuses a GPU to a second process with the same message as for a broken GPU."""
    from ddpdoctor.rules.log.signatures import retitled, signed

    for finding in signed(compute_mode_exclusive, log):
        yield retitled(finding, BUSY_OR_UNAVAILABLE, BUSY_OR_BROKEN)


@gpu_busy.look
def foreign_memory(log: Log) -> Iterator[Finding]:
    """A rank ran out of memory on a GPU, and another process holds a large part of its memory."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = [line for line in matching_lines(log, IN_USE) if _is_foreign(line.text)]
    if not lines:
        return
    title = "Another process uses the GPU"
    if _are_siblings(lines[0].text):
        title = "Several processes with consecutive pids use this GPU, probably ranks of one job"
    yield finding_of(log, lines, title, blames_speaker=True)


def _are_siblings(text: str) -> bool:
    """Whether the other processes listed look like ranks of one launcher: several, with close pids and similar sizes."""
    others = list(BUSY.finditer(text))
    pids, sizes = [int(other["pid"]) for other in others], {_mib(other) for other in others}
    return (
        len(pids) >= SIBLINGS
        and max(pids) - min(pids) <= SIBLING_PID_GAP * len(pids)
        and max(sizes) <= 1.1 * min(sizes)
    )


def _is_foreign(text: str) -> bool:
    """In a container the rank does not know its own pid: a process of about the rank's own size is then the rank itself."""
    listed = sum(_mib(other) for other in BUSY.finditer(text))
    own = OWN.search(text)
    if own is not None:
        return listed > SHARE * _mib(own)
    allocated = ALLOCATED.search(text)
    if allocated is None:
        return len(BUSY.findall(text)) > 1
    return listed > (1 + 2 * SHARE) * _mib(allocated) + CONTEXT_MIB


def _mib(process: re.Match[str]) -> float:
    return float(process["size"]) * (1024 if process["unit"] == "G" else 1)
