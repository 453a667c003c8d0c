"""What was examined, in the words of a summary, from the fields of the facts that rules have read."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["topics_of"]

_TOPICS = (
    (r"gpu\.diagnostics", "DCGM results"),
    (r"gpu\.devices\[\d+\]\.(?:ecc|sram)", "ECC errors"),
    (r"gpu\.devices\[\d+\]\.remap", "row remapping"),
    (r"gpu\.devices\[\d+\]\.retired", "retired pages"),
    (r"gpu\.devices\[\d+\]\.recovery_action", "recovery action"),
    (r"gpu\.devices\[\d+\]\.temperature", "temperature"),
    (r"gpu\.devices\[\d+\]\.(?:clock_event|sm_clock|app_clock|heat|power_brake)", "clocks"),
    (r"gpu\.devices\[\d+\]\.power_(?:limit|default)", "power limit"),
    (r"gpu\.devices\[\d+\]\.pcie", "PCIe link"),
    (r"gpu\.devices\[\d+\]\.compute_mode", "compute mode"),
    (r"gpu\.devices\[\d+\]\.mig", "MIG mode"),
    (r"topo\.gpus\[\d+\]\.links\[", "NVLink"),
    (r"topo\.gpus\[\d+\]\.link_errors\[\d+\]\.recovery", "NVLink recoveries"),
    (r"topo\.gpus\[\d+\]\.fabric", "NVLink fabric"),
    (r"topo\.fabric_log", "fabric manager"),
    (r"topo\.gpus\[\d+\]\.acs", "ACS"),
    (r"topo\.pairs\[\d+\]\.read", "peer access"),
    (r"topo\.pairs\[\d+\]\.level", "paths between GPUs"),
    (r"topo\.nics\[\d+\]\.pcie", "PCIe links of adapters"),
    (r"net\.rdma\.devices\[\d+\]\.ports\[\d+\]\.(?:state|rate)", "RDMA ports"),
    (r"net\.fabric_errors", "fabric errors"),
    (r"net\.interfaces", "interfaces"),
    (r"host\.limits", "limits"),
    (r"host\.scheduler", "state of the node"),
    (r"versions\.torch", "versions"),
    (r"probe\.measurements", "bus bandwidth"),
    (r"probe\.observations", "values"),
)


def topics_of(paths: Iterable[str]) -> tuple[str, ...]:
    """The topics that these paths belong to, in a fixed order."""
    known = "\n".join(sorted(set(paths)))
    return tuple(words for pattern, words in _TOPICS if re.search(rf"^{pattern}", known, re.MULTILINE))
