"""TOPO010: NVLink SHARP (NVSwitches that compute reductions) is unavailable."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.device import Device
from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.topo import Topo
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

HOPPER = 9
LEAST_GPUS = 3
"""With two GPUs NCCL does not use it."""


@cause("TOPO010", "nvls-unavailable", Severity.ERROR, signatures=(r"Failed to bind NVLink SHARP",))
def nvls_unavailable(gpu: Gpu, topo: Topo, environ: Environ) -> Iterator[Finding]:
    """NVLink SHARP multicast cannot be used on this machine.

    ## Why it matters
    NCCL fails with `Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401`: a fabric manager or
    partition without all GPUs, a container without the IMEX channel, or a MIG slice. If CUDA reports in advance that multicast is
    missing, NCCL runs without it and all_reduce is about a quarter slower.

    ## Fix
    Set NCCL_NVLS_ENABLE=0 to get the job running. Then check the fabric manager and the partition on the host.

    ## Example
    In the log:

        NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401

    On all nodes:

        # before
        torchrun --nproc-per-node 8 train.py
        # after
        NCCL_NVLS_ENABLE=0 torchrun --nproc-per-node 8 train.py

    ## Source
    cuDeviceGetAttribute, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, on GPUs from Hopper on that NVSwitches connect and whose fabric
    is set up (else TOPO019 or TOPO020). If the binding fails although CUDA reports multicast, only the job's own log shows it.
    """
    ready = {g.index for g in topo.all_gpus() if g.is_switched and (g.fabric is None or g.fabric.is_up)}
    capable = [d for d in gpu.answering() if d.index in ready and _is_hopper(d) and not d.mig_mode]
    if len(capable) < LEAST_GPUS or environ.settings.get("NCCL_NVLS_ENABLE") == "0":
        not_here("fewer than three GPUs can use NVLink SHARP, or NCCL_NVLS_ENABLE=0 disables it")
    known = {d.index: has for d in capable if (has := gpu.multicast.get(d.bus_id or "")) is not None}
    if not known:
        not_here("CUDA did not report whether multicast is supported")
    lacking = [index for index, has in known.items() if not has]
    if lacking:
        names = "any GPU" if len(lacking) == len(capable) else f"GPU {', '.join(map(str, lacking))}"
        is_forced = environ.settings.get("NCCL_NVLS_ENABLE") == "1"
        is_virtual = any(d.virtualization_mode for d in capable)
        yield Finding(
            f"CUDA has no multicast on {names}: NCCL "
            f"{'does not start with NCCL_NVLS_ENABLE=1' if is_forced else 'runs without NVLink SHARP'}",
            (Evidence("gpu.multicast", f"false on {len(lacking)} of {len(capable)}", "true"),),
            fix_command="unset NCCL_NVLS_ENABLE" if is_forced else None,
            severity=None if is_forced else Severity.NOTE if is_virtual else Severity.WARNING,
        )


def _is_hopper(device: Device) -> bool:
    major = (device.compute_capability or "0").partition(".")[0]
    return major.isdecimal() and int(major) >= HOPPER
