"""The properties of a node that are compared with other nodes: a flat table, by their paths in the facts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ddpdoctor.facts.compared_variables import is_compared
from ddpdoctor.facts.device import Device
from ddpdoctor.facts.environ import REMOVED, Environ
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import Host
from ddpdoctor.facts.interface_choice import choose_for_gloo, choose_for_nccl
from ddpdoctor.facts.net import Net, is_loopback
from ddpdoctor.facts.nodes import Form, Node
from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.topo import GpuNode, Topo
from ddpdoctor.facts.versions import Versions
from ddpdoctor.facts.visibility import visible

__all__ = ["PROPERTY_WORDS", "comparable_properties", "node_of"]

GIB = 1 << 30
MODULES = ("nvidia", "nvidia_uvm", "nvidia_peermem", "nv_peer_mem", "gdrdrv")
"""The kernel modules that NCCL and CUDA use."""
CARDS = ("physical", "infiniband", "bond")

PROPERTY_WORDS = {
    "gpu.application_clock": "the GPUs' application clock",
    "gpu.count": "the number of GPUs",
    "gpu.driver": "the NVIDIA driver",
    "gpu.ecc": "ECC of the GPUs",
    "gpu.kernel_modules": "the list of NVIDIA kernel modules",
    "gpu.memory": "the GPUs' memory",
    "gpu.mig": "MIG mode",
    "gpu.model": "the GPU model",
    "gpu.nvml_error": "NVML's error",
    "gpu.pcie": "the GPUs' PCIe link",
    "gpu.persistence": "persistence mode",
    "gpu.power_limit": "the GPUs' power limit",
    "gpu.row_remapping": "row remapping of the GPUs",
    "host.architecture": "the CPU architecture",
    "host.cgroup.cpus": "the cgroup's CPU quota",
    "host.cgroup.memory": "the cgroup's memory limit",
    "host.clock": "the clock",
    "host.container": "the container runtime",
    "host.cpus_allowed": "the number of usable CPUs",
    "host.governor": "the CPU frequency governor",
    "host.huge_pages": "the huge pages setting",
    "host.kernel": "the kernel",
    "host.limits.address_space": "ulimit -v",
    "host.limits.locked_memory": "ulimit -l",
    "host.limits.open_files": "ulimit -n",
    "host.limits.processes": "ulimit -u",
    "host.limits.stack": "ulimit -s",
    "host.memory": "the node's memory",
    "host.numa_balancing": "NUMA balancing",
    "host.shm": "the size of /dev/shm",
    "host.shm_kind": "the kind of /dev/shm",
    "host.swap": "swap",
    "net.cards": "the list of network cards",
    "net.mtu": "the MTU",
    "net.rdma_firmware": "the firmware of the RDMA adapters",
    "net.rdma_ports": "the number of active RDMA ports",
    "net.rdma_rate": "the rate of the RDMA ports",
    "net.speed": "the speed of the network card",
    "topo.fabric": "the NVLink fabric",
    "topo.fabric_manager": "fabric manager",
    "topo.nvlinks": "the number of active NVLinks",
    "versions.build": "the build of torch",
    "versions.nccl": "NCCL",
    "versions.numpy": "numpy",
    "versions.python": "Python",
    "versions.torch": "torch",
}
"""What a sentence calls each property."""


def comparable_properties(facts: Facts) -> dict[str, str]:
    """The comparable properties of a node; unknown ones are left out."""
    properties: dict[str, str | None] = {}
    if facts.environ is not None:
        properties.update(_environ(facts.environ, facts.hostname))
    for section, read_section in _OF_SECTIONS.items():
        if getattr(facts, section) is not None:
            properties.update(read_section(getattr(facts, section)))
    return {name: value for name, value in properties.items() if value is not None}


def _environ(environ: Environ, hostname: str) -> Iterator[tuple[str, str | None]]:
    """The settings. The node's own name in a value, as in the path of a cache, is not a difference."""
    own = re.compile(rf"(?<![A-Za-z0-9]){re.escape(hostname)}(?![A-Za-z0-9])", re.IGNORECASE) if hostname else None
    for name, value in environ.settings.items():
        if is_compared(name) and value != REMOVED:
            yield f"environ.{name}", own.sub("HOST", value) if own is not None else value


def _versions(versions: Versions) -> Iterator[tuple[str, str | None]]:
    yield "versions.torch", versions.torch or "not installed"
    yield "versions.build", versions.build or None
    yield "versions.nccl", versions.nccl.version if versions.nccl is not None else versions.nccl_required
    yield "versions.python", versions.python or None
    yield "versions.numpy", versions.numpy


def _gpu(gpu: Gpu) -> Iterator[tuple[str, str | None]]:
    yield "gpu.driver", gpu.driver_version
    yield "gpu.kernel_modules", ", ".join(sorted(module for module in gpu.kernel_modules if module in MODULES)) or None
    yield "gpu.nvml_error", gpu.nvml_error or ("none" if gpu.devices else None)
    if not gpu.devices and gpu.nvml_error not in (None, "LIBRARY_NOT_FOUND"):
        return
    yield "gpu.count", str(len(gpu.devices))
    yield from _devices(gpu.devices)


def _devices(devices: tuple[Device, ...]) -> Iterator[tuple[str, str | None]]:
    yield "gpu.model", _counted(d.name for d in devices)
    yield "gpu.memory", _counted(_gib(d.memory_total_bytes) for d in devices)
    yield "gpu.ecc", _alike(_word(d.ecc_mode, "on", "off") for d in devices)
    yield "gpu.mig", _alike(_word(d.mig_mode, "on", "off") for d in devices)
    yield "gpu.power_limit", _alike(f"{d.power_limit_mw // 1000} W" if d.power_limit_mw else None for d in devices)
    yield "gpu.application_clock", _alike(f"{d.app_clock_mhz} MHz" if d.app_clock_mhz else None for d in devices)
    yield "gpu.pcie", _alike(_pcie(d) for d in devices)
    yield "gpu.row_remapping", _alike(_word(d.remap_failure, "failed", "well") for d in devices)
    yield "gpu.persistence", _alike(_word(d.persistence_mode, "on", "off") for d in devices)


def _host(host: Host) -> Iterator[tuple[str, str | None]]:
    yield "host.kernel", host.kernel or None
    yield "host.architecture", host.architecture or None
    yield "host.cpus_allowed", None if host.cpus_allowed is None else str(host.cpus_allowed)
    yield "host.memory", _gib(host.memory_total_bytes)
    yield "host.shm", _gib(host.shm_total_bytes)
    yield "host.shm_kind", host.shm_kind
    yield "host.swap", None if host.swap_total_bytes is None else "on" if host.swap_total_bytes else "off"
    yield "host.clock", _word(host.clock_is_synchronised, "synchronized", "not synchronized")
    yield "host.numa_balancing", _word(host.numa_balancing, "on", "off")
    yield from _host_limits(host)


def _host_limits(host: Host) -> Iterator[tuple[str, str | None]]:
    if host.cgroup is not None:
        memory, cpus = host.cgroup.memory_limit_bytes, host.cgroup.cpu_quota
        yield "host.cgroup.memory", None if memory is None else "unlimited" if memory < 0 else _gib(memory)
        yield "host.cgroup.cpus", None if cpus is None else "unlimited" if cpus < 0 else f"{cpus:g}"
    yield "host.governor", host.governor
    yield "host.huge_pages", host.huge_pages
    yield "host.container", host.container or "none"
    limits = host.limits
    for name in ("open_files", "locked_memory", "processes", "stack", "address_space"):
        limit = getattr(limits, name)
        yield f"host.limits.{name}", None if limit is None else "unlimited" if limit.soft < 0 else str(limit.soft)


def _net(net: Net) -> Iterator[tuple[str, str | None]]:
    carriers = [i for i in net.interfaces if i.name in net.way_out]
    cards = sorted(i.name for i in net.interfaces if i.kind in CARDS and i.is_running and i.addresses)
    yield "net.cards", ", ".join(cards) or None
    yield "net.mtu", str(carriers[0].mtu) if carriers and carriers[0].mtu else None
    yield "net.speed", f"{carriers[0].speed_mbit_per_s} Mbit/s" if carriers and carriers[0].speed_mbit_per_s else None
    if net.rdma is not None and net.rdma.devices:
        ports = [p for _, p in net.rdma.ports if p.is_active]
        yield "net.rdma_ports", str(len(ports))
        yield "net.rdma_rate", _alike(f"{p.rate_gbit_per_s:g} Gbit/s" if p.rate_gbit_per_s else None for p in ports)
        yield "net.rdma_firmware", _alike(d.firmware for d in net.rdma.devices)


def _topo(topo: Topo) -> Iterator[tuple[str, str | None]]:
    uuids = {g.fabric.cluster_uuid for g in topo.gpus if g.fabric is not None and g.fabric.cluster_uuid}
    cliques = {g.fabric.clique for g in topo.gpus if g.fabric is not None and g.fabric.clique is not None}
    yield "topo.nvlinks", _alike(_links(g) for g in topo.gpus)
    if topo.fabric_manager is not None:
        yield "topo.fabric_manager", _word(topo.fabric_manager.is_running, "running", "not running")
    if any(
        set(uuid) - set("0-") for uuid in uuids
    ):  # all zeros: an HGX node, whose fabric does not extend beyond the node
        yield "topo.fabric", f"{'/'.join(sorted(uuids))} clique {'/'.join(map(str, sorted(cliques)))}"


_OF_SECTIONS: dict[str, Callable[[Any], Iterator[tuple[str, str | None]]]] = {
    "versions": _versions,
    "gpu": _gpu,
    "host": _host,
    "net": _net,
    "topo": _topo,
}


def _counted(values: Iterator[str | None]) -> str | None:
    """`8x H100`; `7x H100, 1x A100`. None without a known value."""
    counts = Counter(value for value in values if value is not None)
    return ", ".join(f"{count}x {value}" for value, count in sorted(counts.items())) or None


def _alike(values: Iterator[str | None]) -> str | None:
    """`on` if all have the same value, whatever their number; else `7x on, 1x off`."""
    known = [value for value in values if value is not None]
    return known[0] if len(set(known)) == 1 else _counted(iter(known))


def _pcie(device: Device) -> str | None:
    """The generation that the slot supports, and the lanes in use. The current generation falls while the GPU is idle."""
    if device.pcie_width is None or device.pcie_generation_max is None:
        return None
    return f"generation {device.pcie_generation_max} x{device.pcie_width}"


def _links(gpu: GpuNode) -> str | None:
    return f"{sum(link.is_active for link in gpu.links)} of {gpu.link_count}" if gpu.link_count else None


def _gib(size: int | None) -> str | None:
    return None if size is None else f"{size / GIB:.1f} GiB"


def _word(value: bool | int | None, yes: str, no: str) -> str | None:
    return None if value is None else yes if value else no


def node_of(facts: Facts) -> Node:
    """A node in the form that other nodes compare, from its facts."""
    node = Node(host=facts.hostname, form=Form.FILES, gpu_uuids=_uuids(facts), traits=comparable_properties(facts))
    return node if facts.net is None else _with_addresses(node, facts.net, facts.environ)


def _with_addresses(node: Node, net: Net, environ: Environ | None) -> Node:
    settings, variables = (environ.settings, environ.variables) if environ is not None else ({}, {})
    return replace(
        node,
        full_name=net.full_name.name if net.full_name is not None else "",
        addresses=tuple(a for a in net.own_addresses if _is_reachable(a)),
        nccl_addresses=tuple(_with_prefix(net, choice.ip) for choice in choose_for_nccl(net, settings)),
        gloo_address=next((choice.ip for choice in choose_for_gloo(net, variables)), None),
    )


def _is_reachable(address: str) -> bool:
    return not is_loopback(address) and not address.lower().startswith("fe80:")


def _with_prefix(net: Net, ip: str) -> str:
    length = next((a.prefix_length for i in net.interfaces for a in i.addresses if a.ip == ip), None)
    return ip if length is None else f"{ip}/{length}"


def _uuids(facts: Facts) -> tuple[str, ...]:
    """The GPUs that are visible to this node's ranks."""
    if facts.gpu is None or facts.environ is None or not facts.gpu.devices:
        return ()
    indexes = visible(facts.environ.variables, facts.gpu).devices
    return tuple(d.uuid for index in indexes for d in facts.gpu.devices if d.index == index and d.uuid)
