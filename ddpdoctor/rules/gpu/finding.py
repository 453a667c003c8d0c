"""A finding about one GPU."""

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
    """The finding about `field` of one device; the evidence shows the value as NVML reported it."""
    return Finding(
        message,
        (Evidence(f"gpu.devices[{device.index}].{field}", device.says(field), expected),),
        fix_command=fix_command,
        where=Where(gpu=device.index),
        severity=severity,
    )
