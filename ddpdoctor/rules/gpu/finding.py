"""A finding at one GPU."""

from __future__ import annotations

from ddpdoctor.facts.device import Device
from ddpdoctor.findings import Evidence, Finding, Severity, Where

__all__ = ["at"]


def at(
    device: Device,
    field: str,
    message: str,
    expected: str,
    *,
    fix_command: str | None = None,
    severity: Severity | None = None,
) -> Finding:
    """What is wrong with `field` of one device; the value seen is shown as the device says it."""
    return Finding(
        message,
        (Evidence(f"gpu.devices[{device.index}].{field}", device.says(field), expected),),
        fix_command=fix_command,
        where=Where(gpu=device.index),
        severity=severity,
    )
