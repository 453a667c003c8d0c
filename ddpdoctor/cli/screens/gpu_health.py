"""The state of each GPU: memory, temperature, power, clocks, PCIe link, memory errors; in words what NVML does not report."""

from __future__ import annotations

from rich.table import Table

from ddpdoctor.facts.device import Device, absence

__all__ = ["health", "is_untold"]

GIB = 1 << 30
UNTOLD = absence("NOT_IN_FILES")[0]
"""What `Device.says` answers for a field that no file shows."""
REASONS = (
    (0x40, "heat"),
    (0x80, "power brake"),
    (0x20, "driver, heat"),
    (0x8, "hardware"),
    (0x4, "power cap"),
    (0x2, "set clocks"),
    (0x1, "idle"),
)
"""The bits of the clock event reasons, worst first."""


def health(devices: tuple[Device, ...], *, is_of_files: bool = False) -> Table:
    """One row per GPU that answers. Columns of which files show nothing are left out; `?` is a cell that no file shows."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    names = ("GPU", "GiB used", "°C", "to limit", "W", "SM MHz", "PCIe", "ECC new", "remapped", "held by")
    rows = [(str(device.index), *_cells(device)) for device in devices if device.error is None]
    shown = [at for at in range(len(names)) if not is_of_files or any(UNTOLD not in row[at] for row in rows)]
    for at in shown:
        table.add_column(names[at], overflow="fold", no_wrap=at == 0)
    for row in rows:
        table.add_row(*("?" if is_of_files and UNTOLD in row[at] else row[at] for at in shown))
    return table


def is_untold(device: Device) -> bool:
    """Whether files show nothing about a GPU but its name and addresses."""
    return device.error is None and all(UNTOLD in cell for cell in _cells(device))


def _cells(device: Device) -> tuple[str, ...]:
    return (
        _memory(device),
        device.says("temperature_celsius"),
        device.says("temperature_margin_celsius"),
        _of(device, "power_usage_mw", "power_limit_mw", 1000),
        _of(device, "sm_clock_mhz", "sm_clock_max_mhz", 1),
        _link(device),
        _both(device, "ecc_corrected_volatile", "ecc_uncorrected_volatile"),
        _both(device, "remap_correctable", "remap_uncorrectable"),
        _reason(device),
    )


def _memory(device: Device) -> str:
    if device.memory_total_bytes is None or device.memory_used_bytes is None:
        return device.says("memory_used_bytes")
    return f"{device.memory_used_bytes / GIB:.1f}/{device.memory_total_bytes / GIB:.0f}"


def _of(device: Device, value: str, most: str, unit: int) -> str:
    now, limit = getattr(device, value), getattr(device, most)
    if now is None:
        return device.says(value)
    return f"{now // unit}" if limit is None else f"{now // unit}/{limit // unit}"


def _both(device: Device, corrected: str, uncorrected: str) -> str:
    """`corrected+uncorrected`."""
    first, second = device.says(corrected), device.says(uncorrected)
    return first if first == second and not first.isdecimal() else f"{first}+{second}"


def _link(device: Device) -> str:
    generation, width = device.says("pcie_generation"), device.says("pcie_width")
    return generation if generation == width and not width.isdecimal() else f"gen{generation} x{width}"


def _reason(device: Device) -> str:
    if device.clock_event_reasons is None:
        return device.says("clock_event_reasons")
    return next((word for bit, word in REASONS if device.clock_event_reasons & bit), "-")
