"""JobSets, LeaderWorkerSets, Volcano jobs and the kinds of Kubernetes itself, expanded into their pods.

Sources, read for what each controller sets:

* JobSet: kubernetes-sigs/jobset, site/static/examples/simple/jobset-with-network.yaml
* LeaderWorkerSet: kubernetes-sigs/lws, pkg/utils/pod/pod_utils.go
* Volcano Job: volcano-sh/volcano, pkg/controllers/job/plugins/{env,svc,distributed-framework/pytorch}
* Indexed Job: kubernetes, pkg/controller/job/indexed_job_utils.go and "Job with Pod-to-Pod Communication"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.objects import (
    MOST_PODS,
    WorkloadObject,
    count_of,
    index_fields,
    labels,
    text_of_count,
    total_of,
)
from ddpdoctor.launch.evaluator.pods import ImaginedPod
from ddpdoctor.launch.evaluator.values import NODE, Value
from ddpdoctor.launch.manifests.yaml_nodes import At, number, text_of

__all__ = ["WORKLOADS"]

PORT = "23456"
"""The port that Volcano's plugin `pytorch` opens."""
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""What random names of pods are made of."""


def _random_name(base: str, index: int) -> str:
    """A name as the cluster makes it for a pod without an ordinal."""
    size = len(_LETTERS)
    return f"{base}-{_LETTERS[index % size]}{_LETTERS[index // size % size]}{_LETTERS[(index * 7 + 3) % size]}x7"


def _jobset(job: WorkloadObject) -> None:
    """Each replicated job is an indexed Job whose pods have names of four parts."""
    job.into.is_gang = True
    jobs = list(job.spec.items("replicatedJobs"))
    for each in jobs:
        inner, copies = each.get("template", "spec"), count_of(each.get("replicas"))
        spec = None if inner is None else inner.get("template", "spec")
        if inner is None or spec is None:
            continue
        role = text_of(each.get("name")) or UNKNOWN
        parallel = count_of(inner.get("parallelism"))
        is_indexed = text_of(inner.get("completionMode")) != "NonIndexed"
        for copy in range(min(copies or 1, MOST_PODS)):
            for index in job.into.count(parallel):
                label = "jobset.sigs.k8s.io"
                fields = {
                    **index_fields(index),
                    **labels(f"{label}/job-index", str(copy)),
                    **labels(f"{label}/replicatedjob-name", role),
                    **labels(f"{label}/jobset-name", job.name),
                    **labels(f"{label}/replicatedjob-replicas", text_of_count(copies)),
                }
                name = f"{job.host}-{role}-{copy}-{index}"
                rank = job.manifest.made(str(index), inner.get("parallelism") or inner, NODE)
                defaults = (("JOB_COMPLETION_INDEX", rank),) if is_indexed else ()
                pod = ImaginedPod(name, spec, "", len(job.into.pods), (), (), defaults, fields)
                job.into.pods.append(pod)


def _leaderworkerset(job: WorkloadObject) -> None:
    """Groups of one leader and its workers; each group is a job of its own."""
    job.into.is_gang = True
    template = job.spec.get("leaderWorkerTemplate")
    worker = None if template is None else template.get("workerTemplate", "spec")
    if template is None or worker is None:
        return
    leader = template.get("leaderTemplate", "spec") or worker
    size, groups = template.get("size"), count_of(job.spec.get("replicas"))
    count = count_of(size)
    is_shared = text_of(job.spec.get("networkConfig", "subdomainPolicy")) != "UniquePerReplica"
    made = job.manifest.made
    for group in range(min(groups or 1, MOST_PODS)):
        domain = job.name if is_shared else f"{job.name}-{group}"
        for index in job.into.count(count):
            name = f"{job.host}-{group}" + (f"-{index}" if index else "")
            before = (
                ("LWS_LEADER_ADDRESS", job.named(f"{job.name}-{group}.{domain}.{job.namespace}")),
                ("LWS_GROUP_SIZE", made(text_of_count(count), size)),
                ("LWS_WORKER_INDEX", made(str(index), size, NODE)),
            )
            label = "leaderworkerset.sigs.k8s.io"
            fields = {
                **labels(f"{label}/worker-index", str(index)),
                **labels(f"{label}/group-index", str(group)),
                **labels(f"{label}/size", text_of_count(count)),
                **labels(f"{label}/name", job.name),
            }
            pods = job.into.pods
            pods.append(ImaginedPod(name, worker if index else leader, str(group), len(pods), before, fields=fields))


def _volcano(job: WorkloadObject) -> None:
    """Tasks with replicas; its plugins set the variables."""
    plugins = {name for name, _ in job.spec.pairs("plugins")}
    job.into.is_gang = "pytorch" in plugins
    tasks = []
    for at, each in enumerate(job.spec.items("tasks")):
        tasks.append((text_of(each.get("name")) or f"default{at}", each, count_of(each.get("replicas"))))
    shared = list(_volcano_hosts(job, tasks)) if plugins & {"svc", "pytorch"} else []
    for name, each, count in tasks:
        spec = each.get("template", "spec")
        if spec is None:
            continue
        for index in job.into.count(count):
            own = list(shared)
            rank = job.manifest.made(str(index), each.get("replicas") or each, NODE)
            if "env" in plugins:
                own += [("VK_TASK_INDEX", rank), ("VC_TASK_INDEX", rank)]
            if "pytorch" in plugins:
                own += _volcano_pytorch(job, tasks, name, index)
            pod = ImaginedPod(f"{job.host}-{name}-{index}", spec, "", len(job.into.pods), after=tuple(own))
            job.into.pods.append(pod)


def _volcano_hosts(job: WorkloadObject, tasks: Sequence[tuple[str, At, int | None]]) -> Iterator[tuple[str, Value]]:
    for name, each, count in tasks:
        key, at = name.replace("-", "_").upper(), each.get("replicas") or each
        is_listed = count is not None and count <= MOST_PODS
        hosts = (
            ",".join(f"{job.host}-{name}-{index}.{job.name}" for index in range(count or 0)) if is_listed else UNKNOWN
        )
        yield f"VC_{key}_HOSTS", job.manifest.made(hosts, at)
        yield f"VC_{key}_NUM", job.manifest.made(text_of_count(count), at)


def _volcano_pytorch(
    job: WorkloadObject, tasks: Sequence[tuple[str, At, int | None]], task: str, index: int
) -> Iterator[tuple[str, Value]]:
    """The plugin `pytorch`: like a PyTorchJob, with the names of its two tasks in its arguments."""
    plugin = job.spec.get("plugins", "pytorch")
    given = [text_of(each) or "" for each in job.spec.items("plugins", "pytorch")]
    options = dict(word.lstrip("-").partition("=")[::2] for word in given)
    master, worker = options.get("master", "master"), options.get("worker", "worker")
    members = [count for name, _, count in tasks if name in (master, worker)]
    if not any(name == master for name, _, _ in tasks):
        return
    made = job.manifest.made
    yield "MASTER_ADDR", made(f"{job.host}-{master}-0.{job.name}", plugin)
    yield "MASTER_PORT", made(options.get("port", PORT), plugin)
    yield "WORLD_SIZE", made(text_of_count(total_of(members)), plugin)
    if task in (master, worker):
        yield "RANK", made(str(0 if task == master else index + 1), plugin, NODE)


def _job(job: WorkloadObject) -> None:
    _pods_of_job(job, job.spec, job.host)


def _cronjob(job: WorkloadObject) -> None:
    inner = job.spec.get("jobTemplate", "spec")
    if inner is not None:
        _pods_of_job(job, inner, f"{job.host}-29000000")


def _pods_of_job(job: WorkloadObject, inner: At, host: str) -> None:
    spec = inner.get("template", "spec")
    if spec is None:
        return
    parallel = count_of(inner.get("parallelism"))
    completions = inner.get("completions")
    is_indexed = text_of(inner.get("completionMode")) == "Indexed"
    is_together = completions is not None and number(completions) == parallel  # else one after the other
    for index in job.into.count(parallel):
        rank = job.manifest.made(str(index), completions, NODE)
        name = f"{host}-{index}" if is_indexed else _random_name(host, index)
        world = "" if is_together or completions is None else str(index)
        defaults = (("JOB_COMPLETION_INDEX", rank),) if is_indexed else ()
        fields = index_fields(index) if is_indexed else {}
        job.into.pods.append(ImaginedPod(name, spec, world, index, (), (), defaults, fields))


def _statefulset(job: WorkloadObject) -> None:
    spec = job.spec.get("template", "spec")
    first = number(job.spec.get("ordinals", "start")) or 0
    if spec is not None:
        for index in job.into.count(count_of(job.spec.get("replicas"))):
            fields = labels("apps.kubernetes.io/pod-index", str(first + index))
            job.into.pods.append(ImaginedPod(f"{job.host}-{first + index}", spec, "", index, fields=fields))


def _replicas(job: WorkloadObject) -> None:
    """Deployment, ReplicaSet, DaemonSet: pods that cannot be distinguished; of a DaemonSet one is imagined."""
    spec = job.spec.get("template", "spec")
    count = 1 if job.into.kind == "DaemonSet" else count_of(job.spec.get("replicas"))
    if spec is not None:
        for index in job.into.count(count):
            job.into.pods.append(ImaginedPod(_random_name(job.host, index), spec, "", index))


def _pod(job: WorkloadObject) -> None:
    job.into.pods.append(ImaginedPod(text_of(job.spec.get("hostname")) or job.host, job.spec, ""))


def _rayjob(job: WorkloadObject) -> None:
    """The entrypoint runs on the head; Ray's own processes start the ranks."""
    spec, entry = job.spec.get("rayClusterSpec", "headGroupSpec", "template", "spec"), job.spec.get("entrypoint")
    if spec is not None and entry is not None:
        job.into.pods.append(ImaginedPod(f"{job.host}-head", spec, "", entrypoint=entry))


WORKLOADS: Mapping[str, Callable[[WorkloadObject], None]] = {
    "JobSet": _jobset,
    "LeaderWorkerSet": _leaderworkerset,
    "Volcano Job": _volcano,
    "Job": _job,
    "CronJob": _cronjob,
    "StatefulSet": _statefulset,
    "Deployment": _replicas,
    "ReplicaSet": _replicas,
    "DaemonSet": _replicas,
    "Pod": _pod,
    "RayJob": _rayjob,
}
