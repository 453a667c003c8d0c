"""`env ports gpus topo net host versions`: one part each: its facts as a table, then its findings."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable

from ddpdoctor.app.request import Common, Format

__all__ = ["SECTIONS", "env", "gpus", "host", "net", "ports", "topo", "versions"]

SECTIONS = {
    "env": ("environ",),
    "ports": ("environ", "net"),
    "net": ("environ", "net"),
    "host": ("environ", "host"),
    "versions": ("environ", "gpu", "versions"),
    "gpus": ("environ", "gpu"),
    "topo": ("environ", "gpu", "topo"),
}
"""The sections that each part shows; its rules are those of the last one's area, and may need further sections."""

OTHER_AREAS = {
    "versions": ("launch",),
    "net": ("environ",),
    "ports": ("environ",),
    "gpus": ("environ", "launch", "versions"),
}
"""The other areas some of whose rules judge nothing but what a part shows, and say so (`also_in`)."""

HELP = {
    "env": "The variables of launchers, torch, NCCL, Gloo, CUDA and OpenMP: who set them and what is wrong.",
    "ports": "The master port: free or taken, by whom; can the master be reached.",
    "net": "Interfaces, names and addresses; which interface NCCL and Gloo would choose.",
    "host": "Limits, memory, /dev/shm, cgroup, container, NUMA, clock.",
    "versions": "torch, CUDA, NCCL, driver and Python, read without importing torch.",
    "gpus": "The GPUs that NVML sees, and which of them CUDA would see, in which order.",
    "topo": "The NVLink and PCIe matrix, as `nvidia-smi topo -m` prints it.",
}


def _part(command: str) -> Callable[[Common], int]:
    def show(common: Common) -> int:
        from ddpdoctor.app.facts_source import facts_for
        from ddpdoctor.app.rule_selection import rules_for
        from ddpdoctor.cli.output import emit, has_colour, width
        from ddpdoctor.collectors import SECONDS
        from ddpdoctor.engine import examine

        started = time.time()
        rules = rules_for(common, (SECTIONS[command][-1],))
        rules += tuple(each for each in rules_for(common, OTHER_AREAS.get(command, ())) if command in each.also_in)
        if common.facts is None:  # a part starts no ranks and reads no launch line
            rules = tuple(each for each in rules if not {"probe", "launch"} & set(each.needs))
        needed = {*SECTIONS[command], *(name for each in rules for name in (*each.needs, *each.wants))}
        sections = [name for name in SECONDS if name in needed]
        facts, failures = facts_for(common, sections)
        report = examine(facts, rules, command=command, started=started, failures=failures)
        tables = ""
        if common.format is Format.table or common.output is not None:
            draw = importlib.import_module(f"ddpdoctor.cli.tables.{command}").draw
            tables = draw(facts, width=width(), colour=has_colour(common))
        return emit(report, common, tables)

    show.__doc__ = HELP[command]
    show.__name__ = command
    return show


env, ports, net, host, versions, gpus, topo = map(_part, SECTIONS)
