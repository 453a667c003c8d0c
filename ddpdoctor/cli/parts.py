"""`env ports gpus topo net host versions`: the facts of one part as a table, then its findings."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from ddpdoctor.app.request import Format, Request

__all__ = ["env", "gpus", "host", "net", "ports", "topo", "versions"]

HELP = {
    "env": "The variables of launchers, torch, NCCL, Gloo, CUDA and OpenMP: who set them, and what is wrong.",
    "ports": "The master port: free or in use, by which process; whether the master is reachable.",
    "net": "Interfaces, names and addresses; which interface NCCL and Gloo would use.",
    "host": "Limits, memory, /dev/shm, cgroup, container, NUMA, clock.",
    "versions": "torch, CUDA, NCCL, driver and Python, read without importing torch.",
    "gpus": "The GPUs that NVML sees, and those that CUDA would see, in CUDA's order.",
    "topo": "The NVLink and PCIe matrix, as `nvidia-smi topo -m` prints it.",
}


def _part(command: str) -> Callable[[Request], int]:
    def show(request: Request) -> int:
        from ddpdoctor.app.parts import examine_part
        from ddpdoctor.cli.output import emit, has_colour, width

        report, machines = examine_part(command, request)
        tables = []
        if request.format is Format.table or request.output is not None:
            draw = importlib.import_module(f"ddpdoctor.cli.screens.{command}").draw
            for facts in machines:
                heading = f"{facts.hostname or 'host unknown'}:\n" if len(machines) > 1 else ""
                tables.append(heading + draw(facts, width=width(), colour=has_colour(request)))
        return emit(report, request, "".join(tables))

    show.__doc__ = HELP[command]
    show.__name__ = command
    return show


env, ports, net, host, versions, gpus, topo = map(_part, HELP)
