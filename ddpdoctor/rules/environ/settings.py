"""How the rules about NCCL's, torch's, and CUDA's settings read a value and write a finding about it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ, shorten
from ddpdoctor.facts.settings_table import read_number
from ddpdoctor.findings import Evidence, Finding, Severity

if TYPE_CHECKING:
    from ddpdoctor.facts.net import Net

__all__ = ["CVD", "about", "active_ports", "line", "number", "taking_away", "uses_plugin", "value"]

CVD = "CUDA_VISIBLE_DEVICES"
_PLUGIN_NAMES = ("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "NCCL_GIB_", "NCCL_SHIMNET_", "OFI_NCCL_", "FI_")
_BUILT_IN = ("ib", "socket")


def value(environ: Environ, name: str) -> str | None:
    """The value that NCCL uses, from the environment or its files; None if it is not set or empty."""
    return environ.settings.get(name) or None


def number(environ: Environ, name: str) -> int | None:
    """The value as NCCL parses a number, None if it is not set or empty."""
    text = value(environ, name)
    return None if text is None else read_number(text)[0]


def line(environ: Environ, name: str) -> str:
    """`NAME=value`, with the file that sets it if one does; "NAME is not set and" if nothing sets it."""
    file = environ.source(name)[1]
    shown = name[:60] if name.isidentifier() else repr(name[:60])
    if name not in environ.settings:
        return f"{shown} is not set and"
    return f"{shown}={shorten(environ.settings.get(name, ''))}" + (f" in {shorten(file)}" if file else "")


def taking_away(environ: Environ, name: str) -> str | None:
    """The command that removes a setting; None for a name or a file that would need quoting in a shell."""
    file = environ.source(name)[1]
    command = f"unset {name}" if file is None else f"sed -i '/^{name}=/d' {file}"
    return command if re.fullmatch(r"[\w /.^='-]+", command) and name.isidentifier() else None


def about(
    environ: Environ,
    name: str,
    wrong: str,
    expected: str,
    *,
    severity: Severity | None = None,
    command: str | None = None,
) -> Finding:
    """A finding about one setting: `NAME=value wrong`. Without a `command`, the command that removes the setting."""
    path, file = environ.source(name)
    command = command or taking_away(environ, name)
    return Finding(
        f"{line(environ, name)} {wrong}",
        (
            Evidence(
                path, shorten(environ.settings.get(name, "not set")) + (f" ({shorten(file)})" if file else ""), expected
            ),
        ),
        fix_command=command,
        severity=severity,
    )


def active_ports(environ: Environ, net: Net | None) -> int | None:
    """How many RDMA ports of this node NCCL's own transport would use if allowed; None if they were not examined."""
    if net is None or net.rdma is None:
        return None
    return sum(not device.needs_plugin for device, _ in net.rdma.used(value(environ, "NCCL_IB_HCA")))


def uses_plugin(environ: Environ) -> bool:
    """Whether a network plugin (AWS, Google, ...) carries the traffic: its vendor prescribes its own settings."""
    plugin = (value(environ, "NCCL_NET_PLUGIN") or "none").lower()
    if plugin != "none" or (value(environ, "NCCL_NET") or "ib").lower() not in _BUILT_IN:
        return True
    return any(name.startswith(_PLUGIN_NAMES) for name in environ.settings)
