"""A SkyPilot task executed on an imagined cluster: `run` on every node, with the variables of SkyPilot.

Source: docs.skypilot.co, "Distributed Multi-Node Jobs" and "Secrets and environment variables"; sky/skylet/constants.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.evaluator.cluster import MOST_NODES, Allocation
from ddpdoctor.launch.evaluator.execution_budget import Budget
from ddpdoctor.launch.evaluator.imagined_run import ImaginedRun, Launched, Place
from ddpdoctor.launch.evaluator.launches import run_placed
from ddpdoctor.launch.evaluator.manifests import PodLaunch, counted, plan_of_launched
from ddpdoctor.launch.evaluator.placed_commands import PlacedCommand
from ddpdoctor.launch.evaluator.scalars import Expansion, Manifest
from ddpdoctor.launch.evaluator.values import NODE, NOT_KNOWN, Value
from ddpdoctor.launch.manifests.yaml_nodes import At, number, text_of
from ddpdoctor.light_dataclass import dataclass

__all__ = ["SkyPilotTask", "run_of_skypilot", "task_of"]

MOST_STATEMENTS = 8_000
_SETTINGS = {"resources", "setup", "num_nodes", "file_mounts", "workdir", "envs"}
_COUNT = re.compile(r"[\w.-]+:(\d+)")


@dataclass(frozen=True, slots=True)
class SkyPilotTask:
    """A task: its `run` text, its nodes (None: not a number) and the GPUs of each (None: not known)."""

    root: At
    run: At
    nodes: int | None
    gpus: int | None


def task_of(roots: Sequence[At]) -> SkyPilotTask | None:
    """The task of a file; None for another file, and for a pipeline of several tasks."""
    tasks = [root for root in roots if root.get("run") is not None and _SETTINGS & {name for name, _ in root.pairs()}]
    run = tasks[0].get("run") if len(tasks) == 1 and tasks[0].get("apiVersion") is None else None
    if run is None or text_of(run) is None:
        return None
    count = tasks[0].get("num_nodes")
    return SkyPilotTask(tasks[0], run, 1 if count is None else number(count), _gpus(tasks[0].get("resources")))


def _gpus(resources: At | None) -> int | None:
    """GPUs of a node: `A100:8`, `{A100: 8}`, `{A100:8, H100:8}`; None where the choices differ."""
    given = None if resources is None else resources.get("accelerators")
    if given is None or (resources is not None and resources.get("any_of") is not None):
        return None
    text = text_of(given)
    texts = [text] if text is not None else [text_of(item) or "" for item in given.items()]
    texts += [key if text_of(value) is None else f"{key}:{text_of(value)}" for key, value in given.pairs()]
    counts = {int(match[1]) if (match := _COUNT.fullmatch(each.strip())) else 1 for each in texts}
    return counts.pop() if len(counts) == 1 else None


def run_of_skypilot(task: SkyPilotTask, text: str, file: str, version: Version) -> ImaginedRun:
    """What the task starts on all its nodes. What belongs to one job has one group."""
    manifest, budget = Manifest(text, file), Budget(MOST_STATEMENTS)
    nodes = min(task.nodes or 1, MOST_NODES)
    addresses = tuple(f"10.0.{node // 250}.{node % 250 + 1}" for node in range(nodes))
    counted_at = task.root.get("num_nodes")
    found = ImaginedRun(
        allocation=Allocation(
            hosts=tuple(f"node-{node}" for node in range(nodes)),
            gpus_per_node=task.gpus,
            nodes_are_known=task.root.get("num_nodes") is not None and task.nodes is not None,
            scheduler="SkyPilot",
            places={} if counted_at is None else {"num_nodes": manifest.origin(counted_at)},
        )
    )
    script = manifest.value(task.run)
    groups: dict[tuple[object, ...], list[PodLaunch]] = {}
    for node in range(nodes):
        command = PlacedCommand(
            place=Place(f"node-{node}", node, gpus=task.gpus, hostname=UNKNOWN),
            argv=(Value("bash"), Value("-c"), script),
            environ=_environ(task, manifest, node, addresses),
            origin=manifest.origin(task.run),
            allocation=Allocation((f"node-{node}",)),
            inside={script.text: manifest.inside(task.run, Expansion(NOT_KNOWN))},
        )
        run = run_placed(command, version, budget)
        found.left_out += run.left_out
        for each in counted(run.launched, "", 0):
            at = _address(each.launched, addresses[node], addresses, version)
            groups.setdefault(each.key, []).append(replace(each, launched=at))
    found.add_groups([[each.launched for each in members] for members in groups.values()])
    found.left_out += budget.described(file, text)
    return found


def _address(each: Launched, own: str, addresses: Sequence[str], version: Version) -> Launched:
    """The launch on a host that is called by its address, where its master is the address of one of the nodes."""
    plan = plan_of_launched(each, version)
    master = plan.host if plan is not None else each.environ.get("MASTER_ADDR", NOT_KNOWN).text
    return replace(each, place=replace(each.place, host=own, hostname=None)) if master in addresses else each


def _environ(task: SkyPilotTask, manifest: Manifest, node: int, addresses: Sequence[str]) -> dict[str, Value]:
    """The variables of one node; those of `envs` may be changed on the command line, and are taken as written."""
    count = UNKNOWN if task.nodes is None else str(task.nodes)
    known = task.nodes is not None and task.nodes <= MOST_NODES
    given = {name: manifest.value(value) for name, value in task.root.pairs("envs")}
    gpus = UNKNOWN if task.gpus is None else str(task.gpus)
    nodes_at = task.root.get("num_nodes") or task.run
    return {
        **given,
        "SKYPILOT_NODE_RANK": manifest.made(str(node), nodes_at, NODE),
        "SKYPILOT_NODE_IPS": manifest.made("\n".join(addresses) if known else UNKNOWN, nodes_at),
        "SKYPILOT_NUM_NODES": manifest.made(count, nodes_at),
        "SKYPILOT_NUM_GPUS_PER_NODE": manifest.made(gpus, task.root.get("resources", "accelerators") or task.run),
        "SKYPILOT_TASK_ID": NOT_KNOWN,
        "SKYPILOT_CLUSTER_INFO": NOT_KNOWN,
    }
