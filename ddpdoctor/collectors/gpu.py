"""`gpu`: the devices through NVML, the driver through /proc and /sys. AMD and Intel accelerators are only listed."""

from __future__ import annotations

import os
from typing import Any

from ddpdoctor.collectors.cuda_init import cuda
from ddpdoctor.collectors.gpu_processes import describe
from ddpdoctor.collectors.kernel_log import read_xids
from ddpdoctor.collectors.nvml.results import Answers, nvml
from ddpdoctor.facts.codec import FactsError, decode
from ddpdoctor.facts.device import Device
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.gpu import Gpu, PciGpu
from ddpdoctor.system.machine import Machine

__all__ = ["INIT_WORDS", "collect", "short_bus_id", "why_of"]

MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nouveau", "amdgpu", "xe", "i915", "habanalabs")
DISPLAY, ACCELERATOR = "0x03", "0x12"
VGA = "0x0300"
FACTS = tuple(
    n for n in Device.__dataclass_fields__ if n not in ("index", "mig_instances", "between", "later", "absent")
)

INIT_WORDS = {
    "LIBRARY_NOT_FOUND": "libnvidia-ml.so.1 not found",
    "DRIVER_NOT_LOADED": "the NVIDIA kernel driver is not loaded",
    "LIB_RM_VERSION_MISMATCH": "the NVIDIA library and the loaded kernel driver have different versions",
    "NO_PERMISSION": "no permission to use the NVIDIA driver (/dev/nvidiactl)",
}


def collect(machine: Machine) -> Gpu:
    """The GPUs and the driver, from NVML, /proc/driver/nvidia, /dev and the PCI bus."""
    answers = nvml(machine)
    pci = _pci(machine)
    nodes = tuple(name for name in machine.root.names("/dev") if name.startswith("nvidia"))
    error = answers.absent("node").get("init")
    devices, refused = _devices(machine, answers)
    cuda_error, multicast, silent = cuda(machine) if devices else (None, {}, ())
    xids, unread = read_xids(machine) if devices else (None, ())
    gaps = _gaps(answers, error, is_here=bool(nodes) or any(p.is_nvidia for p in pci))
    return Gpu(
        driver_version=answers.of("node").get("driver_version"),
        driver_cuda=answers.of("node").get("driver_cuda"),
        kernel_driver=_kernel_driver(machine),
        nvml_error=error,
        devices=devices,
        device_nodes=nodes,
        kernel_modules=tuple(name for name in MODULES if machine.root.exists(f"/sys/module/{name}")),
        pci=pci,
        pci_devices=len(machine.root.names("/sys/bus/pci/devices")),
        confidential_computing=answers.of("node").get("confidential_computing"),
        cuda_error=cuda_error,
        multicast=multicast,
        sample_seconds=answers.of("node").get("sample_seconds"),
        xids=xids,
        other_accelerators=_others(machine, pci),
        gaps=(*gaps, *refused, *unread, *silent),
    )


def short_bus_id(bus_id: object) -> str | None:
    """NVML's `00000000:3B:00.0` as sysfs spells it: `0000:3b:00.0`."""
    if not isinstance(bus_id, str) or ":" not in bus_id:
        return None
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def why_of(error: str) -> Why:
    """The kind of gap for an nvmlInit error: without library or driver there is no GPU; other errors are unanswered queries."""
    return Why.NOT_HERE if error in ("LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED") else Why.UNANSWERED


def _gaps(answers: Answers, error: str | None, *, is_here: bool) -> tuple[Gap, ...]:
    """Why there are no devices, or some facts of them are missing."""
    fields = ("devices", "driver_version", "driver_cuda")
    if answers.trouble is not None:
        return tuple(Gap(f"gpu.{name}", answers.trouble) for name in ("nvml", *fields))
    if error is not None:
        reason = INIT_WORDS.get(error, f"nvmlInit failed: {error}")
        if error == "LIBRARY_NOT_FOUND":
            reason = reason if is_here else "no NVIDIA GPU"
        return tuple(Gap(f"gpu.{name}", reason, why_of(error)) for name in fields)
    count = answers.of("node").get("count")
    if count == 0:
        return (Gap("gpu.devices", "no NVIDIA GPU", Why.NOT_HERE),)
    if count is None:
        code = answers.absent("node").get("count", "no answer")
        return (Gap("gpu.devices", f"nvmlDeviceGetCount failed: {code}"),)
    return ()


def _devices(machine: Machine, answers: Answers) -> tuple[tuple[Device, ...], tuple[Gap, ...]]:
    devices, gaps = [], []
    for index in range(answers.of("node").get("count") or 0):
        known, absent = _facts(machine, answers, index)
        try:
            devices.append(decode(Device, {**known, "index": index, "absent": absent}))
        except FactsError as error:
            invalid = [name for name, value in known.items() if not _fits(name, value)]
            valid = {name: value for name, value in known.items() if name not in invalid}
            absent.update(dict.fromkeys(invalid, "WRONG_VALUE"))
            devices.append(decode(Device, {**valid, "index": index, "absent": absent}))
            gaps.append(Gap(f"gpu.devices[{index}]", f"NVML returned an invalid value: {error}"))
    return tuple(devices), tuple(gaps)


def _fits(name: str, value: object) -> bool:
    try:
        decode(Device, {"index": 0, name: value})
    except FactsError:
        return False
    return True


def _facts(machine: Machine, answers: Answers, index: int) -> tuple[dict[str, Any], dict[str, str]]:
    reported, codes = dict(answers.of(str(index))), dict(answers.absent(str(index)))
    reported["bus_id"] = short_bus_id(reported.get("bus_id"))
    if reported.get("cc_major") is not None:
        reported["compute_capability"] = f"{reported['cc_major']}.{reported.get('cc_minor')}"
    elif "cc_major" in codes:
        codes["compute_capability"] = codes["cc_major"]
    numa = machine.root.number(f"/sys/bus/pci/devices/{reported['bus_id']}/numa_node")
    reported["numa_node"] = numa if numa is not None and numa >= 0 else None
    known = {name: reported[name] for name in FACTS if reported.get(name) is not None}
    migs = [answers.of(subject) for subject in answers.facts if subject.startswith(f"{index} mig ")]
    if "processes" in known:
        known["processes"] = [{**process, **describe(machine, process["pid"])} for process in known["processes"]]
    for name in ("between", "later"):
        if answers.of(f"{index} {name}"):
            known[name] = answers.of(f"{index} {name}")
    known["mig_instances"] = [mig for mig in migs if "uuid" in mig]
    absent = {name: codes[name] for name in (*FACTS, "handle") if name in codes}
    if "handle" not in absent:
        missing_code = "NO_ANSWER" if answers.trouble else "NOT_SUPPORTED"
        absent.update({name: missing_code for name in FACTS if name not in known and name not in absent})
    return known, absent


def _kernel_driver(machine: Machine) -> str | None:
    """The version in `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build …`."""
    for word in (machine.root.line("/proc/driver/nvidia/version") or "").split():
        if word.count(".") >= 1 and word.replace(".", "").isdigit():
            return word
    return None


def _pci(machine: Machine) -> tuple[PciGpu, ...]:
    """Displays and processing accelerators of NVIDIA, AMD, Intel and Habana."""
    gpus = []
    base = "/sys/bus/pci/devices"
    for name in machine.root.names(base):
        line = machine.root.line(f"{base}/{name}/class") or ""
        vendor = (machine.root.line(f"{base}/{name}/vendor") or "").removeprefix("0x")
        if not line.startswith((DISPLAY, ACCELERATOR)) or vendor not in ("10de", "1002", "8086", "1da3"):
            continue
        device = (machine.root.line(f"{base}/{name}/device") or "").removeprefix("0x")
        driver = f"{base}/{name}/driver"
        bound = os.path.basename(machine.root.real(driver)) if machine.root.exists(driver) else None
        gpus.append(PciGpu(name, vendor, device, bound))
    return tuple(gpus)


def _others(machine: Machine, pci: tuple[PciGpu, ...]) -> tuple[str, ...]:
    """AMD and Intel accelerators. Integrated graphics of an Intel CPU (VGA class) do not count."""
    base = "/sys/bus/pci/devices"
    words = []
    for p in pci:
        is_vga = (machine.root.line(f"{base}/{p.bus_id}/class") or "").startswith(VGA)
        if p.vendor == "1002":
            words.append(f"AMD GPU {p.device} at {p.bus_id}")
        elif p.vendor in ("8086", "1da3") and not is_vga:
            words.append(f"Intel accelerator {p.device} at {p.bus_id}")
    if not any(w.startswith("AMD") for w in words) and machine.root.exists("/dev/kfd"):
        words.append("AMD GPU (/dev/kfd)")
    return tuple(words)
