"""A manifest executed on an imagined cluster: the pods of all its objects, what they start, and which of it is one job."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import field, replace

from ddpdoctor.facts.launch.layer import starts_ranks
from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.facts.submission import Submission
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.evaluator.cluster_services import (
    domains_of,
    host_resolved,
    pod_set,
    pytorch_jobs,
    ray_groups,
    services_of_manifest,
)
from ddpdoctor.launch.evaluator.execution_budget import Budget
from ddpdoctor.launch.evaluator.imagined_run import ImaginedRun, Launched
from ddpdoctor.launch.evaluator.jobs import ImaginedJob, jobs_of_run
from ddpdoctor.launch.evaluator.launches import run_placed
from ddpdoctor.launch.evaluator.objects import Workload, objects_of
from ddpdoctor.launch.evaluator.operators import workload_of
from ddpdoctor.launch.evaluator.pods import commands_of_pod, config_maps
from ddpdoctor.launch.evaluator.refused_objects import restart_policies, volcano_names
from ddpdoctor.launch.evaluator.scalars import Manifest
from ddpdoctor.launch.evaluator.submissions import submission_of
from ddpdoctor.launch.manifests.manifest import is_template
from ddpdoctor.launch.manifests.object_checks import refused_objects
from ddpdoctor.launch.manifests.yaml_nodes import At, documents, text_of
from ddpdoctor.launch.rendezvous import plan_of
from ddpdoctor.light_dataclass import dataclass

__all__ = ["PodLaunch", "by_master", "counted", "imagined_manifest_jobs", "plan_of_launched", "pods_of_manifest"]

MOST_STATEMENTS = 8_000
"""Statements that all shells of a manifest execute."""
MOST_PODS = 512
"""Pods of all objects together."""
MOST_LAUNCHED = 1_024
"""Launchers and ranks in all pods together."""
_ORDINAL = re.compile(r".*-\d+")


def imagined_manifest_jobs(
    text: str, file: str, version: Version
) -> tuple[tuple[ImaginedJob, ...], tuple[str, ...], Submission]:
    """The jobs that the pods of a manifest run, what of it is not imagined, and both as one fact."""
    works: list[tuple[At, Workload]] = []
    run = pods_of_manifest(text, file, version, works)
    jobs = jobs_of_run(run, Launch(), file, text, version)
    submission = submission_of(file, text, run, jobs)
    if not is_template(text):
        objects = list(objects_of(documents(file, text)[0]))
        sets = (pod_set(root, work) for root, work in works)
        submission = replace(
            submission,
            services=services_of_manifest(objects, works),
            domains=domains_of(works),
            host_resolved=host_resolved(works),
            restart_policies=tuple(restart_policies(objects)),
            volcano_names=tuple(volcano_names(objects)),
            pod_sets=tuple(each for each in sets if each is not None),
            ray_groups=ray_groups(objects),
            pytorch_jobs=pytorch_jobs(objects),
            refused=tuple(refused_objects(objects)),
        )
    left_out = (each if each.startswith(f"{file}:") else f"{file}: {each}" for each in run.left_out)
    return jobs, tuple(dict.fromkeys(left_out)), submission


def pods_of_manifest(
    text: str, file: str, version: Version, works: list[tuple[At, Workload]] | None = None
) -> ImaginedRun:
    """What the pods of all objects of a manifest start. What belongs to one job has one group.

    Args:
        works: gets the objects that start pods.
    """
    found = ImaginedRun()
    if is_template(text):
        found.left_out.append("a template: its values are not known")
        return found
    roots, failures = documents(file, text)
    found.left_out += failures
    manifest, objects = Manifest(text, file), list(objects_of(roots))
    maps, budget, room = config_maps(roots), Budget(MOST_STATEMENTS), MOST_PODS
    services, launched = _Services.of(objects), 0
    for root in objects:
        work = workload_of(root, manifest, objects)
        if work is None:
            continue
        found.left_out += work.left_out
        if works is not None:
            works.append((root, work))
        started: list[PodLaunch] = []
        for pod in work.pods[:room]:
            if budget.statements <= 0 or launched >= MOST_LAUNCHED:
                found.left_out.append(
                    f"{work.kind} {work.name}: more pods than are simulated; left out from {pod.name} on"
                )
                break
            count = 0
            commands = list(commands_of_pod(pod, manifest, maps))
            if not commands and not pod.is_passive:
                found.left_out.append(f"{work.kind} {work.name}: the image of {pod.name} decides what it starts")
            for command in commands:
                run = run_placed(command, version, budget)
                found.left_out += run.left_out
                own = [replace(each, pod=pod.pod) for each in run.launched]
                started += counted(own, pod.world, count)
                launched += len(run.launched)
                count += bool(run.launched)
        room -= min(room, len(work.pods))
        for members in _jobs(work, started, version):
            group = len(found.launched) + 1
            found.launched += [replace(each, group=group) for each in services.without_aliases(members, version)]
    found.left_out += budget.described(file, text)
    return found


@dataclass(frozen=True, slots=True)
class PodLaunch:
    """What a pod starts, and what it has in common with the same in other pods of the job."""

    launched: Launched
    key: tuple[object, ...]


def counted(launched: Sequence[Launched], world: str, container: int) -> Iterator[PodLaunch]:
    """The launches of a container with what tells them apart: the only one, else its script and how often it came before.

    Ranks started by a launcher are never one job with a plain program that prepares something for them.
    """
    statements: dict[int, list[Launched]] = defaultdict(list)
    for each in launched:
        statements[each.group].append(each)
    starters = sum(starts_ranks(members[0].layer.launcher) for members in statements.values())
    seen: Counter[tuple[object, ...]] = Counter()
    for members in statements.values():
        first = members[0]
        script = first.layer.reading.script
        named = (first.layer.launcher, "" if script is None else script.text)
        is_main = starters == 1 if starts_ranks(first.layer.launcher) else len(statements) == 1
        if first.is_background:
            key: tuple[object, ...] = (world, container, *named, "background")
        else:
            key = (world, container) if is_main else (world, container, *named, seen[named])
            seen[named] += 1
        for each in members:
            yield PodLaunch(replace(each, is_background=False), key)


def _jobs(work: Workload, started: Sequence[PodLaunch], version: Version) -> Iterator[list[Launched]]:
    """The jobs of an object: what its pods start together, unless they are as many whole jobs as there are masters."""
    together: dict[tuple[object, ...], list[Launched]] = {}
    for each in started:
        together.setdefault(each.key, []).append(each.launched)
    for members in together.values():
        plans = [plan for each in members if (plan := plan_of_launched(each, version)) is not None]
        if len(plans) != len(members) or len(members) < 2:
            yield members
        elif all(plan.nnodes == (1, 1) for plan in plans) and not (work.is_gang and not _is_meant(plans)):
            yield from ([each] for each in members)
        else:
            yield from by_master(members, plans)


def _is_meant(plans: Sequence[Plan]) -> bool:
    """Every pod says by itself that it works alone."""
    return all(plan.is_standalone for plan in plans)


def by_master(members: list[Launched], plans: Sequence[Plan]) -> Iterator[list[Launched]]:
    """One job for each master where each has just the nodes that it waits for; else all are one job."""
    parts: dict[tuple[str | None, int | None], list[int]] = {}
    for at, plan in enumerate(plans):
        parts.setdefault((plan.host, plan.port), []).append(at)
    sizes = {(len(part), plans[at].nnodes) for part in parts.values() for at in part}
    if len(parts) > 1 and all(nodes is not None and nodes[1] == size > 1 for size, nodes in sizes):
        yield from ([members[at] for at in part] for part in parts.values())
    else:
        yield members


def plan_of_launched(each: Launched, version: Version) -> Plan | None:
    """What a torchrun will do; None for another program."""
    if each.layer.launcher not in (LauncherKind.TORCHRUN, LauncherKind.LEGACY):
        return None
    return plan_of(each.layer, {name: value.text for name, value in each.environ.items()}, version)


@dataclass(frozen=True, slots=True)
class _Services:
    """The names by which pods may be reached besides their own."""

    cluster_ip: frozenset[str] = field(default_factory=frozenset)
    """Services with an address that no pod has."""

    @classmethod
    def of(cls, objects: Sequence[At]) -> _Services:
        found = [each for each in objects if text_of(each.get("kind")) == "Service"]
        virtual = (
            text_of(each.get("metadata", "name"))
            for each in found
            if (text_of(each.get("spec", "type")) or "ClusterIP") == "ClusterIP"
            and text_of(each.get("spec", "clusterIP")) != "None"
        )
        return cls(frozenset(name for name in virtual if name))

    def without_aliases(self, members: list[Launched], version: Version) -> list[Launched]:
        """The launches, with hosts whose names cannot be compared with the master where that may be a Service of a pod."""
        masters = {plan.host for each in members if (plan := plan_of_launched(each, version)) is not None and plan.host}
        names = {each.place.host for each in members}
        if all(self._is_compared(master, names) for master in masters):
            return members
        return [replace(each, place=replace(each.place, hostname=UNKNOWN)) for each in members]

    def _is_compared(self, master: str, names: set[str]) -> bool:
        label = master.partition(".")[0]
        return label in names or label in self.cluster_ip or _ORDINAL.fullmatch(label) is not None
