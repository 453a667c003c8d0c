"""RDMA adapters from sysfs, read twice for their error counters; nothing here opens a device."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace

from ddpdoctor.facts.rdma import Gid, Rdma, RdmaDevice, RdmaPort
from ddpdoctor.system.machine import Machine

__all__ = ["look"]

BASE = "/sys/class/infiniband"
SAMPLE_SECONDS = 0.05
GIDS_MOST = 256
COUNTERS = (
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/link_downed",
    "counters/port_rcv_errors",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "hw_counters/packet_seq_err",
    "hw_counters/local_ack_timeout_err",
)
"""Counters that stay 0 on a healthy link. Waits and discards of a busy receiver are not link errors."""
LIBRARY, PLUGIN = "libibverbs.so.1", "libnccl-net.so"
PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem")
DMA_BUF_KERNEL = (5, 12)


def look(machine: Machine) -> Rdma:
    """The adapters; without any, only the cheap facts."""
    names = machine.root.names(BASE)
    before = {name: _counters(machine, name) for name in names}
    begin = time.monotonic()
    devices = tuple(_device(machine, name) for name in names)
    seconds = None
    if names:
        time.sleep(max(0.0, min(begin + SAMPLE_SECONDS - time.monotonic(), machine.deadline.left)))
        devices = tuple(_grown(machine, device, before[device.name]) for device in devices)
        seconds = round(time.monotonic() - begin, 3)
    return Rdma(
        devices=devices,
        device_nodes=tuple(n for n in machine.root.names("/dev/infiniband") if n.startswith("uverbs")),
        has_library=_is_found(machine, LIBRARY) if names else None,
        peer_memory=next((m for m in PEER_MEMORY if machine.root.exists(f"/sys/module/{m}")), None),
        has_dma_buf=_has_dma_buf(machine),
        plugin=_plugin(machine),
        has_plugin=_has_plugin(machine),
        sample_seconds=seconds,
    )


def _device(machine: Machine, name: str) -> RdmaDevice:
    place = f"{BASE}/{name}"
    driver = f"{place}/device/driver"
    ports = [_port(machine, name, int(n)) for n in machine.root.names(f"{place}/ports") if n.isdecimal()]
    return RdmaDevice(
        name=name,
        kind=machine.root.line(f"{place}/hca_type") or None,
        driver=os.path.basename(machine.root.real(driver)) if machine.root.exists(driver) else None,
        firmware=machine.root.line(f"{place}/fw_ver") or None,
        is_virtual_function=machine.root.exists(f"{place}/device/physfn"),
        ports=tuple(ports),
    )


def _port(machine: Machine, name: str, number: int) -> RdmaPort:
    place = f"{BASE}/{name}/ports/{number}"
    rate = re.match(r"([\d.]+) Gb/sec(?: \((\d+)X)?", machine.root.line(f"{place}/rate") or "")
    return RdmaPort(
        number=number,
        state=_word(machine.root.line(f"{place}/state")),
        physical_state=_word(machine.root.line(f"{place}/phys_state")),
        rate_gbit_per_s=float(rate[1]) if rate else None,
        width=int(rate[2]) if rate and rate[2] else None,
        link_layer=machine.root.line(f"{place}/link_layer") or None,
        gids=_gids(machine, place),
    )


def _word(line: str | None) -> str | None:
    """`ACTIVE` of `4: ACTIVE`."""
    return line.rpartition(":")[2].strip() or None if line else None


def _gids(machine: Machine, place: str) -> tuple[Gid, ...]:
    entries = []
    for index in range(GIDS_MOST):
        gid = machine.root.line(f"{place}/gids/{index}")
        if gid is None:
            break
        if gid.strip("0:"):
            kind = machine.root.line(f"{place}/gid_attrs/types/{index}")
            interface = machine.root.line(f"{place}/gid_attrs/ndevs/{index}")
            entries.append(Gid(index, gid, kind or None, interface or None))
    return tuple(entries)


def _counters(machine: Machine, name: str) -> dict[int, dict[str, int]]:
    counters: dict[int, dict[str, int]] = {}
    for number in machine.root.names(f"{BASE}/{name}/ports"):
        values = {c: machine.root.number(f"{BASE}/{name}/ports/{number}/{c}") for c in COUNTERS}
        if number.isdecimal():
            counters[int(number)] = {c.rpartition("/")[2]: v for c, v in values.items() if v is not None}
    return counters


def _grown(machine: Machine, device: RdmaDevice, before: dict[int, dict[str, int]]) -> RdmaDevice:
    after = _counters(machine, device.name)
    ports = []
    for port in device.ports:
        old, new = before.get(port.number, {}), after.get(port.number, {})
        growth = {name: new[name] - old[name] for name in new if name in old and new[name] > old[name]}
        ports.append(replace(port, errors={name: v for name, v in new.items() if v}, growth=growth))
    return replace(device, ports=tuple(ports))


def _is_found(machine: Machine, library: str) -> bool:
    """Whether the loader would find a library: on LD_LIBRARY_PATH, in the usual folders, or in its cache."""
    folders = [
        *machine.environ.get("LD_LIBRARY_PATH", "").split(":"),
        *(
            f"{usr}{lib}"
            for usr in ("", "/usr")
            for lib in ("/lib", "/lib64", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu")
        ),
    ]
    if any(folder and machine.root.exists(f"{folder}/{library}") for folder in folders):
        return True
    try:
        return library in machine.root.text("/etc/ld.so.cache")
    except OSError:
        return False


def _has_dma_buf(machine: Machine) -> bool | None:
    """A kernel from 5.12 on and NVIDIA's open kernel module; None without that driver."""
    driver = machine.root.line("/proc/driver/nvidia/version")
    kernel = re.match(r"(\d+)\.(\d+)", machine.root.line("/proc/sys/kernel/osrelease") or "")
    if driver is None or kernel is None:
        return None
    return "Open Kernel Module" in driver and (int(kernel[1]), int(kernel[2])) >= DMA_BUF_KERNEL


def _plugin_name(machine: Machine) -> str | None:
    """The file that NCCL looks for, None if it is configured to look for none."""
    given = machine.environ.get("NCCL_NET_PLUGIN", "")
    if given == "none":
        return None
    return given if given.endswith(".so") or "/" in given else f"libnccl-net-{given}.so" if given else PLUGIN


def _plugin(machine: Machine) -> str | None:
    """The first network plugin on LD_LIBRARY_PATH under the name that NCCL looks for."""
    name = _plugin_name(machine)
    folders = [folder for folder in machine.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if name is None:
        return None
    return next((f"{folder}/{name}" for folder in folders if machine.root.exists(f"{folder}/{name}")), None)


def _has_plugin(machine: Machine) -> bool | None:
    name = _plugin_name(machine)
    if name is None:
        return None
    return machine.root.exists(name) if "/" in name else _is_found(machine, name)
