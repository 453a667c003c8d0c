"""GPU006: different GPUs in one job."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.device import Device
from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.nodes import Nodes, split
from ddpdoctor.facts.visibility import visible
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.node_findings import differs

MEMORY_SHARE = 0.95
GIB = 1 << 30


@cause("GPU006", "gpu-models-mixed", Severity.WARNING, scope=CauseScope.FACTS_OF_NODES)
def gpu_models_mixed(
    gpu: Gpu | None = None, environ: Environ | None = None, nodes: Nodes | None = None
) -> Iterator[Finding]:
    """The job uses GPUs of different models or memory sizes.

    ## Why it matters
    Every step waits for the slowest GPU, and the one with the least memory fails first with `CUDA out of memory`.

    ## Fix
    Select GPUs of one model with CUDA_VISIBLE_DEVICES, or give the smaller GPUs smaller batches.

    ## Example
    ddpdoctor's message:

        different GPUs are visible (GPU 0: NVIDIA H100 80GB HBM3; GPU 1: NVIDIA A100 80GB PCIe)

    The command on a node with two H100 and one A100 (GPU 1):

        # before
        torchrun --nproc-per-node 3 train.py
        # after
        CUDA_VISIBLE_DEVICES=0,2 torchrun --nproc-per-node 2 train.py

    ## Source
    nvmlDeviceGetName and nvmlDeviceGetMemoryInfo of the GPUs that CUDA shows.
    """
    if nodes is not None:
        yield from _between_nodes(nodes)
        return
    if gpu is None or environ is None:
        not_here("no NVIDIA GPU was examined")
    ranks = environ.local_world_size
    if ranks == 1:
        not_here("one rank uses one GPU")
    indices = visible(environ.variables, gpu).devices
    devices = [d for d, _ in gpu.each("name") if d.index in indices and not d.mig_mode]
    kinds: dict[str, list[int]] = {}
    for device in devices:
        kinds.setdefault(_kind(device, devices), []).append(device.index)
    if len(kinds) < 2:
        return
    odd = min(kinds.values(), key=len)
    models = "; ".join(f"GPU {', '.join(map(str, indices))}: {name}" for name, indices in kinds.items())
    yield Finding(
        f"different GPUs are visible ({models})",
        (Evidence("gpu.devices", models, "one model"),),
        where=Where(gpu=odd[0] if len(odd) == 1 and len(devices) > 2 else None),
        severity=None if ranks is not None else Severity.NOTE,
    )


def _kind(device: Device, devices: list[Device]) -> str:
    """The model; with its memory if cards of that model differ by more than what the driver reserves."""
    sizes = [d.memory_total_bytes for d in devices if d.name == device.name and d.memory_total_bytes]
    if not sizes or device.memory_total_bytes is None or min(sizes) >= MEMORY_SHARE * max(sizes):
        return device.name or ""
    return f"{device.name}, {device.memory_total_bytes / GIB:.0f} GiB"


def _between_nodes(nodes: Nodes) -> Iterator[Finding]:
    """Nodes with other GPU models than the rest; the number of GPUs is not compared here."""
    for path, what in (("gpu.model", "the GPU model"), ("gpu.memory", "the memory of the GPUs")):
        groups = split(nodes.nodes, lambda node, path=path: _kinds(node.traits.get(path)))  # type: ignore[misc]
        if groups is not None:
            yield differs(groups, what, path)
            return


def _kinds(counted: str | None) -> str | None:
    """`8x H100, 1x A100` without the numbers."""
    return None if counted is None else ", ".join(item.partition("x ")[2] for item in counted.split(", "))
