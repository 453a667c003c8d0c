"""NVLinks, the fabric, and the paths between two GPUs."""

from __future__ import annotations

import ctypes
from typing import Any

from ddpdoctor.collectors.nvml.query import Asker, field, say

__all__ = ["between", "links", "sample"]

COUNTERS = ("replay_errors", "recovery_errors", "crc_errors")
NVLINK_5 = (("receive_errors", 208), ("recovery_errors", 215))
BIT_ERRORS = (("effective_errors", 219), ("effective_ber", 220), ("symbol_errors", 221), ("symbol_ber", 222))
"""Bit errors before and after correction; 216 to 218, of single lanes, are deprecated."""
STATE = 165


def links(asker: Asker, index: int, handle: Any) -> None:
    """The NVLinks of one GPU and its registration with the fabric."""
    fabric(asker, index, handle)
    field(asker, index, handle, "switch_links", 147)
    count = field(asker, index, handle, "link_count", 91)
    limit = asker.nvml.NVML_NVLINK_MAX_LINKS if count is None else count
    for link in range(limit):
        subject = f"{index} link {link}"
        active, code = _state(asker, index, handle, link)
        if code in ("NOT_SUPPORTED", "INVALID_ARGUMENT", "GPU_IS_LOST"):
            say("!", index, "links", code)
            return
        if code:
            say("!", subject, "is_active", code)
            continue
        say("=", subject, "is_active", bool(active))
        if active:
            asker.ask(subject, "version", "nvmlDeviceGetNvLinkVersion", handle, link)
            asker.ask(subject, "remote", "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            asker.ask(
                subject, "remote_bus_id", "nvmlDeviceGetNvLinkRemotePciInfo", handle, link, pick=lambda p: p.busId
            )
            if field(asker, index, handle, "speed_mb_per_s", 164, link, subject) is None:
                field(asker, index, handle, "speed_mb_per_s", 90, 0, subject)
        if counters(asker, subject, index, handle, link) and active:
            bit_errors(asker, subject, index, handle, link)


def bit_errors(asker: Asker, subject: str, index: int, handle: Any, link: int) -> None:
    """The bit error counts and rates of one link, as far as the driver has them."""
    for fact, number in BIT_ERRORS:
        if field(asker, index, handle, fact, number, link, subject) is None:
            return


def _state(asker: Asker, index: int, handle: Any, link: int) -> tuple[Any, str]:
    """Whether a link is up; from field 165, which NCCL uses from Hopper on, if the older function is not supported."""
    active, code = asker.first(f"{index} link {link}", "nvmlDeviceGetNvLinkState", handle, link)
    if code not in ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "DEPRECATED"):
        return active, code
    values, error = asker.first(f"{index} link {link}", "nvmlDeviceGetFieldValues", handle, [(STATE, link)])
    return (values[0].value.uiVal, "") if not error and not values[0].nvmlReturn else (None, code)


def counters(asker: Asker, subject: str, index: int, handle: Any, link: int) -> bool:
    """The error counters of one link; whether it reports them. NVLink 5 has its own field numbers for them."""
    values = [
        asker.ask(subject, fact, "nvmlDeviceGetNvLinkErrorCounter", handle, link, number)
        for number, fact in enumerate(COUNTERS)
    ]
    if values[0] is None:
        values = [field(asker, index, handle, fact, number, link, subject) for fact, number in NVLINK_5]
    return None not in values


def sample(asker: Asker, index: int, handle: Any) -> None:
    """The second sample of the error counters of links that report them."""
    count = field(asker, index, handle, "link_count", 91)
    for link in range(count or 0):
        if not counters(asker, f"{index} link {link} later", index, handle, link):
            return


def fabric(asker: Asker, index: int, handle: Any) -> None:
    """The fabric registration, in the newest structure that both pynvml and the driver support."""
    for name, version in (
        ("c_nvmlGpuFabricInfo_v3_t", 3),
        ("c_nvmlGpuFabricInfo_v2_t", 2),
        ("c_nvmlGpuFabricInfo_t", 0),
    ):
        kind = getattr(asker.nvml, name, None)
        if kind is None:
            continue
        info = kind()
        function = "nvmlDeviceGetGpuFabricInfoV" if version else "nvmlDeviceGetGpuFabricInfo"
        if version:
            info.version = ctypes.sizeof(info) | version << 24
        _, code = asker.first(index, function, handle, ctypes.byref(info))
        if code not in ("FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH"):
            break
    else:
        code = "FUNCTION_NOT_FOUND"
    if code:
        say("!", index, "fabric", code)
        return
    known = {
        "state": info.state,
        "status": info.status,
        "clique": info.cliqueId,
        "cluster_uuid": bytes(info.clusterUuid).hex(),
        "health_mask": getattr(info, "healthMask", None),
        "health_summary": getattr(info, "healthSummary", None),
    }
    say("=", index, "fabric", known)


def between(asker: Asker, handles: dict[int, Any]) -> None:
    """Every pair: the PCIe level, and peer access in both directions (0 read, 1 write, 2 NVLink); atomics and PCI in one.

    The numbers are written out: pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple by mistake.
    """
    for a in handles:
        for b in (b for b in handles if b > a):
            pair = f"{a}-{b}"
            asker.ask(pair, "level", "nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b])
            for number, fact in enumerate(("read", "write", "nvlink")):
                asker.ask(pair, fact, "nvmlDeviceGetP2PStatus", handles[a], handles[b], number)
                asker.ask(pair, f"{fact}_back", "nvmlDeviceGetP2PStatus", handles[b], handles[a], number)
            for number, fact in ((3, "atomics"), (4, "pci")):
                asker.ask(pair, fact, "nvmlDeviceGetP2PStatus", handles[a], handles[b], number)
