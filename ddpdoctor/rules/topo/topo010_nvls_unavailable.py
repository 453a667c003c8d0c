"""TOPO010: NVSwitches that could add up, and do not."""

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
"""With two GPUs NCCL does not look for it."""


@cause("TOPO010", "nvls-unavailable", Severity.ERROR, signatures=(r"Failed to bind NVLink SHARP",))
def nvls_unavailable(gpu: Gpu, topo: Topo, environ: Environ) -> Iterator[Finding]:
    """NVLink SHARP multicast cannot be used on this machine.

    ## Why it matters
    "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401" under "unhandled cuda error": a
    fabric manager or partition that does not hold all GPUs, a container without the IMEX channel, or a MIG slice. Where CUDA
    says beforehand that there is no multicast, NCCL goes without it: all_reduce is about a quarter slower.

    ## Fix
    NCCL_NVLS_ENABLE=0 gets the job running. Then check the fabric manager and the partition on the host.

    ## Source
    cuDeviceGetAttribute, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, on GPUs from Hopper on behind NVSwitches whose fabric is set
    up (else TOPO019 or TOPO020). That binding fails although CUDA promises multicast only the job's own log shows.
    """
    ready = {g.index for g in topo.all_gpus() if g.is_switched and (g.fabric is None or g.fabric.is_up)}
    able = [d for d in gpu.answering() if d.index in ready and _is_hopper(d) and not d.mig_mode]
    if len(able) < LEAST_GPUS or environ.settings.get("NCCL_NVLS_ENABLE") == "0":
        not_here("fewer than three GPUs here could use NVLink SHARP, or a setting does without it")
    known = {d.index: has for d in able if (has := gpu.multicast.get(d.bus_id or "")) is not None}
    if not known:
        not_here("CUDA was not asked for multicast, or does not know it")
    lacking = [index for index, has in known.items() if not has]
    if lacking:
        names = "all GPUs" if len(lacking) == len(able) else f"GPU {', '.join(map(str, lacking))}"
        is_forced = environ.settings.get("NCCL_NVLS_ENABLE") == "1"
        is_virtual = any(d.virtualization_mode for d in able)
        yield Finding(
            f"CUDA has no multicast on {names}, which NVSwitches connect: NCCL "
            f"{'does not start with NCCL_NVLS_ENABLE=1' if is_forced else 'goes without NVLink SHARP'}; expected multicast",
            (Evidence("gpu.multicast", f"false on {len(lacking)} of {len(able)}", "true"),),
            fix_command="unset NCCL_NVLS_ENABLE" if is_forced else None,
            severity=None if is_forced else Severity.NOTE if is_virtual else Severity.WARNING,
        )


def _is_hopper(device: Device) -> bool:
    major = (device.compute_capability or "0").partition(".")[0]
    return major.isdecimal() and int(major) >= HOPPER
