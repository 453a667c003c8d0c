"""Which GPU of a host sits at a bus id: kernels name GPUs by bus id alone, NCCL and collected facts know both."""

from __future__ import annotations

import re

from ddpdoctor.facts.log import GpuAddress, Log
from ddpdoctor.logs.context_patterns import context_lines

__all__ = ["gpu_at"]

_INIT = re.compile(r"nvmlDev (?P<index>\d+) busId (?P<bus>[0-9a-f]{1,12})\b")


def gpu_at(log: Log, host: str | None, bus_id: str) -> int | None:
    """The NVML index of the GPU at `0000:3b:00`; None where no line says it, or lines disagree.

    Without a host only where all that is known is of one host.
    """
    known = {GpuAddress(_short(seat.host), seat.bus_id, seat.index) for seat in (*log.seats, *_of_nccl(log))}
    hosts = {seat.host for seat in known}
    if host is None and len(hosts) != 1:
        return None
    here = {seat for seat in known if host is None or seat.host == _short(host)}
    indices = {seat.index for seat in here if seat.bus_id == bus_id}
    # Containers with one GPU each all call theirs 0.
    is_sure = len(indices) == 1 and len({seat.bus_id for seat in here if seat.index in indices}) == 1
    return indices.pop() if is_sure else None


def _of_nccl(log: Log) -> list[GpuAddress]:
    """What NCCL says of each rank when it starts, at NCCL_DEBUG=INFO: `cudaDev 3 nvmlDev 3 busId 5d000`."""
    found = []
    for line, _ in context_lines(log, "communicator"):
        init = _INIT.search(line.text)
        if init is not None:
            number = int(init["bus"], 16)
            bus_id = f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}"
            found.append(GpuAddress(line.who.host, bus_id, int(init["index"])))
    return found


def _short(host: str | None) -> str | None:
    return None if host is None else host.partition(".")[0]
