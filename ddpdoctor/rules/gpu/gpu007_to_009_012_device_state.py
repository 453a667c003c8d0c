"""A GPU that cannot be used now, by its driver's own word."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.device import Device
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.xids import XidKind
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.gpu.gpu039_to_044_500_xids import logged

ACTIONS = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain the peer-to-peer traffic",
    4: "drain the node and reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}


def _refusing(gpu: Gpu, code: str) -> Iterator[Device]:
    yield from (d for d in gpu.need(gpu.devices or None, "devices") if code in d.absent.values())


@cause(
    "GPU007",
    "gpu-lost",
    Severity.ERROR,
    signatures=(
        r"Unable to determine the device handle",
        r"fallen off the bus|\bGPU is lost\b",
        r"\bnvidia [\da-f:.]{7,12}: AER: can't recover",
        r"NVRM: Xid [^\n]*: 79\b",
    ),
    xids=XidKind.GPU_LOST,
)
def gpu_lost(gpu: Gpu) -> Iterator[Finding]:
    """A GPU has fallen off the bus.

    ## Why it matters
    "Unable to determine the device handle" or Xid 79: CUDA fails on this GPU, the other ranks wait in their collective,
    and nvidia-smi may hang.

    ## Fix
    Drain the node and reboot it; if it happens again, reseat or replace the card.

    ## Source
    NVML answers GPU_IS_LOST (15). Xid 79 on a GPU that NVML does not list any more.
    """
    for device in _refusing(gpu, "GPU_IS_LOST"):
        yield Finding(
            f"GPU {device.index} answers GPU_IS_LOST to NVML; expected a device that answers",
            evidence=(Evidence(f"gpu.devices[{device.index}].absent", "GPU_IS_LOST", "no such answer"),),
            where=Where(gpu=device.index),
        )
    yield from logged(gpu, XidKind.GPU_LOST, unless="uuid")


@cause("GPU008", "gpu-reset-required", Severity.ERROR)
def gpu_reset_required(gpu: Gpu) -> Iterator[Finding]:
    """A GPU must be reset before it can be used.

    ## Why it matters
    Every CUDA call on this GPU fails until the reset; the other GPUs of the node work, so only some ranks die.

    ## Fix
    End all processes on the GPU and reset it; reboot the node when the reset fails.

    ## Source
    NVML answers RESET_REQUIRED (16).
    """
    for device in _refusing(gpu, "RESET_REQUIRED"):
        yield Finding(
            f"GPU {device.index} answers RESET_REQUIRED to NVML; expected a device that answers",
            evidence=(Evidence(f"gpu.devices[{device.index}].absent", "RESET_REQUIRED", "no such answer"),),
            fix_command=f"nvidia-smi --gpu-reset -i {device.index}",
            where=Where(gpu=device.index),
        )


@cause(
    "GPU009",
    "gpu-recovery-action-pending",
    Severity.ERROR,
    signatures=(r"NVRM: Xid [^\n]*: 154\b",),
    xids=XidKind.GPU_RECOVERY_ACTION_PENDING,
)
def gpu_recovery_action_pending(gpu: Gpu) -> Iterator[Finding]:
    """The driver asks for a recovery action on a GPU.

    ## Why it matters
    The driver has seen a fault that it cannot clear by itself (Xid 154). Jobs may start, and die.

    ## Fix
    Do what the driver asks for before the next job.

    ## Source
    NVML field 230, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; Xid 154 where the driver has no such field.
    """
    found = tuple(logged(gpu, XidKind.GPU_RECOVERY_ACTION_PENDING, unless="recovery_action"))
    yield from found
    for device, action in gpu.each("recovery_action", or_none=bool(found)):
        if action:
            words = ACTIONS.get(action, f"action {action}")
            yield Finding(
                f"the driver asks to {words} for GPU {device.index}; expected no recovery action",
                evidence=(Evidence(f"gpu.devices[{device.index}].recovery_action", str(action), "0"),),
                where=Where(gpu=device.index),
            )


@cause("GPU012", "compute-mode-prohibited", Severity.ERROR)
def compute_mode_prohibited(gpu: Gpu) -> Iterator[Finding]:
    """The compute mode of a GPU prohibits every context.

    ## Why it matters
    No process may use CUDA on this GPU ("all CUDA-capable devices are busy or unavailable"), though it looks idle.

    ## Fix
    Set the default compute mode again.

    ## Source
    nvmlDeviceGetComputeMode answers 2.
    """
    for device, mode in gpu.each("compute_mode"):
        if mode == 2:
            yield Finding(
                f"GPU {device.index} has compute mode PROHIBITED; expected DEFAULT",
                evidence=(Evidence(f"gpu.devices[{device.index}].compute_mode", "2", "0"),),
                fix_command=f"nvidia-smi -i {device.index} -c 0",
                where=Where(gpu=device.index),
            )
