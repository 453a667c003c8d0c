"""The transports that the hardware of this host supports, collected only if NCCL uses host memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import field

from ddpdoctor.light_dataclass import dataclass
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
        """The capabilities of one rank."""
        return {**self.ways.get(gpu_uuid or "", {}), **({"network": self.network} if self.network else {})}


def read_capabilities(transports: Iterable[str]) -> TransportCapabilities:
    """The capabilities of this host; empty if none of these transports goes through host memory, or if they are unknown."""
    if not any(transport in THROUGH_HOST_MEMORY for transport in transports):
        return TransportCapabilities()
    try:
        content = json.loads(run(command("ddpdoctor.collectors.transport_capabilities"), SECONDS).out)
    except (OSError, LateError, ValueError):
        return TransportCapabilities()
    settings = {name: os.environ[name] for name in CHOOSING if os.environ.get(name)}
    return TransportCapabilities(content["ways"], content["network"], settings)
