"""What the API server and the operators refuse in objects whose fields are all known: values, pairs of them, and names.

Sources: kubernetes, pkg/apis/core/validation (resources, volume mounts, names), pkg/apis/apps/validation (selectors) and
third_party/forked/golang/expansion (references to variables); kubeflow/trainer 1.9, pkg/apis/kubeflow.org/v1 (replica types).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from ddpdoctor.facts.refused import Refused, RefusedKind
from ddpdoctor.launch.manifests.object_fields import ROOTS
from ddpdoctor.launch.manifests.schema import CLOSE, refused_fields
from ddpdoctor.launch.manifests.yaml_nodes import At, number, text_of

__all__ = ["refused_objects"]

_PODS = {
    "Pod": ("spec",),
    "Job": ("spec", "template", "spec"),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
    "Deployment": ("spec", "template", "spec"),
    "ReplicaSet": ("spec", "template", "spec"),
    "StatefulSet": ("spec", "template", "spec"),
    "DaemonSet": ("spec", "template", "spec"),
}
_REPLICAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "PyTorchJob": ("pytorchReplicaSpecs", ("Master", "Worker")),
    "MPIJob": ("mpiReplicaSpecs", ("Launcher", "Worker")),
}
_OF_GROUPS = {
    "PyTorchJob": ("kubeflow.org/v1",),
    "Job": ("batch/v1", "batch.volcano.sh/v1alpha1"),
    "Deployment": ("apps/v1",),
    "StatefulSet": ("apps/v1",),
    "Service": ("v1", "serving.knative.dev/v1"),
    "Pod": ("v1",),
    "ConfigMap": ("v1",),
}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_OPEN = re.compile(r"[${}<>%]")
_REFERENCE = re.compile(r"(?<!\$)\$\(([A-Za-z_]\w*)\)")
MOST_OBJECTS = 64


def refused_objects(objects: Sequence[At]) -> Iterator[Refused]:
    """Everything in these objects that is refused, or names nothing."""
    for root in objects[:MOST_OBJECTS]:
        yield from refused_fields(root)
        yield from _version(root)
        yield from _name(root)
        yield from _replica_types(root)
        yield from _selector(root)
        for pod, claims in _pods(root):
            yield from _volumes(pod, claims)
            for container in (*pod.items("initContainers"), *pod.items("containers")):
                yield from _resources(container)
                yield from _references(container)
    yield from _shared_names(objects[:MOST_OBJECTS])


def _version(root: At) -> Iterator[Refused]:
    kind, given = text_of(root.get("kind")) or "", root.get("apiVersion")
    right = _OF_GROUPS.get(kind)
    if right is None or given is None or text_of(given) in right or _OPEN.search(text_of(given) or ""):
        return
    yield Refused(RefusedKind.VALUE, f"the {kind}", "apiVersion", right[0], given.mark, text_of(given) or "")


def _name(root: At) -> Iterator[Refused]:
    at = root.get("metadata", "name")
    name = text_of(at)
    if at is None or name is None or text_of(root.get("kind")) not in ROOTS or _OPEN.search(name):
        return
    if not _NAME.fullmatch(name):
        expected = "lower case letters, digits, `-` and `.`"
        yield Refused(RefusedKind.VALUE, f"the {text_of(root.get('kind'))}", "name", expected, at.mark, name)


def _replica_types(root: At) -> Iterator[Refused]:
    kind = text_of(root.get("kind")) or ""
    field, names = _REPLICAS.get(kind, ("", ()))
    specs = root.get("spec", field) if field else None
    if specs is None or specs.node.id != "mapping":
        return
    for key, value in specs.node.value:
        replicas = At(value).get("replicas")
        if key.id != "scalar" or _OPEN.search(str(key.value)):
            continue
        if key.value not in names:
            near = difflib.get_close_matches(str(key.value).capitalize(), names, n=1, cutoff=0.6)
            meant = near[0] if near else " or ".join(names)
            yield Refused(RefusedKind.UNKNOWN, field, str(key.value), meant, At(key).mark, str(key.value))
        elif key.value == names[0] and (number(replicas) or 1) > 1 and replicas is not None:
            count = text_of(replicas) or ""
            yield Refused(RefusedKind.VALUE, f"the {names[0]}", "replicas", "1", replicas.mark, count)


def _selector(root: At) -> Iterator[Refused]:
    """The labels that a controller selects, and those of its pods."""
    if text_of(root.get("kind")) not in ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet"):
        return
    labels = {name: text_of(value) for name, value in root.pairs("spec", "template", "metadata", "labels")}
    for name, value in root.pairs("spec", "selector", "matchLabels"):
        wanted = text_of(value) or ""
        if labels.get(name) != wanted and not _OPEN.search(wanted + (labels.get(name) or "")):
            seen = f"{name}: {wanted}"
            other = "the label of its template" if labels.get(name) is None else f"{name}: {labels[name]}"
            yield Refused(RefusedKind.VALUE, "the selector", name, other, value.mark, seen)


def _pods(root: At) -> Iterator[tuple[At, frozenset[str]]]:
    """The pod specs of an object, and the volumes that it gives them."""
    kind = text_of(root.get("kind")) or ""
    claims = frozenset(
        name
        for each in root.items("spec", "volumeClaimTemplates")
        if (name := text_of(each.get("metadata", "name"))) is not None
    )
    spec = root.get(*_PODS[kind]) if kind in _PODS else None
    if spec is not None:
        yield spec, claims
    for field, _ in _REPLICAS.values():
        for _, replica in root.pairs("spec", field):
            own = replica.get("template", "spec")
            if own is not None:
                yield own, claims
    for job in root.items("spec", "replicatedJobs"):
        own = job.get("template", "spec", "template", "spec")
        if own is not None:
            yield own, claims
    for task in root.items("spec", "tasks"):
        own = task.get("template", "spec")
        if own is not None:
            yield own, claims
    for name in ("leaderTemplate", "workerTemplate"):
        own = root.get("spec", "leaderWorkerTemplate", name, "spec")
        if own is not None:
            yield own, claims


def _volumes(pod: At, claims: frozenset[str]) -> Iterator[Refused]:
    """Mounts of volumes that the pod does not have. If `volumes` is not a list, its names are unknown."""
    volumes = pod.get("volumes")
    if volumes is not None and volumes.node.id != "sequence":
        return
    names = {name for each in pod.items("volumes") if (name := text_of(each.get("name")))} | claims
    if any(_OPEN.search(name) for name in names):
        return
    told = set()
    for container in (*pod.items("initContainers"), *pod.items("containers")):
        for mount in container.items("volumeMounts"):
            at = mount.get("name")
            name = text_of(at)
            if at is None or name is None or name in names or _OPEN.search(name) or at.mark in told:
                continue
            told.add(at.mark)
            near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.5)
            yield Refused(RefusedKind.DANGLING, "volumeMounts", name, near[0] if near else "a volume", at.mark, name)


def _resources(container: At) -> Iterator[Refused]:
    """Extended resources need a limit, and a request that is equal to it; memory needs a unit."""
    limits = dict(container.pairs("resources", "limits"))
    for name, at in container.pairs("resources", "requests"):
        asked = text_of(at) or ""
        if "/" not in name or name.startswith("hugepages-") or "kubernetes.io/" in name or _OPEN.search(asked):
            continue
        limit = limits.get(name)
        if limit is None:
            yield Refused(RefusedKind.VALUE, "requests", name, "limits", at.mark, "requests alone")
        elif text_of(limit) != asked and not _OPEN.search(text_of(limit) or ""):
            yield Refused(RefusedKind.VALUE, "requests", name, text_of(limit) or "", at.mark, asked)
    for name in ("limits", "requests"):
        at_memory = container.get("resources", name, "memory")
        text = text_of(at_memory) or ""
        is_bytes = re.fullmatch(r"\d{1,6}|\d+m", text) is not None and text != "0"
        if at_memory is not None and is_bytes:
            yield Refused(RefusedKind.VALUE, f"{name}.memory", "memory", "a unit, such as Gi", at_memory.mark, text)


def _references(container: At) -> Iterator[Refused]:
    """`$(NAME)` in the value of a variable, where NAME comes only later: it stays as it is written."""
    entries = [(text_of(each.get("name")) or "", each) for each in container.items("env")]
    names = [name for name, _ in entries]
    if container.get("envFrom") is not None:
        return
    for at, (name, each) in enumerate(entries):
        value = each.get("value")
        for used in _REFERENCE.findall(text_of(value) or ""):
            if value is not None and used in names and used not in names[:at]:
                expected = f"{used} before {name}"
                yield Refused(RefusedKind.VALUE, "env", name, expected, value.mark, f"$({used})", says="order")


_NAMED = (
    (("configMap",), "name", "ConfigMap"),
    (("configMapRef",), "name", "ConfigMap"),
    (("configMapKeyRef",), "name", "ConfigMap"),
    (("persistentVolumeClaim",), "claimName", "PersistentVolumeClaim"),
    (("secretRef",), "name", "Secret"),
    (("secretKeyRef",), "name", "Secret"),
)


def _shared_names(objects: Sequence[At]) -> Iterator[Refused]:
    """References to objects whose name is nearly that of one in the file."""
    have: dict[str, dict[str, At]] = {}
    for root in objects:
        kind, name = text_of(root.get("kind")), text_of(root.get("metadata", "name"))
        if kind and name:
            have.setdefault(kind, {})[name] = root
    used: dict[str, set[str]] = {}
    found: list[tuple[str, str, At]] = []
    for root in objects:
        for pod, _ in _pods(root):
            for kind, at in _named(pod):
                name = text_of(at) or ""
                found.append((kind, name, at))
                used.setdefault(kind, set()).add(name)
    for kind, name, at in found:
        own = have.get(kind, {})
        free = [each for each in own if each not in used.get(kind, set())]
        near = difflib.get_close_matches(name, free, n=1, cutoff=CLOSE)
        is_only = len(free) == len(own) == 1 and kind == "ConfigMap"
        if own and name not in own and (near or is_only) and not _OPEN.search(name):
            yield Refused(RefusedKind.DANGLING, kind, name, near[0] if near else free[0], at.mark, name)
    maps = {
        name: {key for key, _ in (*root.pairs("data"), *root.pairs("binaryData"))}
        for name, root in have.get("ConfigMap", {}).items()
    }
    for root in objects:
        for pod, _ in _pods(root):
            yield from _keys(pod, maps)


def _named(pod: At) -> Iterator[tuple[str, At]]:
    """The objects that a pod names: (kind, place of the name)."""
    sources = [*pod.items("volumes")]
    for container in (*pod.items("initContainers"), *pod.items("containers")):
        sources += container.items("envFrom")
        sources += [value for each in container.items("env") if (value := each.get("valueFrom")) is not None]
    for source in sources:
        for path, field, kind in _NAMED:
            at = source.get(*path, field)
            if at is not None and text_of(at):
                yield kind, at


def _keys(pod: At, maps: dict[str, set[str]]) -> Iterator[Refused]:
    """Keys of a ConfigMap of the file that it does not have."""
    for container in (*pod.items("initContainers"), *pod.items("containers")):
        for each in container.items("env"):
            at, name = each.get("valueFrom", "configMapKeyRef", "key"), each.get("valueFrom", "configMapKeyRef", "name")
            yield from _key(at, maps.get(text_of(name) or ""))
    for volume in pod.items("volumes"):
        keys = maps.get(text_of(volume.get("configMap", "name")) or "")
        for item in volume.items("configMap", "items"):
            yield from _key(item.get("key"), keys)


def _key(at: At | None, keys: set[str] | None) -> Iterator[Refused]:
    key = text_of(at)
    if at is not None and key is not None and keys and key not in keys and not _OPEN.search(key):
        near = difflib.get_close_matches(key, sorted(keys), n=1, cutoff=0.0)
        yield Refused(RefusedKind.DANGLING, "ConfigMap", key, near[0], at.mark, key)
