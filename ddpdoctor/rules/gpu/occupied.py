"""GPU010, GPU011, GPU013: somebody else on the GPU, or a mode that lets only one in."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.device import Device, Process
from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import readable
from ddpdoctor.facts.visibility import visible
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import rule
from ddpdoctor.rules.gpu.finding import at

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


def _foreign(device: Device) -> list[Process]:
    """Living processes that belong neither to us nor to the system. A pid that is not here may be the job's own."""
    return [
        p
        for p in device.processes or ()
        if p.command is not None and not p.is_ours and not p.command.startswith(SERVICES)
    ]


@rule(
    "GPU010",
    "gpu-busy",
    Severity.ERROR,
    signatures=(r"Process \d+ has [\d.]+ (GiB|MiB) memory in use",),
)
def busy(gpu: Gpu, environ: Environ) -> Iterator[Finding]:
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


@rule("GPU011", "gpu-memory-in-use", Severity.WARNING)
def memory_in_use(gpu: Gpu, environ: Environ) -> Iterator[Finding]:
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


@rule(
    "GPU013",
    "compute-mode-exclusive",
    Severity.NOTE,
    signatures=(r"CUDA-capable device(\(s\))?s? (is/are|are) busy or unavailable",),
)
def exclusive(gpu: Gpu) -> Iterator[Finding]:
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
