"""`python -m ddpdoctor.collectors.transport_capabilities`: the best paths between this host's GPUs, and to the network."""

from __future__ import annotations

import json
import sys
from typing import Any

from ddpdoctor.collectors import collect
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.nccl_paths import nccl_paths
from ddpdoctor.facts.rdma import Rdma
from ddpdoctor.facts.topo import Topo
from ddpdoctor.system.machine import this_machine

__all__ = ["main", "offers"]

SECONDS = 5.0
EFA_WORDS = "an EFA adapter (with the aws-ofi-nccl plugin)"


def main() -> None:
    """Print them as one JSON object."""
    facts = collect(this_machine(SECONDS), ("gpu", "topo", "net"))
    sys.stdout.write(json.dumps(offers(facts.gpu, facts.topo, facts.net.rdma if facts.net else None)))


def offers(gpu: Gpu | None, topo: Topo | None, rdma: Rdma | None) -> dict[str, Any]:
    """The paths by the uuids of both GPUs, without any setting; and the adapter, "" if none is certain to work."""
    paths: dict[str, dict[str, str]] = {}
    if gpu is not None and topo is not None:
        uuids = {device.index: device.uuid for device in gpu.devices if device.uuid}
        for path in nccl_paths(topo, {}, tuple(uuids)):
            for one, other in ((path.a, path.b), (path.b, path.a)):
                paths.setdefault(uuids[one], {})[uuids[other]] = path.uses
    return {"ways": paths, "network": _network(rdma)}


def _network(rdma: Rdma | None) -> str:
    """The adapter. RoCE on a virtual function or without a routable address often has no RDMA between hosts: not counted."""
    for device, port in rdma.used(None) if rdma is not None else ():
        if device.needs_plugin:
            return EFA_WORDS
        if not port.is_roce or (not device.is_virtual_function and any(gid.is_routable for gid in port.gids)):
            return f"{device.name} ({port.link_layer or 'RDMA'})"
    return ""


if __name__ == "__main__":
    main()
