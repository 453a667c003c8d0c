"""What the hardware of this host offers where NCCL passes data through host memory; asked only then."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ddpdoctor.system.process import LateError, run
from ddpdoctor.system.selfexec import command

__all__ = ["TransportCapabilities", "read_capabilities"]

THROUGH_HOST_MEMORY = ("SHM", "NET/Socket")
CHOOSING = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_HOSTID")
"""The variables that choose NCCL's transports."""
SECONDS = 6.0


@dataclass(frozen=True)
class TransportCapabilities:
    """`ways` from GPU to GPU by uuid; `network` is an RDMA adapter that NCCL could use, "" without one."""

    ways: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    network: str = ""
    settings: dict[str, str] = field(default_factory=dict)

    def of(self, gpu_uuid: str | None) -> dict[str, str]:
        """What one rank has."""
        return {**self.ways.get(gpu_uuid or "", {}), **({"network": self.network} if self.network else {})}


def read_capabilities(transports: Iterable[str]) -> TransportCapabilities:
    """What this host has beside these transports; nothing where none of them passes through host memory, or nobody answers."""
    if not any(each in THROUGH_HOST_MEMORY for each in transports):
        return TransportCapabilities()
    try:
        told = json.loads(run(command("ddpdoctor.collectors.transport_capabilities"), SECONDS).out)
    except (OSError, LateError, ValueError):
        return TransportCapabilities()
    settings = {name: os.environ[name] for name in CHOOSING if os.environ.get(name)}
    return TransportCapabilities(told["ways"], told["network"], settings)
