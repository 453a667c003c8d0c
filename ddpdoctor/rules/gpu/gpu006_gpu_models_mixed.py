"""GPU006: unlike GPUs in one job."""

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
    It runs, at the pace of the slowest card and with the memory of the smallest.

    ## Fix
    Give the job GPUs of one kind (CUDA_VISIBLE_DEVICES), or smaller batches to the smaller cards.

    ## Source
    nvmlDeviceGetName and nvmlDeviceGetMemoryInfo of the GPUs that CUDA shows.
    """
    if nodes is not None:
        yield from _met(nodes)
        return
    if gpu is None or environ is None:
        not_here("no NVIDIA GPU was looked at")
    ranks = environ.local_world_size
    if ranks == 1:
        not_here("one rank uses one GPU")
    indices = visible(environ.variables, gpu).devices
    seen = [d for d, _ in gpu.each("name") if d.index in indices and not d.mig_mode]
    kinds: dict[str, list[int]] = {}
    for device in seen:
        kinds.setdefault(_kind(device, seen), []).append(device.index)
    if len(kinds) < 2:
        return
    odd = min(kinds.values(), key=len)
    words = "; ".join(f"GPU {', '.join(map(str, at))}: {name}" for name, at in kinds.items())
    yield Finding(
        f"the visible GPUs are not alike ({words}); expected one model and memory size",
        (Evidence("gpu.devices", words, "one model"),),
        where=Where(gpu=odd[0] if len(odd) == 1 and len(seen) > 2 else None),
        severity=None if ranks is not None else Severity.NOTE,
    )


def _kind(device: Device, seen: list[Device]) -> str:
    """The model, and with it the memory where cards of that model differ by more than a card's own reserve."""
    sizes = [d.memory_total_bytes for d in seen if d.name == device.name and d.memory_total_bytes]
    if not sizes or device.memory_total_bytes is None or min(sizes) >= MEMORY_SHARE * max(sizes):
        return device.name or ""
    return f"{device.name}, {device.memory_total_bytes / GIB:.0f} GiB"


def _met(nodes: Nodes) -> Iterator[Finding]:
    """Nodes with other GPUs than the rest; how many they have is another question."""
    for path, what in (("gpu.model", "the GPU model"), ("gpu.memory", "the memory of the GPUs")):
        found = split(nodes.nodes, lambda node, path=path: _kinds(node.traits.get(path)))  # type: ignore[misc]
        if found is not None:
            yield differs(found, what, path)
            return


def _kinds(counted: str | None) -> str | None:
    """`8x H100, 1x A100` without the numbers."""
    return None if counted is None else ", ".join(each.partition("x ")[2] for each in counted.split(", "))
