"""GPU007 to GPU009, GPU012: a GPU that its driver reports as unusable."""

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
        r"NVRM: Xid [^\n]{0,80}: 79\b",
    ),
    xids=XidKind.GPU_LOST,
)
def gpu_lost(gpu: Gpu) -> Iterator[Finding]:
    """A GPU has fallen off the bus.

    ## Why it matters
    CUDA fails on this GPU: `Unable to determine the device handle` or Xid 79. The other ranks wait in their collective, and
    nvidia-smi may hang.

    ## Fix
    Drain the node and reboot it; if it happens again, reseat or replace the card.

    ## Example
    In the kernel log:

        NVRM: Xid (PCI:0000:3b:00): 79, pid=2121, GPU has fallen off the bus.

    On a Slurm cluster, for node gpu-07:

        scontrol update nodename=gpu-07 state=drain reason="Xid 79"
        scontrol reboot gpu-07

    ## Source
    NVML returns GPU_IS_LOST (15). Xid 79 on a GPU that NVML no longer lists.
    """
    for device in _refusing(gpu, "GPU_IS_LOST"):
        yield Finding(
            f"GPU {device.index} has fallen off the bus (NVML: GPU_IS_LOST)",
            evidence=(Evidence(f"gpu.devices[{device.index}].absent", "GPU_IS_LOST", "no error"),),
            where=Where(gpu=device.index),
        )
    yield from logged(gpu, XidKind.GPU_LOST, unless="uuid")


@cause("GPU008", "gpu-reset-required", Severity.ERROR)
def gpu_reset_required(gpu: Gpu) -> Iterator[Finding]:
    """A GPU must be reset before it can be used.

    ## Why it matters
    Every CUDA call on this GPU fails until the reset. The other GPUs of the node work, so only some ranks die.

    ## Fix
    End all processes on the GPU and reset it, as root on that node; if the reset fails, reboot the node.

    ## Example
    ddpdoctor's message:

        GPU 3 needs a reset (NVML: RESET_REQUIRED)

    On that node, as root:

        fuser -v /dev/nvidia3
        nvidia-smi --gpu-reset -i 3

    ## Source
    NVML returns RESET_REQUIRED (16).
    """
    for device in _refusing(gpu, "RESET_REQUIRED"):
        yield Finding(
            f"GPU {device.index} needs a reset (NVML: RESET_REQUIRED)",
            evidence=(Evidence(f"gpu.devices[{device.index}].absent", "RESET_REQUIRED", "no error"),),
            fix_command=f"nvidia-smi --gpu-reset -i {device.index}",
            where=Where(gpu=device.index),
        )


@cause(
    "GPU009",
    "gpu-recovery-action-pending",
    Severity.ERROR,
    signatures=(r"NVRM: Xid [^\n]{0,80}: 154\b",),
    xids=XidKind.GPU_RECOVERY_ACTION_PENDING,
)
def gpu_recovery_action_pending(gpu: Gpu) -> Iterator[Finding]:
    """The driver asks for a recovery action on a GPU.

    ## Why it matters
    The driver found a fault that it cannot clear by itself (Xid 154). Jobs may start on this GPU and then die.

    ## Fix
    Do what the driver asks for before the next job: reset the GPU, drain the node or reboot it.

    ## Example
    In the kernel log:

        NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)

    On that node, as root, for GPU 2:

        nvidia-smi --gpu-reset -i 2

    ## Source
    NVML field 230, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; Xid 154 where the driver does not have this field.
    """
    from_log = tuple(logged(gpu, XidKind.GPU_RECOVERY_ACTION_PENDING, unless="recovery_action"))
    yield from from_log
    for device, action in gpu.each("recovery_action", or_none=bool(from_log)):
        if action:
            asked = ACTIONS.get(action, f"perform action {action}")
            yield Finding(
                f"GPU {device.index}: the driver asks to {asked}",
                evidence=(Evidence(f"gpu.devices[{device.index}].recovery_action", str(action), "0"),),
                where=Where(gpu=device.index),
            )


@cause("GPU012", "compute-mode-prohibited", Severity.ERROR)
def compute_mode_prohibited(gpu: Gpu) -> Iterator[Finding]:
    """A GPU has compute mode PROHIBITED.

    ## Why it matters
    No process may use CUDA on this GPU, although it looks idle: `all CUDA-capable devices are busy or unavailable`.

    ## Fix
    Set the default compute mode, as root on that node.

    ## Example
    ddpdoctor's message:

        GPU 1 has compute mode PROHIBITED

    On that node, as root:

        # before
        nvidia-smi -i 1 --query-gpu=compute_mode --format=csv,noheader
        Prohibited
        # after
        nvidia-smi -i 1 -c 0

    ## Source
    nvmlDeviceGetComputeMode returns 2.
    """
    for device, mode in gpu.each("compute_mode"):
        if mode == 2:
            yield Finding(
                f"GPU {device.index} has compute mode PROHIBITED",
                evidence=(Evidence(f"gpu.devices[{device.index}].compute_mode", "2", "0"),),
                fix_command=f"nvidia-smi -i {device.index} -c 0",
                where=Where(gpu=device.index),
            )
