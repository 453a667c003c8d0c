"""GPU015 to GPU017: GPUs that are divided."""

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
    """The MIG names that the variable lists."""
    value = environ.get(CVD) or ""
    return [entry for entry in value.split(",") if entry] if value.startswith("MIG-") else []


@cause(
    "GPU015",
    "mig-enabled",
    Severity.WARNING,
    signatures=(r"num_gpus INTERNAL ASSERT FAILED", r"Cuda failure 'operation not supported'"),
)
def mig_enabled(gpu: Gpu, environ: Environ) -> Iterator[Finding]:
    """MIG is on for a GPU that a job of several ranks uses.

    ## Why it matters
    A process sees one slice only, and peer access over NVLink is off: "num_gpus INTERNAL ASSERT FAILED" or "operation not
    supported" when NCCL starts.

    ## Fix
    Switch MIG off for jobs of several ranks.

    ## Source
    nvmlDeviceGetMigMode, current.
    """
    divided = [d for d, mode in gpu.each("mig_mode") if mode == 1]
    seen = visible(environ.variables, gpu)
    ranks = environ.local_world_size or environ.world_size
    if _instances(environ) and (ranks or 1) < 2:
        return  # one process on its slice, as meant
    for device in (d for d in divided if d.index in seen.devices):
        yield at(
            device,
            "mig_mode",
            f"MIG is enabled on GPU {device.index}; expected off, for NCCL uses whole GPUs",
            "0",
            fix_command=f"nvidia-smi -i {device.index} -mig 0",
            severity=None if (ranks or 1) > 1 else Severity.NOTE,
        )


@cause("GPU016", "mig-mode-pending", Severity.WARNING)
def mig_mode_pending(gpu: Gpu) -> Iterator[Finding]:
    """A change of the MIG mode waits for a reset.

    ## Why it matters
    The next reset divides the GPU or makes it whole, and changes the devices that jobs find.

    ## Fix
    Reset the GPU now, or take the change back.

    ## Source
    nvmlDeviceGetMigMode: current and pending differ.
    """
    for device, mode in gpu.each("mig_mode"):
        if device.mig_pending is not None and device.mig_pending != mode:
            text = f"GPU {device.index} will switch MIG {'on' if device.mig_pending else 'off'} at its next reset"
            command = f"nvidia-smi --gpu-reset -i {device.index}"
            yield at(device, "mig_pending", f"{text}; expected no change to wait", str(mode), fix_command=command)


@cause("GPU017", "mig-several-instances-per-process", Severity.ERROR)
def mig_several_instances_per_process(environ: Environ) -> Iterator[Finding]:
    """One process is given several MIG devices.

    ## Why it matters
    CUDA uses the first of them only: torch.cuda.device_count() is 1, and a second rank fails with "invalid device ordinal".

    ## Fix
    Give each process one MIG device.

    ## Source
    NVIDIA's MIG user guide: CUDA enumerates one compute instance a process.
    """
    names = _instances(environ)
    if len(names) > 1:
        yield Finding(
            f"{CVD}={shorten(environ.get(CVD) or '')} lists {len(names)} MIG devices, and CUDA uses the first only; "
            "expected one a process",
            (Evidence(f"environ.variables.{CVD}", f"{len(names)} MIG devices", "one"),),
            fix_command=f"export {CVD}={names[0]}",
        )
