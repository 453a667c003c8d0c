"""The Services of a manifest with the pods behind them, how many pods of an object run at a time, and Ray's worker groups.

Sources: kubernetes.io, "Service", "Jobs" (parallelism) and "DNS for Services and Pods"; ray-project/kuberay,
ray-operator/controllers/ray/common/pod.go (`rayStartParams`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ddpdoctor.facts.launch.words import UNKNOWN, Mark
from ddpdoctor.facts.submission import ClusterService, PodSet, PyTorchJobSpec, RayGroup
from ddpdoctor.launch.evaluator.objects import MOST_PODS, Workload, count_of
from ddpdoctor.launch.manifests.pod_template import gpus_of
from ddpdoctor.launch.manifests.yaml_nodes import At, number, text_of

__all__ = ["domains_of", "host_resolved", "pod_set", "pytorch_jobs", "ray_groups", "services_of_manifest"]

_TEMPLATES = {"Job": ("spec", "template"), "StatefulSet": ("spec", "template"), "Deployment": ("spec", "template")}
"""Objects whose pods have only the labels of their template, and those that their own controller adds."""


def services_of_manifest(objects: Sequence[At], works: Sequence[tuple[At, Workload]]) -> tuple[ClusterService, ...]:
    """The Services of a manifest; their pods only where all pods of the manifest have known labels."""
    labels = _labels(works)
    found = []
    for each in objects:
        name, spec = text_of(each.get("metadata", "name")), each.get("spec")
        if text_of(each.get("kind")) != "Service" or name is None or spec is None:
            continue
        kind = text_of(spec.get("type")) or "ClusterIP"
        wanted = {key: text_of(value) or "" for key, value in spec.pairs("selector")}
        pods = None
        if labels is not None and wanted and kind != "ExternalName":
            pods = tuple(pod for pod, own in labels.items() if wanted.items() <= own.items())
        found.append(
            ClusterService(
                name=name,
                pods=pods,
                is_headless=text_of(spec.get("clusterIP")) == "None",
                ports=tuple(_ports(spec)),
                at=each.mark,
                ip_at=_mark(spec.get("clusterIP") or spec),
                selector_at=_mark(spec.get("selector")),
                ports_at=next((_mark(port.get("port")) for port in spec.items("ports")), None),
            )
        )
    return tuple(found)


def _mark(at: At | None) -> Mark | None:
    return None if at is None else at.mark


def _ports(spec: At) -> Iterator[tuple[int, int]]:
    for port in spec.items("ports"):
        outside = number(port.get("port"))
        if outside is not None:
            yield outside, number(port.get("targetPort")) or outside


def _labels(works: Sequence[tuple[At, Workload]]) -> dict[str, dict[str, str]] | None:
    """The labels of every pod; None where a controller adds some that are not known here."""
    found: dict[str, dict[str, str]] = {}
    for root, work in works:
        path = _TEMPLATES.get(work.kind)
        if work.kind == "Pod":
            own = {name: text_of(value) or "" for name, value in root.pairs("metadata", "labels")}
        elif path is not None:
            own = {name: text_of(value) or "" for name, value in root.pairs(*path, "metadata", "labels")}
        else:
            return None
        for pod in work.pods:
            found[pod.name] = {**own, **_added(work, pod.name, pod.index, pod.fields)}
    return found


def _added(work: Workload, pod: str, index: int, fields: Mapping[str, str]) -> dict[str, str]:
    """What the controllers of Kubernetes add."""
    prefix = "metadata.labels['"
    added = {name[len(prefix) : -2]: value for name, value in fields.items() if name.startswith(prefix)}
    if work.kind == "Job":
        added |= {"job-name": work.name, "batch.kubernetes.io/job-name": work.name}
    if work.kind == "StatefulSet":
        added |= {"statefulset.kubernetes.io/pod-name": pod, "apps.kubernetes.io/pod-index": str(index)}
    return added


def domains_of(works: Sequence[tuple[At, Workload]]) -> dict[str, str]:
    """The subdomain of every pod whose name is known: `POD.SUBDOMAIN` resolves; "" for a pod without one."""
    found = {}
    for root, work in works:
        for pod in work.pods:
            own = text_of(pod.spec.get("subdomain"))
            if work.kind == "JobSet":
                if text_of(root.get("spec", "network", "enableDNSHostnames")) == "false":
                    continue
                own = text_of(root.get("spec", "network", "subdomain")) or work.name
            elif work.kind == "StatefulSet":
                own = text_of(root.get("spec", "serviceName"))
            elif work.kind not in ("Job", "CronJob", "Pod"):
                continue
            if pod.name and UNKNOWN not in f"{pod.name}{own or ''}":
                found[pod.name] = own or ""
                if work.kind == "Job":  # the names that its pods would have if it were indexed
                    found.setdefault(f"{work.name}-{pod.index}", own or "")
    return found


def host_resolved(works: Sequence[tuple[At, Workload]]) -> dict[str, Mark]:
    """The pods on the network of their machine that use its DNS as well, which knows no name of the cluster."""
    found = {}
    for _, work in works:
        for pod in work.pods:
            at, policy = pod.spec.get("hostNetwork"), text_of(pod.spec.get("dnsPolicy"))
            if at is not None and text_of(at) == "true" and policy in (None, "ClusterFirst", "Default"):
                found[pod.name] = at.mark
    return found


def pod_set(root: At, work: Workload) -> PodSet | None:
    """How many pods of a Job or StatefulSet run at a time; None for other objects, or where it is not known."""
    if work.kind == "StatefulSet":
        return _ordered(root, work)
    spec = root.get("spec", "jobTemplate", "spec") if work.kind == "CronJob" else root.get("spec")
    if spec is None or work.kind not in ("Job", "CronJob"):
        return None
    parallel, completions = spec.get("parallelism"), number(spec.get("completions"))
    at_once = count_of(parallel)
    if at_once is None or completions is None:
        return None
    place = parallel or spec.get("completions") or spec
    return PodSet(tuple(pod.name for pod in work.pods), min(at_once, completions), completions, place.mark)


def _ordered(root: At, work: Workload) -> PodSet | None:
    """The pods of a StatefulSet that start one after another, each when the one before is ready."""
    spec = root.get("spec")
    policy = None if spec is None else text_of(spec.get("podManagementPolicy"))
    containers = () if spec is None else list(spec.items("template", "spec", "containers"))
    probe = next((at for each in containers if (at := each.get("readinessProbe")) is not None), None)
    if policy == "Parallel" or probe is None or len(work.pods) < 2 or probe.get("tcpSocket") is not None:
        return None
    place = root.get("spec", "replicas") or probe
    return PodSet(tuple(pod.name for pod in work.pods), 1, len(work.pods), place.mark, is_ordered=True)


def ray_groups(objects: Sequence[At]) -> tuple[RayGroup, ...]:
    """The groups of pods of Ray clusters: the GPUs that they tell Ray, and those of their containers."""
    found: list[RayGroup] = []
    for each in objects:
        kind = text_of(each.get("kind"))
        spec = {"RayCluster": each.get("spec"), "RayJob": each.get("spec", "rayClusterSpec")}.get(kind or "")
        spec = each.get("spec", "rayClusterConfig") if kind == "RayService" else spec
        if kind == "LeaderWorkerSet":
            found += _group_of_leader(each)
        if spec is None:
            continue
        head = spec.get("headGroupSpec")
        name = text_of(each.get("metadata", "name")) or ""
        is_scaled = text_of(spec.get("enableInTreeAutoscaling")) == "true"
        for group in [at for at in (head, *spec.items("workerGroupSpecs")) if at is not None]:
            containers = list(group.items("template", "spec", "containers"))
            if not containers or containers[0].get("resources", "limits") is None:
                continue
            told = group.get("rayStartParams", "num-gpus")
            pods = 1 if group is head else count_of(group.get("replicas"))
            if is_scaled and group is not head:
                pods = number(group.get("maxReplicas"))
            place = told or group.get("replicas") or group
            gpus = gpus_of(containers[0]) or 0
            found.append(RayGroup(None if told is None else number(told) or 0, gpus, place.mark, pods, name))
    return tuple(found[:MOST_PODS])


def _group_of_leader(root: At) -> Iterator[RayGroup]:
    """One group of a LeaderWorkerSet: its leader and its workers, in which vLLM starts a Ray cluster."""
    template, size = root.get("spec", "leaderWorkerTemplate"), root.get("spec", "leaderWorkerTemplate", "size")
    worker = None if template is None else template.get("workerTemplate", "spec")
    leader = None if template is None else template.get("leaderTemplate", "spec")
    count = count_of(size)
    for spec, pods in ((leader or worker, 1), (worker, None if count is None else count - 1)):
        containers = [] if spec is None else list(spec.items("containers"))
        if containers and (size is not None or template is not None):
            gpus = gpus_of(containers[0]) or 0
            place = size or root
            yield RayGroup(None, gpus, place.mark, pods, text_of(root.get("metadata", "name")) or "")


def pytorch_jobs(objects: Sequence[At]) -> tuple[PyTorchJobSpec, ...]:
    """What the training operator checks of each PyTorchJob before it makes pods, and its elastic limits."""
    found = []
    for each in objects:
        spec = each.get("spec")
        if text_of(each.get("kind")) != "PyTorchJob" or spec is None:
            continue
        nameless = []
        for role, replica in spec.pairs("pytorchReplicaSpecs"):
            containers = list(replica.items("template", "spec", "containers"))
            names = {text_of(container.get("name")) for container in containers}
            if containers and "pytorch" not in names and None not in names:
                nameless.append((role, text_of(containers[0].get("name")) or "", containers[0].mark))
        policy = spec.get("elasticPolicy")
        least = None if policy is None else policy.get("minReplicas")
        workers = spec.get("pytorchReplicaSpecs", "Worker")
        found.append(
            PyTorchJobSpec(
                tuple(nameless),
                number(least),
                None if workers is None else count_of(workers.get("replicas")),
                None if least is None else least.mark,
            )
        )
    return tuple(found)
