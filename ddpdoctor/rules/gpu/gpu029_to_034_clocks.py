"""GPU029 to GPU034: a GPU whose clocks are reduced, and why. A reason counts if it was set in two of three samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.device import Device
from ddpdoctor.facts.gaps import unanswered
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.findings import Certainty, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.gpu.finding import at

POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
PEERS_SHARE = 0.9
"""A GPU below this share of the other GPUs' clock under load is reported."""


ENOUGH_ONCE = HW_THERMAL | POWER_BRAKE


def _held(gpu: Gpu, reason: int, *, but_not: int = 0, counters: tuple[str, ...] = ()) -> Iterator[Device]:
    """The devices slowed down by a reason in two of three samples, or whose counter of that reason grew between them.

    A file of nvidia-smi is one sample: it is enough for heat and the power brake, which a change of the clocks does not set.
    """
    reported = [d for d, _ in gpu.each("clock_event_reasons")]
    known = [d for d in reported if d.lasting(reason) is not None]
    enough = reason & ENOUGH_ONCE if gpu.is_snapshot else 0
    once = [d for d in reported if d.lasting(reason) is None and (d.clock_event_reasons or 0) & enough]
    yield from once
    if not known and not once:
        unanswered("the clocks were not sampled twice")
    yield from (
        d for d in known if (d.lasting(reason) or any(d.grown(name) for name in counters)) and not d.lasting(but_not)
    )


@cause("GPU029", "hw-thermal-slowdown", Severity.WARNING)
def hw_thermal_slowdown(gpu: Gpu) -> Iterator[Finding]:
    """The hardware slows a GPU down because it is too hot.

    ## Why it matters
    All ranks wait for this GPU in every step, and no log mentions the temperature.

    ## Fix
    Check the fans, airflow and dust of that node, then the card.

    ## Example
    ddpdoctor's message:

        GPU 4 is slowed down by heat at 88 °C (705 of 1980 MHz)

    On that node, while the job runs:

        nvidia-smi -q -d TEMPERATURE,PERFORMANCE -i 4

    ## Source
    nvmlDeviceGetCurrentClocksEventReasons, bit 0x40 in two of three samples; NVML field 270 (driver 580 and later) that grows.
    """
    for device in _held(gpu, HW_THERMAL, counters=("heat_by_hardware_ns",)):
        heat = "" if device.temperature_celsius is None else f" at {device.temperature_celsius} °C"
        text = f"GPU {device.index} is slowed down by heat{heat} ({_clock(device)})"
        yield _likely(device, HW_THERMAL, at(device, "clock_event_reasons", text, "no bit 0x40"))


@cause("GPU030", "hw-power-brake", Severity.WARNING)
def hw_power_brake(gpu: Gpu) -> Iterator[Finding]:
    """The power brake of the chassis slows a GPU down.

    ## Why it matters
    The chassis requests it because a power supply has failed or its power is capped. Every rank waits for this GPU.

    ## Fix
    Check the power supplies and the power settings of the chassis.

    ## Example
    ddpdoctor's message:

        GPU 2 is slowed down by the power brake (345 of 1980 MHz)

    On that node:

        nvidia-smi -q -d PERFORMANCE -i 2
        ipmitool sdr type "Power Supply"

    ## Source
    nvmlDeviceGetCurrentClocksEventReasons, bit 0x80 in two of three samples; NVML field 271 (driver 580 and later) that grows.
    """
    for device in _held(gpu, POWER_BRAKE, counters=("power_brake_ns",)):
        text = f"GPU {device.index} is slowed down by the power brake ({_clock(device)})"
        yield _likely(device, POWER_BRAKE, at(device, "clock_event_reasons", text, "no bit 0x80"))


@cause("GPU031", "hw-slowdown", Severity.WARNING)
def hw_slowdown(gpu: Gpu) -> Iterator[Finding]:
    """The hardware slows a GPU down and reports no reason.

    ## Why it matters
    The clocks drop to half or less, and the whole job runs at the speed of this GPU.

    ## Fix
    Check the power supply and the temperature of the node; if the slowdown stays, take the node out of service.

    ## Example
    ddpdoctor's message:

        GPU 6 is slowed down by its hardware (540 of 1980 MHz)

    On that node, while the job runs:

        nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE -i 6

    ## Source
    nvmlDeviceGetCurrentClocksEventReasons, bit 8 without 0x40 and 0x80, in two of three samples, under load: it may appear for
    a moment when the clocks change.
    """
    for device in _held(gpu, HW_SLOWDOWN, but_not=HW_THERMAL | POWER_BRAKE):
        if device.is_loaded:
            text = f"GPU {device.index} is slowed down by its hardware ({_clock(device)})"
            yield at(device, "clock_event_reasons", text, "no bit 8")


@cause("GPU032", "sw-thermal-slowdown", Severity.WARNING)
def sw_thermal_slowdown(gpu: Gpu) -> Iterator[Finding]:
    """The driver slows a GPU down because of its temperature.

    ## Why it matters
    The driver lowers the clocks before the hardware has to. One hot GPU slows the whole job down.

    ## Fix
    Improve the cooling of that node; compare the temperature with the other GPUs (`nvidia-smi -q -d TEMPERATURE`).

    ## Example
    ddpdoctor's message:

        GPU 3 is slowed down by the driver because of its temperature (1350 of 1980 MHz)

    On that node, while the job runs:

        nvidia-smi --query-gpu=index,temperature.gpu,clocks.sm --format=csv

    ## Source
    nvmlDeviceGetCurrentClocksEventReasons, bit 0x20 in two of three samples; NVML field 269 (driver 580 and later) or
    nvmlDeviceGetViolationStatus, thermal, that grows.
    """
    for device in _held(gpu, SW_THERMAL, but_not=HW_THERMAL, counters=("heat_by_driver_ns", "thermal_slowdown_ns")):
        text = f"GPU {device.index} is slowed down by the driver because of its temperature ({_clock(device)})"
        yield at(device, "clock_event_reasons", text, "no bit 0x20")


@cause("GPU033", "power-cap-active", Severity.NOTE, kind="noise")
def power_cap_active(gpu: Gpu) -> Iterator[Finding]:
    """A GPU runs at its power cap under load.

    ## Why it matters
    This is normal for a fully loaded GPU. It matters only if the cap itself is low.

    ## Fix
    Do nothing, unless GPU036 reports that the power limit is below its default.

    ## Example
    ddpdoctor's message:

        GPU 0, 1: power cap reached under load; this is normal

    To compare the limit with its default:

        nvidia-smi --query-gpu=index,power.limit,power.default_limit --format=csv

    ## Source
    nvmlDeviceGetCurrentClocksEventReasons, bit 4 in two of three samples, under load.
    """
    capped = [d for d in _held(gpu, POWER_CAP) if d.is_loaded]
    if capped:
        indices = ", ".join(str(d.index) for d in capped)
        yield at(capped[0], "clock_event_reasons", f"GPU {indices}: power cap reached under load; this is normal", "")


@cause("GPU034", "clocks-locked", Severity.WARNING)
def clocks_locked(gpu: Gpu) -> Iterator[Finding]:
    """A GPU's clocks are set below its default or below the other GPUs'.

    ## Why it matters
    The setting is often left over from a benchmark. Every rank waits for this GPU.

    ## Fix
    Reset the application clocks and the locked clocks, as root on that node.

    ## Example
    ddpdoctor's message:

        GPU 0 has its application clock set to 1200 MHz; the default is 1980 MHz

    On that node, as root:

        nvidia-smi -i 0 -rac
        nvidia-smi -i 0 -rgc

    ## Source
    nvmlDeviceGetApplicationsClock below nvmlDeviceGetDefaultApplicationsClock (which itself may be below the maximum), or,
    under load and without a reported reason, an SM clock below 90 % of the median of the other GPUs.
    """
    for device, clock in gpu.each("sm_clock_mhz"):
        usual = device.app_clock_default_mhz
        command = f"nvidia-smi -i {device.index} -rac; nvidia-smi -i {device.index} -rgc"
        if device.app_clock_mhz is not None and usual is not None and device.app_clock_mhz < usual:
            text = f"GPU {device.index} has its application clock set to {device.app_clock_mhz} MHz; the default is {usual} MHz"
            yield at(device, "app_clock_mhz", text, str(usual), fix_command=command)
            continue
        peers = _peers_clock(gpu, device)
        if peers is not None and clock < PEERS_SHARE * peers:
            text = f"GPU {device.index} runs at {clock} MHz under load; the other GPUs run at {peers:.0f} MHz"
            yield at(device, "sm_clock_mhz", text, f"{peers:.0f}", fix_command=command)


def _likely(device: Device, reason: int, finding: Finding) -> Finding:
    """The finding, which is only likely if the clocks were seen once."""
    return finding if device.lasting(reason) is not None else replace(finding, certainty=Certainty.LIKELY)


def _peers_clock(gpu: Gpu, device: Device) -> float | None:
    """The median clock of at least two other loaded GPUs of the same model; None if this GPU has a reason or no load."""
    from statistics import median  # imports fractions and decimal

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
        return "clock unknown"
    most = "" if device.sm_clock_max_mhz is None else f" of {device.sm_clock_max_mhz}"
    return f"{device.sm_clock_mhz}{most} MHz"
