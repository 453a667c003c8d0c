"""GPU029 to GPU034: a GPU whose clocks are held down, and by whom. A reason counts when it stood in two samples of three."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ddpdoctor.facts.device import Device
from ddpdoctor.facts.gaps import unanswered
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.gpu.finding import at

POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
PEERS_SHARE = 0.9
"""Below this share of its neighbours' clock under load a GPU stands out."""


def _held(gpu: Gpu, reason: int, *, but_not: int = 0, counters: tuple[str, ...] = ()) -> Iterator[Device]:
    """The devices that a reason holds down in two samples of three, or whose counter of that reason grew between them."""
    known = [d for d, _ in gpu.each("clock_event_reasons") if d.lasting(reason) is not None]
    if not known:
        unanswered("the clocks were not looked at twice")
    yield from (
        d for d in known if (d.lasting(reason) or any(d.grown(name) for name in counters)) and not d.lasting(but_not)
    )


@cause("GPU029", "hw-thermal-slowdown", Severity.WARNING)
def hw_thermal_slowdown(gpu: Gpu) -> Iterator[Finding]:
    """The hardware slows a GPU down because it is too hot.

    ## Why it matters
    All ranks wait for this one in every step, and no log speaks of temperature.

    ## Fix
    Check fans, airflow and dust, then the card.

    ## Source
    nvmlDeviceGetCurrentClocksEventReasons, bit 0x40 in two samples of three; NVML field 270 (driver 580 and later) that grows.
    """
    for device in _held(gpu, HW_THERMAL, counters=("heat_by_hardware_ns",)):
        heat = "" if device.temperature_celsius is None else f" at {device.temperature_celsius} °C"
        text = f"GPU {device.index} is slowed down by heat{heat} ({_clock(device)}); expected no thermal slowdown"
        yield at(device, "clock_event_reasons", text, "no bit 0x40")


@cause("GPU030", "hw-power-brake", Severity.WARNING)
def hw_power_brake(gpu: Gpu) -> Iterator[Finding]:
    """The power brake of the chassis slows a GPU down.

    ## Why it matters
    The chassis asks for it: a power supply has failed, or its power is capped. Every rank waits for this GPU.

    ## Fix
    Check the power supplies and the power settings of the chassis.

    ## Source
    nvmlDeviceGetCurrentClocksEventReasons, bit 0x80 in two samples of three; NVML field 271 (driver 580 and later) that grows.
    """
    for device in _held(gpu, POWER_BRAKE, counters=("power_brake_ns",)):
        text = f"GPU {device.index} is slowed down by the power brake ({_clock(device)}); expected no such signal"
        yield at(device, "clock_event_reasons", text, "no bit 0x80")


@cause("GPU031", "hw-slowdown", Severity.WARNING)
def hw_slowdown(gpu: Gpu) -> Iterator[Finding]:
    """The hardware slows a GPU down and does not say why.

    ## Why it matters
    The clocks are cut to half or less, and the whole job runs at this GPU's pace.

    ## Fix
    Check power and temperature; take the node out when it stays.

    ## Source
    nvmlDeviceGetCurrentClocksEventReasons, bit 8 without 0x40 and 0x80, in two samples of three, under load: it may appear for
    a moment when the clocks change.
    """
    for device in _held(gpu, HW_SLOWDOWN, but_not=HW_THERMAL | POWER_BRAKE):
        if device.is_loaded:
            text = (
                f"GPU {device.index} is slowed down by its hardware ({_clock(device)}); expected full clocks under load"
            )
            yield at(device, "clock_event_reasons", text, "no bit 8")


@cause("GPU032", "sw-thermal-slowdown", Severity.WARNING)
def sw_thermal_slowdown(gpu: Gpu) -> Iterator[Finding]:
    """The driver slows a GPU down because of its temperature.

    ## Why it matters
    The driver lowers the clocks before the hardware must. One warm GPU sets the pace of the job.

    ## Fix
    Improve the cooling; compare with the neighbours.

    ## Source
    nvmlDeviceGetCurrentClocksEventReasons, bit 0x20 in two samples of three; NVML field 269 (driver 580 and later) or
    nvmlDeviceGetViolationStatus, thermal, that grows.
    """
    for device in _held(gpu, SW_THERMAL, but_not=HW_THERMAL, counters=("heat_by_driver_ns", "thermal_slowdown_ns")):
        text = f"the driver slows GPU {device.index} down because of its temperature ({_clock(device)}); expected full clocks"
        yield at(device, "clock_event_reasons", text, "no bit 0x20")


@cause("GPU033", "power-cap-active", Severity.NOTE, kind="noise")
def power_cap_active(gpu: Gpu) -> Iterator[Finding]:
    """A GPU runs at its power cap under load.

    ## Why it matters
    That is how a fully loaded GPU works; it matters only where the cap itself is low.

    ## Fix
    Nothing, unless GPU036 says that the limit is below the default.

    ## Source
    nvmlDeviceGetCurrentClocksEventReasons, bit 4 in two samples of three, under load.
    """
    capped = [d for d in _held(gpu, POWER_CAP) if d.is_loaded]
    if capped:
        indices = ", ".join(str(d.index) for d in capped)
        yield at(capped[0], "clock_event_reasons", f"GPU {indices} runs at its power cap under load, as is normal", "")


@cause("GPU034", "clocks-locked", Severity.WARNING)
def clocks_locked(gpu: Gpu) -> Iterator[Finding]:
    """The clocks of a GPU are set below those of its neighbours, or below their default.

    ## Why it matters
    Often left over from a benchmark. Every rank waits for this GPU.

    ## Fix
    Give the clocks back to the driver.

    ## Source
    nvmlDeviceGetApplicationsClock below nvmlDeviceGetDefaultApplicationsClock (which itself may lie below the maximum), or,
    under load and with no reason given, an SM clock below 90 % of the neighbours' median.
    """
    for device, clock in gpu.each("sm_clock_mhz"):
        usual = device.app_clock_default_mhz
        command = f"nvidia-smi -i {device.index} -rac; nvidia-smi -i {device.index} -rgc"
        if device.app_clock_mhz is not None and usual is not None and device.app_clock_mhz < usual:
            text = f"the application clock of GPU {device.index} is {device.app_clock_mhz} MHz; expected {usual} MHz"
            yield at(device, "app_clock_mhz", text, str(usual), fix_command=command)
            continue
        peers = _peers_clock(gpu, device)
        if peers is not None and clock < PEERS_SHARE * peers:
            text = f"GPU {device.index} runs at {clock} MHz under load and its neighbours at {peers:.0f} MHz"
            yield at(device, "sm_clock_mhz", f"{text}; expected the same", f"{peers:.0f}", fix_command=command)


def _peers_clock(gpu: Gpu, device: Device) -> float | None:
    """The median clock of at least two loaded neighbours of the same model; None where this GPU has a reason, or no load."""
    reasons = POWER_CAP | HW_SLOWDOWN | SW_THERMAL | HW_THERMAL | POWER_BRAKE
    if not device.is_loaded or (device.clock_event_reasons or 0) & reasons:
        return None
    clocks = [
        d.sm_clock_mhz
        for d in gpu.answering()
        if d is not device and d.name == device.name and d.is_loaded and d.sm_clock_mhz is not None
    ]
    return median(clocks) if len(clocks) > 1 else None


def _clock(device: Device) -> str:
    if device.sm_clock_mhz is None:
        return "clock not known"
    most = "" if device.sm_clock_max_mhz is None else f" of {device.sm_clock_max_mhz}"
    return f"{device.sm_clock_mhz}{most} MHz"
