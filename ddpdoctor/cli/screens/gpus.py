"""`ddpdoctor gpus`: the driver, the effect of CUDA_VISIBLE_DEVICES, one row per GPU."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ddpdoctor.cli.screens import draw_all
from ddpdoctor.cli.screens.gpu_health import health, is_untold
from ddpdoctor.facts.device import Device, absence
from ddpdoctor.facts.gpu import Gpu, PciGpu
from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.visibility import Visibility, visible
from ddpdoctor.facts.xids import action, age
from ddpdoctor.wording import counted

__all__ = ["draw"]

NARROW = 70
XIDS_SHOWN = 5


def draw(facts: Facts, *, width: int, colour: bool) -> str:
    """The GPUs of these facts."""
    gpu = facts.gpu
    if gpu is None:
        reason = next((g.reason for g in facts.gaps if g.path == "gpu"), "not collected")
        return draw_all([Text(f"GPUs: {reason}")], width=width, colour=colour)
    environ = facts.environ
    seen = visible(environ.variables if environ else {}, gpu)
    ranks = (environ.local_world_size, environ.local_rank, seen.count) if environ else (None, None, seen.count)
    if gpu.is_snapshot and environ is None:
        return draw_all(_of_files(gpu), width=width, colour=colour)
    pieces: list[RenderableType] = [Text(line) for line in (*_head(gpu, seen), *_xids(gpu))]
    if gpu.devices:
        pieces.append(_table(gpu, seen, width, ranks))
        if width >= NARROW and any(d.error is None for d in gpu.devices):
            pieces += [Text(""), health(gpu.devices)]
        if not seen.order_known:
            why = "different GPU models, numbered by CUDA with the fastest first; CUDA_DEVICE_ORDER=PCI_BUS_ID fixes the order"
            if any(d.mig_mode for d in gpu.devices):
                why = "GPUs that MIG divides: a process gets the one instance that CUDA_VISIBLE_DEVICES=MIG-… names"
            pieces.append(Text(f"?: {why}"))
    return draw_all(pieces, width=width, colour=colour)


def _of_files(gpu: Gpu) -> list[RenderableType]:
    """What files show about GPUs; the variables of no process are known, so nothing is said about CUDA and ranks."""
    pieces: list[RenderableType] = [Text(line) for line in _driver(gpu)]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    rows = [_of_device(device) for device in gpu.devices]
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if any(row[name] for row in rows)]
    if len(names) < 2:
        about = f"{counted(len(rows), 'GPU')}; the files show no more about them" if rows else "GPUs: none in the files"
        return [*pieces, Text(about)]
    for name in names:
        table.add_column(name, overflow="fold", no_wrap=name in ("GPU", "bus id", "UUID"))
    for row in rows:
        table.add_row(*(row[name] or "?" for name in names))
    pieces.append(table)
    shown = tuple(device for device in gpu.devices if device.error is None)
    if any(not is_untold(device) for device in shown):
        pieces += [Text(""), health(shown, is_of_files=True)]
    return [*pieces, Text("?: not in the files")]


def _of_device(device: Device) -> dict[str, str]:
    """The cells of one GPU by the name of their column; "" for what no file shows."""
    return {
        "GPU": str(device.index),
        "node": "" if device.minor is None else f"nvidia{device.minor}",
        "name": (device.name or "").removeprefix("NVIDIA "),
        "bus id": device.bus_id or "",
        "UUID": (device.uuid or "")[:12],
        "state": "" if is_untold(device) else _state(device),
    }


def _xids(gpu: Gpu) -> list[str]:
    """The latest faults that the driver logged, or why none are known."""
    gap = gpu.gap("xids")
    if gpu.xids is None:
        return [f"driver's faults: {gap.reason}"] if gap is not None and gpu.devices else []
    lines = []
    for xid in gpu.xids[-XIDS_SHOWN:]:
        device = gpu.at(xid.bus_id)
        place = f"GPU {device.index}" if device is not None else xid.bus_id
        word = "SXid" if xid.is_switch else "Xid"
        ago = "some time" if xid.age_seconds is None else age(xid.age_seconds)
        boot = ", before the machine was started" if xid.restarts else ""
        lines.append(f"{word} {xid.code} on {place}, {ago} ago{boot}: {action(xid)}")
    return lines


def _driver(gpu: Gpu) -> list[str]:
    if gpu.driver_version is None:
        return []
    cuda = f", CUDA up to {gpu.driver_cuda // 1000}.{gpu.driver_cuda % 1000 // 10}" if gpu.driver_cuda else ""
    return [f"driver {gpu.driver_version}{cuda}"]


def _head(gpu: Gpu, seen: Visibility) -> list[str]:
    lines = _driver(gpu)
    racks = {(d.chassis_serial, d.chassis_slot, d.chassis_tray) for d in gpu.devices if d.chassis_serial}
    lines += [f"rack: chassis {serial}, slot {slot}, tray {tray}" for serial, slot, tray in sorted(racks)]
    gap = gpu.gap("nvml") or gpu.gap("devices")
    if gap is not None:
        lines.append(f"NVIDIA: {gap.reason}")
    lines += [f"NVIDIA GPU {p.device} at {p.bus_id}, driver {p.driver or 'none'}" for p in _unlisted(gpu)]
    if gpu.devices or seen.value is not None:
        lines.append(_visibility(gpu, seen))
    lines += [f"{name}: not judged by ddpdoctor" for name in gpu.other_accelerators]
    return lines


def _unlisted(gpu: Gpu) -> list[PciGpu]:
    return [] if gpu.devices else [p for p in gpu.pci if p.is_nvidia]


def _visibility(gpu: Gpu, seen: Visibility) -> str:
    count = f"{seen.count} of {len(gpu.devices)} GPUs visible"
    if seen.value is None:
        return f"CUDA_VISIBLE_DEVICES is not set: {count}"
    if not seen.value.strip():
        return f'CUDA_VISIBLE_DEVICES="" hides every GPU: {count}'
    if seen.dropped and seen.stopped_at is not None:
        entry = seen.stopped_at or '""'
        return f"CUDA_VISIBLE_DEVICES={seen.value}: the list ends at {entry} ({seen.why}): {count}"
    return f"CUDA_VISIBLE_DEVICES={seen.value}: {count}"


def _table(gpu: Gpu, seen: Visibility, width: int, ranks: tuple[int | None, int | None, int]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    wide = width >= NARROW
    names = ("rank", "node", "name", "bus id", "UUID") if wide else ("name",)
    for name in ("GPU", "CUDA", *names, "state"):
        table.add_column(name, overflow="fold", no_wrap=name in ("GPU", "CUDA", "rank", "bus id", "UUID"))
    for device in gpu.devices:
        ordinal = _ordinal(device, seen)
        name = device.says("name").removeprefix("NVIDIA ") if device.error is None else "-"
        state = _state(device)
        if not wide:
            table.add_row(str(device.index), ordinal, name, state)
            continue
        minor = device.says("minor") if device.minor is None else f"nvidia{device.minor}"
        uuid = device.uuid[:12] if device.uuid else device.says("uuid")
        bus_id = device.bus_id or device.says("bus_id")
        row = (name, bus_id, uuid, state)
        if device.error is not None:
            row = ("-", "-", "-", state)
            minor = "-"
        table.add_row(str(device.index), ordinal, _rank(ordinal, ranks), minor, *row)
    return table


def _ordinal(device: Device, seen: Visibility) -> str:
    if device.index not in seen.devices and (seen.order_known or not seen.count):
        return "-"
    at = seen.ordinal(device.index)
    return "?" if at is None else str(at)


def _rank(ordinal: str, ranks: tuple[int | None, int | None, int]) -> str:
    """The local rank that uses this CUDA device: its own number, unless each rank was shown its own GPU only."""
    size, own, shown = ranks
    if not ordinal.isdecimal():
        return ordinal
    if shown == 1 and own is not None and (size or 1) > 1:
        return str(own)
    return ordinal if size is None or int(ordinal) < size else "-"


def _state(device: Device) -> str:
    if device.error is not None:
        return "not given to this container" if device.error == "NO_PERMISSION" else absence(device.error)[0]
    words = []
    if device.mig_mode:
        words.append("MIG")
    if device.compute_mode in (2, 3):
        words.append({2: "prohibited", 3: "exclusive"}[device.compute_mode])
    if device.ecc_uncorrected_volatile:
        words.append(f"ECC errors: {device.ecc_uncorrected_volatile}")
    if device.remap_failure:
        words.append("remap failed")
    if device.remap_pending or device.retired_pages_pending:
        words.append("needs a reset")
    if device.processes:
        words.append(f"processes: {len(device.processes)}")
    if "NO_ANSWER" in device.absent.values():
        words.append("partly unanswered")
    return ", ".join(words) or "-"
