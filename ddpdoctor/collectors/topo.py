"""`topo`: links, peer access and levels through NVML; NICs and PCI paths through sysfs."""

from __future__ import annotations

import re
from typing import Any

from ddpdoctor.collectors import fabric_manager
from ddpdoctor.collectors.gpu import INIT_WORDS, short_bus_id, why_of
from ddpdoctor.collectors.nvml.results import Answers, nvml
from ddpdoctor.collectors.pci import acs_bridges, iommu
from ddpdoctor.facts.codec import FactsError, decode
from ddpdoctor.facts.device import OF_THE_WHOLE_GPU
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.topo import P2P_WORDS, GpuNode, Nic, Pair, Topo
from ddpdoctor.system.machine import Machine

__all__ = ["collect"]

COUNTERS = ("replay", "recovery", "crc", "receive")
REMOTE = {0: "gpu", 2: "switch"}
NOWHERE = ("ffff:ff:ff.0", "0000:00:00.0")
"""The bus ids that NVML reports for a switch that is not visible to this system: `FFFFFFFF:FF:FF.0`."""


def collect(machine: Machine) -> Topo:
    """The GPUs, their links and pairs, and the RDMA devices."""
    answers = nvml(machine)
    gaps = list(_gaps(answers))
    gpus, pairs = [], []
    try:
        for index in range(answers.of("node").get("count") or 0):
            gpus.append(decode(GpuNode, _gpu(machine, answers, index)))
        for subject in answers.facts:
            a, dash, b = subject.partition("-")
            if dash:
                pairs.append(decode(Pair, {"a": int(a), "b": int(b), **_words(answers.of(subject))}))
    except FactsError as error:
        gaps.append(Gap("topo.gpus", f"NVML returned an invalid value: {error}"))
    manager, unseen = fabric_manager.look(machine) if gpus else (None, ())
    return Topo(
        gpus=tuple(gpus),
        pairs=tuple(pairs),
        nics=_nics(machine),
        fabric_manager=manager,
        imex_channels=machine.root.names("/dev/nvidia-caps-imex-channels"),
        has_pci_bus=bool(machine.root.names("/sys/class/pci_bus")),
        cpu_vendor=_cpu_vendor(machine) if gpus else None,
        sample_seconds=answers.of("node").get("sample_seconds"),
        gaps=(*gaps, *unseen),
    )


def _gaps(answers: Answers) -> tuple[Gap, ...]:
    if answers.trouble is not None:
        return (Gap("topo.gpus", answers.trouble),)
    error = answers.absent("node").get("init")
    if error is not None:
        reason = INIT_WORDS.get(error, f"nvmlInit failed: {error}")
        reason = "no NVIDIA GPU" if error == "LIBRARY_NOT_FOUND" else reason
        return (Gap("topo.gpus", reason, why_of(error)),)
    count = answers.of("node").get("count")
    if count is None:
        return (Gap("topo.gpus", f"nvmlDeviceGetCount failed: {answers.absent('node').get('count', 'no answer')}"),)
    return () if count else (Gap("topo.gpus", "no NVIDIA GPU", Why.NOT_HERE),)


def _gpu(machine: Machine, answers: Answers, index: int) -> dict[str, Any]:
    said, codes = answers.of(str(index)), answers.absent(str(index))
    bus_id = short_bus_id(said.get("bus_id"))
    place = f"/sys/bus/pci/devices/{bus_id}"
    numa = machine.root.number(f"{place}/numa_node")
    path = machine.root.real(place) if bus_id and machine.root.exists(place) else None
    known = {
        "index": index,
        "bus_id": bus_id,
        "error": codes.get("handle") or (codes.get("uuid") if codes.get("uuid") in OF_THE_WHOLE_GPU else None),
        "pci_path": path,
        "iommu": iommu(machine, place) if path else None,
        "acs_bridges": _as_list(acs_bridges(machine, path)) if path else None,
        "pci_numa_node": numa if numa is not None and numa >= 0 else None,
        "links": _links(answers, index),
    }
    names = ("name", "cpu_affinity", "numa_affinity", "gpu_numa_id", "link_count", "switch_links", "fabric")
    return known | {name: said[name] for name in names if said.get(name) not in (None, "")}


def _as_list(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)


def _links(answers: Answers, index: int) -> list[dict[str, Any]]:
    links = []
    beginning = f"{index} link "
    for subject, said in answers.facts.items():
        if not subject.startswith(beginning) or "is_active" not in said:
            continue
        remote = short_bus_id(said.get("remote_bus_id"))
        later = answers.of(f"{subject} later")
        growth = {
            f"{kind}_growth": later[f"{kind}_errors"] - said[f"{kind}_errors"]
            for kind in COUNTERS
            if f"{kind}_errors" in said and f"{kind}_errors" in later
        }
        links.append(
            {
                **said,
                **growth,
                "index": int(subject.removeprefix(beginning)),
                "remote": REMOTE.get(said["remote"], "unknown") if "remote" in said else None,
                "remote_bus_id": None if remote in NOWHERE else remote,
            }
        )
    return links


def _words(said: dict[str, Any]) -> dict[str, Any]:
    """The values of nvmlDeviceGetP2PStatus as the words of `nvidia-smi topo -p2p`."""
    words = {k: P2P_WORDS[v] if v in range(len(P2P_WORDS)) else "U" for k, v in said.items() if k != "level"}
    return {**words, **({"level": said["level"]} if "level" in said else {})}


def _cpu_vendor(machine: Machine) -> str | None:
    try:
        matched = re.search(r"^vendor_id\s*: (\S+)", machine.root.text("/proc/cpuinfo"), re.MULTILINE)
    except OSError:
        return None  # no /proc, as in a captured tree
    return matched[1] if matched else None


def _nics(machine: Machine) -> tuple[Nic, ...]:
    nics = []
    for name in machine.root.names("/sys/class/infiniband"):
        place = f"/sys/class/infiniband/{name}/device"
        numa = machine.root.number(f"{place}/numa_node")
        path = machine.root.real(place) if machine.root.exists(place) else None
        nics.append(Nic(name, path, numa if numa is not None and numa >= 0 else None))
    return tuple(nics)
