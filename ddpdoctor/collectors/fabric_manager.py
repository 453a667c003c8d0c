"""The fabric manager, searched for in /proc, because systemctl may hang and containers have no systemd."""

from __future__ import annotations

import re

from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.topo import FabricManager
from ddpdoctor.system.machine import Machine
from ddpdoctor.system.process import LateError, run

__all__ = ["look"]

PROGRAM = "/usr/bin/nv-fabricmanager"
COMM = "nv-fabricmanage"
"""The kernel truncates process names to 15 characters."""
VERSION_SECONDS = 1.0
SWITCHES = "nvidia-nvswitch"
BRIDGE, NVIDIA = "0x0680", "0x10de"


def look(machine: Machine) -> tuple[FabricManager | None, tuple[Gap, ...]]:
    """The service of a machine with NVSwitches; None and a gap with the reason if there are none."""
    if not _has_switches(machine):
        return None, (Gap("topo.fabric_manager", "no NVSwitch", Why.NOT_HERE),)
    pids = [name for name in machine.root.names("/proc") if name.isdigit()]
    running = any(machine.root.line(f"/proc/{pid}/comm") == COMM for pid in pids)
    return FabricManager(running, _version(machine)), ()


def _has_switches(machine: Machine) -> bool:
    """Judged by the driver's device nodes, its folder in /proc, or NVIDIA's bridges on the PCI bus."""
    if any(name.startswith(SWITCHES) for name in machine.root.names("/dev")):
        return True
    base = "/sys/bus/pci/devices"
    return bool(machine.root.names("/proc/driver/nvidia-nvswitch/devices")) or any(
        (machine.root.line(f"{base}/{name}/class") or "").startswith(BRIDGE)
        and machine.root.line(f"{base}/{name}/vendor") == NVIDIA
        for name in machine.root.names(base)
    )


def _version(machine: Machine) -> str | None:
    """`Fabric Manager version is : 580.105.08`; None when the program is not installed or does not print it."""
    if not machine.root.exists(PROGRAM):
        return None
    try:
        done = run([machine.root.at(PROGRAM), "--version"], min(VERSION_SECONDS, machine.deadline.left))
    except (LateError, OSError):
        return None
    match = re.search(r"(?<!\d)\d+\.\d+(\.\d+)*", done.text)
    return match[0] if match else None
