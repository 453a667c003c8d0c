"""GPU015 to GPU017: GPUs that MIG divides."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ, shorten
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.visibility import visible
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.gpu.finding import at

CVD = "CUDA_VISIBLE_DEVICES"


def _instances(environ: Environ) -> list[str]:
    """The MIG devices that the variable lists."""
    value = environ.get(CVD) or ""
    return [entry for entry in value.split(",") if entry] if value.startswith("MIG-") else []


@cause(
    "GPU015",
    "mig-enabled",
    Severity.WARNING,
    signatures=(r"num_gpus INTERNAL ASSERT FAILED", r"Cuda failure 'operation not supported'"),
)
def mig_enabled(gpu: Gpu, environ: Environ) -> Iterator[Finding]:
    """MIG is enabled on a GPU of a job with several ranks.

    ## Why it matters
    A process sees only one MIG slice, and peer access over NVLink is off. NCCL fails with `num_gpus INTERNAL ASSERT FAILED` or
    `operation not supported`.

    ## Fix
    Disable MIG on the GPU, as root on that node: `nvidia-smi -i N -mig 0`.

    ## Example
    In the log:

        RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED

    On that node, as root, with no process on the GPU:

        nvidia-smi -i 1 -mig 0
        nvidia-smi -i 1 --query-gpu=mig.mode.current --format=csv

    ## Source
    nvmlDeviceGetMigMode, current.
    """
    divided = [d for d, mode in gpu.each("mig_mode") if mode == 1]
    visible_gpus = visible(environ.variables, gpu)
    ranks = environ.local_world_size or environ.world_size
    if _instances(environ) and (ranks or 1) < 2:
        return  # one process on its own slice, as intended
    for device in (d for d in divided if d.index in visible_gpus.devices):
        yield at(
            device,
            "mig_mode",
            f"MIG is enabled on GPU {device.index}; NCCL needs whole GPUs",
            "0",
            fix_command=f"nvidia-smi -i {device.index} -mig 0",
            severity=None if (ranks or 1) > 1 else Severity.NOTE,
        )


@cause("GPU016", "mig-mode-pending", Severity.WARNING)
def mig_mode_pending(gpu: Gpu) -> Iterator[Finding]:
    """A change of the MIG mode takes effect at the next GPU reset.

    ## Why it matters
    The next reset turns MIG on or off, and jobs then find other devices than before.

    ## Fix
    Reset the GPU now, as root on that node, or undo the change with `nvidia-smi -mig 0` or `-mig 1`.

    ## Example
    ddpdoctor's message:

        GPU 0 will enable MIG at its next reset

    On that node, as root, one of the two:

        nvidia-smi --gpu-reset -i 0
        nvidia-smi -i 0 -mig 0

    ## Source
    nvmlDeviceGetMigMode: current and pending differ.
    """
    for device, mode in gpu.each("mig_mode"):
        if device.mig_pending is not None and device.mig_pending != mode:
            text = f"GPU {device.index} will {'enable' if device.mig_pending else 'disable'} MIG at its next reset"
            command = f"nvidia-smi --gpu-reset -i {device.index}"
            yield at(device, "mig_pending", text, str(mode), fix_command=command)


@cause("GPU017", "mig-several-instances-per-process", Severity.ERROR)
def mig_several_instances_per_process(environ: Environ) -> Iterator[Finding]:
    """One process is given several MIG devices, but CUDA uses only the first.

    ## Why it matters
    torch.cuda.device_count() is 1, and a second rank fails with `invalid device ordinal`.

    ## Fix
    Set CUDA_VISIBLE_DEVICES to one MIG device per process.

    ## Example
    In the log of rank 1:

        RuntimeError: CUDA error: invalid device ordinal

    Before torchrun or srun starts the process:

        # before
        export CUDA_VISIBLE_DEVICES=MIG-0c9a...,MIG-7f31...
        # after
        export CUDA_VISIBLE_DEVICES=MIG-0c9a...

    ## Source
    NVIDIA's MIG user guide: CUDA enumerates one compute instance per process.
    """
    names = _instances(environ)
    if len(names) > 1:
        yield Finding(
            f"{CVD}={shorten(environ.get(CVD) or '')} lists {len(names)} MIG devices; CUDA uses only the first",
            (Evidence(f"environ.variables.{CVD}", f"{len(names)} MIG devices", "one"),),
            fix_command=f"export {CVD}={names[0]}",
        )
