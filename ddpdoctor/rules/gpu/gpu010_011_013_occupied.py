"""GPU010, GPU011, GPU013: somebody else on the GPU, or a mode that lets only one in."""

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
"""A foreign process with less than this share of the memory leaves room for a job."""
SERVICES = ("nvidia-cuda-mps", "nvidia-persiste", "nv-hostengine", "dcgm")
"""Beginnings of names of processes that belong to the system: MPS, persistence, DCGM."""
EXCLUSIVE = 3


def _used(environ: Environ, gpu: Gpu) -> tuple[Device, ...]:
    """The devices that CUDA shows to the job."""
    indices = visible(environ.variables, gpu).devices
    return tuple(d for d in gpu.answering() if d.index in indices)


def _foreign(device: Device) -> list[GpuProcess]:
    """Living processes that belong neither to us nor to the system. A pid that is not here may be the job's own."""
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
    "CUDA out of memory" although the job itself has allocated little, or half the speed; often the other process is what
    the last run left behind.

    ## Fix
    End the process that is named if it is a left-over, or give the job other GPUs.

    ## Source
    nvmlDeviceGetComputeRunningProcesses. Processes above ours and those of our own job do not count.
    """
    list(gpu.each("processes"))
    for device in _used(environ, gpu):
        found = _foreign(device)
        if not found:
            continue
        first = max(found, key=lambda p: p.memory_used_bytes or 0)
        held = sum(p.memory_used_bytes or 0 for p in found)
        is_little = all(p.memory_used_bytes is not None for p in found) and held < LITTLE_SHARE * (
            device.memory_total_bytes or 0
        )
        memory = "" if first.memory_used_bytes is None else f" with {readable(first.memory_used_bytes)}"
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield Finding(
            f"GPU {device.index} is used by {first.command} (pid {first.pid}"
            f"{', user ' + first.user if first.user else ''}){memory}{more}; expected no other process",
            (Evidence(f"gpu.devices[{device.index}].processes", f"pid {first.pid}", "no foreign process"),),
            fix_command=f"ps -fp {','.join(str(p.pid) for p in found)}",
            where=Where(gpu=device.index),
            severity=Severity.WARNING if is_little and not device.is_loaded else None,
        )


@cause("GPU011", "gpu-memory-in-use", Severity.WARNING)
def gpu_memory_in_use(gpu: Gpu, environ: Environ) -> Iterator[Finding]:
    """Memory of a GPU is taken, and no process is seen that has it.

    ## Why it matters
    The job runs out of memory earlier than the size of the card promises. A dead process that the driver has not cleaned up,
    or one in another container (NVML then lists a pid that is not here), holds it.

    ## Fix
    Look for the holder as root on the host, and end it; reset the GPU when there is none.

    ## Source
    nvmlDeviceGetMemoryInfo version 2: `used` without the driver's reserve; more than 15 MiB (GCM's limit) and 1 % of the card.
    """
    if environ.local_rank is not None:
        not_here("the ranks of a running job hold memory themselves")
    list(gpu.each("memory_used_bytes"))
    for device in _used(environ, gpu):
        used, total = device.memory_used_bytes, device.memory_total_bytes
        # The memory of a GPU that is a NUMA node of its own may hold pages of the system.
        if device.gpu_numa_id is not None or device.memory_reserved_bytes is None or device.mig_mode:
            continue
        if used is None or total is None or device.processes is None or device.graphics_processes:
            continue
        if any(p.command is not None for p in device.processes):
            continue  # somebody is seen: GPU010 judges it
        if used > max(IDLE_BYTES, IDLE_SHARE * total):
            yield at(
                device,
                "memory_used_bytes",
                f"{readable(used)} of GPU {device.index} are in use and {_nobody(device)}; "
                f"expected at most {readable(int(max(IDLE_BYTES, IDLE_SHARE * total)))}",
                "an idle GPU",
                fix_command=f"fuser -v {device.node or '/dev/nvidia*'}",
            )


def _nobody(device: Device) -> str:
    """Who could hold the memory, as far as that can be said from here."""
    pids = ", ".join(str(p.pid) for p in (device.processes or ())[:3])
    return f"the processes listed (pid {pids}) are not of this machine or container" if pids else "no process is listed"


@cause(
    "GPU013",
    "compute-mode-exclusive",
    Severity.NOTE,
    candidates=("GPU013", "GPU004"),
    signatures=(r"CUDA-capable device(\(s\))?s? (is/are|are) busy or unavailable",),
)
def compute_mode_exclusive(gpu: Gpu) -> Iterator[Finding]:
    """The compute mode of a GPU lets only one process in.

    ## Why it matters
    "CUDA-capable device(s) is/are busy or unavailable" for the second one: a rank that did not call set_device, or a
    DataLoader worker that touches CUDA.

    ## Fix
    Call torch.cuda.set_device(LOCAL_RANK) first and keep CUDA out of workers, or set the default mode.

    ## Source
    nvmlDeviceGetComputeMode answers 3.
    """
    for device, mode in gpu.each("compute_mode"):
        if mode == EXCLUSIVE:
            text = f"GPU {device.index} has compute mode EXCLUSIVE_PROCESS; expected DEFAULT"
            yield at(device, "compute_mode", text, "0", fix_command=f"nvidia-smi -i {device.index} -c 0")


TAKEN = "CUDA calls a GPU busy or unavailable"


WHY_TAKEN = (
    "Undetermined: its compute mode lets only one process in, and another one is there "
    "(GPU013), or an earlier fault left it unusable (GPU004); `ddpdoctor gpus` on that node decides"
)


IN_USE = (r"Process \d+ has [\d.]+ (GiB|MiB) memory in use",)


BUSY = re.compile(r"Process (?P<pid>\d+) has (?P<size>[\d.]+) (?P<unit>[GM])iB memory in use")


OWN = re.compile(r"this process has (?P<size>[\d.]+) (?P<unit>[GM])iB memory in use")


ALLOCATED = re.compile(r"Of the allocated memory (?P<size>[\d.]+) (?P<unit>[GM])iB is allocated by PyTorch")


CONTEXT_MIB = 1500
"""CUDA's context and the libraries of one process."""


SIBLINGS = 3


SHARE = 0.2
"""A foreign process that holds less than this part of what the rank itself holds is not why memory ran out."""


@compute_mode_exclusive.look
def gpu_taken(log: Log) -> Iterator[Finding]:
    """CUDA refuses a GPU to a second process in the words that it also has for one that is broken."""
    from ddpdoctor.rules.log.signatures import retitled, signed

    for found in signed(compute_mode_exclusive, log):
        yield retitled(found, TAKEN, WHY_TAKEN)


@gpu_busy.look
def foreign_memory(log: Log) -> Iterator[Finding]:
    """A rank ran out of memory on a GPU of which another process holds a good part."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = [line for line in matching_lines(log, IN_USE) if _is_foreign(line.text)]
    if not lines:
        return
    title = "Another process uses the GPU"
    if _are_siblings(lines[0].text):
        title = (
            "Several processes with neighbouring numbers, as one launcher starts them, use this GPU: ranks that did not select "
            "one of their own (SCRIPT002, SCRIPT003), more ranks than GPUs (GPU005), or another job"
        )
    yield finding_of(log, lines, title, blames_speaker=True)


def _are_siblings(text: str) -> bool:
    """Whether the processes that are listed beside the rank itself are as many, as alike and as close as ranks are."""
    others = list(BUSY.finditer(text))
    pids, sizes = [int(found["pid"]) for found in others], {_mib(found) for found in others}
    return (
        len(pids) >= SIBLINGS
        and max(pids) - min(pids) <= SIBLING_PID_GAP * len(pids)
        and max(sizes) <= 1.1 * min(sizes)
    )


def _is_foreign(text: str) -> bool:
    """In a container the rank does not know itself by number: then what is about its own share is itself."""
    listed = sum(_mib(found) for found in BUSY.finditer(text))
    own = OWN.search(text)
    if own is not None:
        return listed > SHARE * _mib(own)
    allocated = ALLOCATED.search(text)
    if allocated is None:
        return len(BUSY.findall(text)) > 1
    return listed > (1 + 2 * SHARE) * _mib(allocated) + CONTEXT_MIB


def _mib(found: re.Match[str]) -> float:
    return float(found["size"]) * (1024 if found["unit"] == "G" else 1)
