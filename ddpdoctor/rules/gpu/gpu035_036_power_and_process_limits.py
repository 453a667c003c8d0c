"""GPU035, GPU036: a GPU close to the heat or the power at which it is slower than its neighbours."""

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
    Under load it will slow down, and all ranks with it.

    ## Fix
    Check the cooling before the job starts.

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
            text = f"GPU {device.index} is {margin} degrees from its temperature limit; expected more than {MARGIN_CELSIUS}"
            yield at(device, "temperature_margin_celsius", text, f"> {MARGIN_CELSIUS}")
        elif margin is None and heat is not None and slowdown is not None and heat >= slowdown - MARGIN_CELSIUS > 0:
            text = f"GPU {device.index} has {heat} °C and slows down at {slowdown} °C"
            yield at(device, "temperature_celsius", f"{text}; expected more distance", f"< {slowdown - MARGIN_CELSIUS}")


@cause("GPU036", "power-limit-low", Severity.WARNING)
def power_limit_low(gpu: Gpu) -> Iterator[Finding]:
    """The power limit of a GPU is below its default, or below that of its neighbours.

    ## Why it matters
    Somebody set it: this GPU is slower than the others, and the job runs at its pace.

    ## Fix
    Set the limit back to the default.

    ## Source
    nvmlDeviceGetEnforcedPowerLimit below 95 % of nvmlDeviceGetPowerManagementDefaultLimit, or of the highest limit among
    the node's GPUs of the same model.
    """
    for device, limit in gpu.each("power_limit_mw"):
        usual, whose = _usual(gpu, device)
        if usual and limit < POWER_SHARE * usual:
            text = (
                f"the power limit of GPU {device.index} is {limit / 1000:.0f} W; expected {usual / 1000:.0f} W, {whose}"
            )
            command = f"nvidia-smi -i {device.index} -pl {usual // 1000}"
            yield at(device, "power_limit_mw", text, str(usual), fix_command=command)


def _usual(gpu: Gpu, device: Device) -> tuple[int, str]:
    if device.power_default_mw:
        return device.power_default_mw, "the default"
    peers = [d.power_limit_mw or 0 for d in gpu.answering() if d.name == device.name]
    return max(peers, default=0), "as its neighbours have"
