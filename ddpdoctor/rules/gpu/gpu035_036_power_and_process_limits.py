"""GPU035, GPU036: a GPU close to its temperature limit, or with a low power limit."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.device import Device
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.gpu.finding import at

MARGIN_CELSIUS = 5
POWER_SHARE = 0.95


@cause("GPU035", "temperature-margin-low", Severity.WARNING)
def temperature_margin_low(gpu: Gpu) -> Iterator[Finding]:
    """A GPU is close to the temperature at which it slows down.

    ## Why it matters
    Under load it will slow down, and all ranks will wait for it.

    ## Fix
    Check the cooling of that node before the job starts.

    ## Example
    ddpdoctor's message:

        GPU 0 is 3 °C below its temperature limit

    On that node:

        nvidia-smi -q -d TEMPERATURE -i 0

    ## Source
    nvmlDeviceGetMarginTemperature (T.Limit: it counts down to 0, and below 0 the slowdown begins) from Ada on; before that
    nvmlDeviceGetTemperature against nvmlDeviceGetTemperatureThreshold, slowdown. 5 degrees.
    """
    list(gpu.each("temperature_celsius"))
    for device in gpu.answering():
        margin, heat, slowdown = (
            device.temperature_margin_celsius,
            device.temperature_celsius,
            device.temperature_slowdown_celsius,
        )
        if margin is not None and margin <= MARGIN_CELSIUS:
            text = f"GPU {device.index} is {margin} °C below its temperature limit"
            yield at(device, "temperature_margin_celsius", text, f"> {MARGIN_CELSIUS}")
        elif margin is None and heat is not None and slowdown is not None and heat >= slowdown - MARGIN_CELSIUS > 0:
            text = f"GPU {device.index} is at {heat} °C and slows down at {slowdown} °C"
            yield at(device, "temperature_celsius", text, f"< {slowdown - MARGIN_CELSIUS}")


@cause("GPU036", "power-limit-low", Severity.WARNING)
def power_limit_low(gpu: Gpu) -> Iterator[Finding]:
    """A GPU's power limit is below its default or below the other GPUs'.

    ## Why it matters
    The limit was lowered: this GPU is slower than the others, and every step waits for it.

    ## Fix
    Restore the default limit, as root on that node.

    ## Example
    ddpdoctor's message:

        GPU 5 has a power limit of 450 W; the default is 700 W

    On that node, as root:

        nvidia-smi -i 5 -pl 700

    ## Source
    nvmlDeviceGetEnforcedPowerLimit below 95 % of nvmlDeviceGetPowerManagementDefaultLimit, or of the highest limit among
    the node's GPUs of the same model.
    """
    for device, limit in gpu.each("power_limit_mw"):
        usual, whose = _usual(gpu, device)
        if usual and limit < POWER_SHARE * usual:
            text = f"GPU {device.index} has a power limit of {limit / 1000:.0f} W; {whose} {usual / 1000:.0f} W"
            command = f"nvidia-smi -i {device.index} -pl {usual // 1000}"
            yield at(device, "power_limit_mw", text, str(usual), fix_command=command)


def _usual(gpu: Gpu, device: Device) -> tuple[int, str]:
    if device.power_default_mw:
        return device.power_default_mw, "the default is"
    peers = [d.power_limit_mw or 0 for d in gpu.answering() if d.name == device.name]
    return max(peers, default=0), "other GPUs have"
