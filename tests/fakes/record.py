"""Writes fixtures/machines/NAME/{gpu,topo}.json: the collectors' answer to the library built from the profile NAME.

python tests/fakes/record.py NAME…
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from ddpdoctor.collectors import collect
from ddpdoctor.facts.codec import encode
from ddpdoctor.system.machine import Machine, Root
from fakes import library

MACHINES = Path(__file__).parent.parent.parent / "fixtures" / "machines"


def tree(node: dict[str, object], folder: Path) -> Root:
    """A file tree with the device nodes, modules and NICs of a profile."""
    host = node["host"]
    if host.get("is_wsl"):
        return Root(str(folder))
    for gpu in node["gpus"]:
        (folder / "dev").mkdir(parents=True, exist_ok=True)
        (folder / f"dev/nvidia{gpu['minor']}").touch()
        bus_id = gpu["pci"]["bus_id"].lower()[4:]
        _device(folder, bus_id, gpu["pcie_path"], gpu.get("numa", -1), "0x030200", "0x10de")
    for name in host["dev_nodes"]:
        (folder / "dev").mkdir(parents=True, exist_ok=True)
        (folder / "dev" / name).touch()
    for name in host["modules"]:
        (folder / "sys/module" / name).mkdir(parents=True)
    _log(host.get("kernel_log", []), folder)
    _fabric_manager(host.get("fabric_manager"), folder)
    for channel in host.get("imex_channels", []):
        (folder / "dev/nvidia-caps-imex-channels").mkdir(parents=True, exist_ok=True)
        (folder / "dev/nvidia-caps-imex-channels" / channel).touch()
    (folder / "sys/class/pci_bus/0000:00").mkdir(parents=True)
    for place in folder.glob("sys/devices/**/numa_node"):
        _bridges(place.parent, host)
    for nic in host["nics"]:
        place = _device(folder, nic["bus_id"], nic["pcie_path"], nic["numa"], "0x020700", "0x15b3")
        (folder / "sys/class/infiniband" / nic["name"]).mkdir(parents=True)
        (folder / "sys/class/infiniband" / nic["name"] / "device").symlink_to(place)
    return Root(str(folder))


def _log(lines: list[str], folder: Path) -> None:
    (folder / "dev").mkdir(parents=True, exist_ok=True)
    (folder / "proc").mkdir(exist_ok=True)
    (folder / "proc/uptime").write_text("600.00 1200.00\n")
    (folder / "dev/kmsg").write_text("".join(f"6,{at},{at},-;{line}\n" for at, line in enumerate(lines)))


def _fabric_manager(service: dict[str, object] | None, folder: Path) -> None:
    if service is None:
        return
    program = folder / "usr/bin/nv-fabricmanager"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho Fabric Manager version is : {service['version']}\n")
    program.chmod(0o755)
    if service["running"]:
        (folder / "proc/4711").mkdir(parents=True)
        (folder / "proc/4711/comm").write_text("nv-fabricmanage\n")


def _bridges(place: Path, host: dict[str, object]) -> None:
    """The configuration space of the bridges above a GPU, with ACS on or off, and its IOMMU group."""
    for bridge in place.parents:
        if bridge.name.startswith("pci"):
            break
        control = 0x1D if host.get("acs") else 0
        capability = (0x0001_000D).to_bytes(4, "little") + b"\0\0" + control.to_bytes(2, "little")
        (bridge / "config").write_bytes(bytes(0x100) + capability + bytes(16))
    if host.get("iommu"):
        (place / "iommu_group").mkdir()
        (place / "iommu_group/type").write_text(f"{host['iommu']}\n")


def _device(folder: Path, bus_id: str, path: list[str], numa: int, kind: str, vendor: str) -> Path:
    bridge, *switches = path[1:]
    bridge = bridge if bridge.startswith("pci") else f"pci0000:{bridge}"
    place = folder / "sys/devices" / bridge / "/".join(f"{s}-up/{s}-port-{bus_id}" for s in switches) / bus_id
    place.mkdir(parents=True)
    for name, value in (("numa_node", numa), ("class", kind), ("vendor", vendor), ("device", "0x0000")):
        (place / name).write_text(f"{value}\n")
    if vendor == "0x10de":
        (folder / "sys/bus/pci/drivers/nvidia").mkdir(parents=True, exist_ok=True)
        (place / "driver").symlink_to(folder / "sys/bus/pci/drivers/nvidia")
    (folder / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    (folder / "sys/bus/pci/devices" / bus_id).symlink_to(place)
    return place


def record(name: str) -> None:
    """One machine's two files."""
    node = library.profile(name)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as root:
        library.build(node, Path(folder))
        environ = {**os.environ, "LD_LIBRARY_PATH": folder}
        facts = collect(Machine(root=tree(node, Path(root)), environ=environ), ("gpu", "topo"))
    (MACHINES / name).mkdir(parents=True, exist_ok=True)
    for word in ("gpu", "topo"):
        text = json.dumps(encode(getattr(facts, word)), indent=1)
        (MACHINES / name / f"{word}.json").write_text(text + "\n")


if __name__ == "__main__":
    for wanted in sys.argv[1:] or [p.stem for p in library.PROFILES.glob("*.json")]:
        record(wanted)
