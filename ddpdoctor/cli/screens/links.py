"""The NVLinks, equal ones together, and what NVML reports about peer access."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.nvlink_models import nvlink_model
from ddpdoctor.facts.topo import GpuNode, Link, Pair, Topo

__all__ = ["about_links", "about_peers"]

VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
"""NVML's enum of NVLink versions, which are not version numbers."""


def about_links(topo: Topo) -> Iterator[str]:
    """Each GPU's links: equal ones share one line. Then the values of its model."""
    if not any(g.links for g in topo.gpus):
        return
    yield ""
    yield "NVLink:"
    told: dict[tuple[str, ...], list[int]] = {}
    for gpu in topo.gpus:
        if gpu.links:
            told.setdefault(tuple(_groups(gpu, topo)), []).append(gpu.index)
    for texts, gpus in told.items():
        yield f"  of GPU {_numbers(gpus)}:{f' {texts[0]}' if len(texts) == 1 else ''}"
        yield from (f"    {text}" for text in texts if len(texts) > 1)
    for name in dict.fromkeys(g.name for g in topo.gpus):
        model = nvlink_model(name)
        if model is not None and any(g.links for g in topo.gpus if g.name == name):
            bridged = ", with bridges" if model.bridge_links else ""
            speed = f"{model.mb_per_s / 1000:.1f} GB/s each, {model.gb_per_s:.0f} GB/s one way{model.published}"
            yield f"  expected of {name}: {model.links} links, {speed}{bridged}"
    if topo.sample_seconds is not None:
        yield f"  errors were counted for {topo.sample_seconds:g} s"


def _groups(gpu: GpuNode, topo: Topo) -> Iterator[str]:
    groups: dict[str, list[int]] = {}
    for link in gpu.links:
        groups.setdefault(_says(link, topo), []).append(link.index)
    for text, links in groups.items():
        yield f"{'link' if len(links) == 1 else 'links'} {_numbers(links)} {text}"


def _says(link: Link, topo: Topo) -> str:
    if not link.is_active:
        return "down"
    version = VERSIONS.get(link.version or 0, "?") if link.version is not None else "?"
    speed = f"{link.speed_mb_per_s / 1000:.1f} GB/s" if link.speed_mb_per_s else "speed not reported"
    growth = (link.replay_growth, link.recovery_growth, link.crc_growth, link.receive_growth)
    errors = "errors not reported" if link.recovery_growth is None else f"{sum(filter(None, growth))} new errors"
    return f"up, NVLink {version}, {speed}, to {_end(link, topo)}, {errors}"


def _end(link: Link, topo: Topo) -> str:
    peer = next((g for g in topo.gpus if g.bus_id is not None and g.bus_id == link.remote_bus_id), None)
    if peer is not None:
        return f"GPU {peer.index}"
    if link.remote == "switch":
        return "an NVSwitch"
    return link.remote_bus_id or "a place that is not visible here"


def about_peers(topo: Topo) -> Iterator[str]:
    """NVML's words for reading, writing and NVLink between pairs: OK, or why not (CNS chipset, NS not supported, …)."""
    groups: dict[str, list[Pair]] = {}
    for pair in topo.pairs:
        words = (
            f"{name} {word or 'not reported'}"
            for name, word in (("read", pair.read), ("write", pair.write), ("NVLink", pair.nvlink))
        )
        groups.setdefault(", ".join(words), []).append(pair)
    if groups:
        yield ""
        yield "Peer access:"
    for text, pairs in groups.items():
        names = ", ".join(f"{p.a}-{p.b}" for p in pairs[:8])
        more = f" and {len(pairs) - 8} more" if len(pairs) > 8 else ""
        yield f"  {text}: {f'all {len(pairs)} pairs' if len(pairs) == len(topo.pairs) > 1 else f'GPU {names}{more}'}"


def _numbers(numbers: list[int]) -> str:
    """`0-3, 8`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
