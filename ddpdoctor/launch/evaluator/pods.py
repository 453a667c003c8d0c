"""The pods of a manifest: what each container of each pod is given, and what it starts."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from ddpdoctor.facts.launch.pod import Pod
from ddpdoctor.facts.launch.record import StartedScript
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.cluster import Allocation
from ddpdoctor.launch.evaluator.imagined_run import Place
from ddpdoctor.launch.evaluator.placed_commands import PlacedCommand
from ddpdoctor.launch.evaluator.scalars import Expansion, Manifest, expanded
from ddpdoctor.launch.evaluator.values import NODE, NOT_KNOWN, Origin, Value
from ddpdoctor.launch.manifests.pod_template import gpus_of
from ddpdoctor.launch.manifests.yaml_nodes import At, text_of
from ddpdoctor.light_dataclass import dataclass

__all__ = ["ConfigMaps", "ImaginedPod", "commands_of_pod", "config_maps"]

MOST_CONTAINERS = 8
LAUNCHER_NODE = 900
"""The number of a node on which no rank of its mpirun runs."""

SET_BY_OPERATORS = frozenset(
    (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"),
        *("JOB_COMPLETION_INDEX", "VK_TASK_INDEX", "VC_TASK_INDEX", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE"),
        *("LWS_LEADER_ADDRESS", "PET_NODE_RANK", "PET_NNODES", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR"),
        *("PET_MASTER_PORT", "PET_RDZV_ENDPOINT", "SLURM_PROCID", "SLURM_NODEID", "SLURM_NNODES", "SLURM_NTASKS"),
        *("SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        *("OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "PMI_SIZE"),
    )
)
"""Variables that say which pod of a job this is: no image can have set them. Any other variable an image may set."""


@dataclass(frozen=True, slots=True)
class ImaginedPod:
    """One pod as its operator makes it.

    `world` tells the jobs of one object apart. `spec` is the pod's spec, `containers` what replaces its containers. `before`
    are variables that the operator puts in front of the container's own, which then do not count; `after` those that it
    appends, which win. `fields` are the names, labels and annotations that `fieldRef` finds. `hosts` and `slots` are what
    its mpirun uses, `host_gpus` the GPUs of each of these hosts.
    """

    name: str
    spec: At
    world: str
    index: int = 0
    before: tuple[tuple[str, Value], ...] = ()
    after: tuple[tuple[str, Value], ...] = ()
    defaults: tuple[tuple[str, Value], ...] = ()
    """What it appends unless the container has the variable."""
    fields: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[At, ...] | None = None
    hosts: tuple[str, ...] = ()
    slots: int | None = None
    host_gpus: int | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    """Files that the operator mounts."""
    pod: Pod | None = None
    """What rules on pods need to know of its job."""
    is_passive: bool = False
    """It may wait for others to start something in it."""
    entrypoint: At | None = None
    """A shell text that runs instead of the containers' commands."""


ConfigMaps = Mapping[str, Mapping[str, At]]


def config_maps(roots: Iterable[At]) -> ConfigMaps:
    """The ConfigMaps of a manifest by their names."""
    found: dict[str, dict[str, At]] = {}
    for root in roots:
        for each in (root, *root.items("items")):
            name = text_of(each.get("metadata", "name"))
            if text_of(each.get("kind")) == "ConfigMap" and name is not None:
                found[name] = dict(each.pairs("data"))
    return found


@dataclass(frozen=True)
class _MountedFiles:
    """The files of a container that the manifest itself gives it."""

    texts: Mapping[str, str]

    def script(self, path: str) -> StartedScript | None:
        return None

    def text(self, path: str) -> str | None:
        return self.texts.get(posixpath.normpath(path))

    def is_folder(self, path: str) -> bool:
        folder = posixpath.normpath(path) + "/"
        return any(name.startswith(folder) for name in self.texts)


def commands_of_pod(pod: ImaginedPod, manifest: Manifest, maps: ConfigMaps) -> Iterator[PlacedCommand]:
    """What the containers of a pod execute."""
    containers = list(pod.spec.items("containers")) if pod.containers is None else list(pod.containers)
    if pod.entrypoint is not None:
        containers = containers[:1]
    for container in containers[:MOST_CONTAINERS]:
        made = _command(pod, container, manifest, maps)
        if made is not None:
            yield made


def _command(pod: ImaginedPod, container: At, manifest: Manifest, maps: ConfigMaps) -> PlacedCommand | None:
    items = [*container.items("command"), *container.items("args")]
    if pod.entrypoint is not None:
        items = [pod.entrypoint]
    if not items or any(text_of(item) is None for item in items):
        return None
    environ, is_open = _environ(pod, container, manifest, maps)
    results = [expanded(manifest.value(item), environ) for item in items]
    argv = tuple(result.value for result in results)
    texts, inside = _mounted(pod, container, manifest, maps)
    inside.update(
        (result.value.text, manifest.inside(item, result))
        for item, result in zip(items, results, strict=True)
        if "\n" in result.value.text or " " in result.value.text
    )
    if pod.entrypoint is not None:
        argv = (Value("sh"), Value("-c"), *argv)
    is_host_network = text_of(pod.spec.get("hostNetwork")) == "true"
    place = Place(
        pod.name,
        LAUNCHER_NODE if pod.hosts else pod.index,
        gpus=gpus_of(container) or gpus_of(container, "resourcesPerNode"),
        hostname=UNKNOWN if is_host_network else None,
        unset=frozenset() if is_open else SET_BY_OPERATORS - environ.keys(),
    )
    return PlacedCommand(
        place=place,
        argv=argv,
        environ=environ,
        origin=_whole(manifest, items),
        folder=text_of(container.get("workingDir")),
        allocation=_allocation(pod),
        files=_MountedFiles({**texts, **pod.texts}),
        inside=inside,
    )


def _allocation(pod: ImaginedPod) -> Allocation:
    """Where an mpirun in the pod starts ranks: on the hosts of its operator, else in the pod."""
    if not pod.hosts:
        return Allocation((pod.name,))
    return Allocation(hosts=pod.hosts, tasks_per_node=pod.slots, gpus_per_node=pod.host_gpus)


def _whole(manifest: Manifest, items: Sequence[At]) -> Origin:
    first, last = manifest.origin(items[0]), manifest.origin(items[-1])
    return Origin(first.file, first.start, max(first.end, last.end))


def _environ(pod: ImaginedPod, container: At, manifest: Manifest, maps: ConfigMaps) -> tuple[dict[str, Value], bool]:
    """The container's variables in the kubelet's order; and whether something else may have set more.

    A reference sees only what precedes it (kubernetes/pkg/kubelet/kubelet_pods.go: `makeEnvironmentVariables`).
    """
    environ: dict[str, Value] = {}
    is_open = False
    for source in container.items("envFrom"):
        found = maps.get(text_of(source.get("configMapRef", "name")) or "")
        prefix = text_of(source.get("prefix")) or ""
        is_open |= found is None
        environ.update((prefix + key, manifest.value(at)) for key, at in (found or {}).items())
    environ.update(pod.before)
    reserved = {name for name, _ in pod.before}
    for each in container.items("env"):
        name = text_of(each.get("name"))
        if name is not None and name not in reserved:
            environ[name] = _given(pod, each, container, environ, manifest, maps)
    environ.update(pod.after)
    environ.update((name, value) for name, value in pod.defaults if name not in environ)
    return environ, is_open


def _given(
    pod: ImaginedPod, each: At, container: At, environ: Mapping[str, Value], manifest: Manifest, maps: ConfigMaps
) -> Value:
    """The value of an entry of `env`."""
    origin = manifest.origin(each)
    source = each.get("valueFrom")
    if source is None:
        value = each.get("value")
        return expanded(Value("", (origin,)) if value is None else manifest.value(value), environ).value
    key = source.get("configMapKeyRef")
    if key is not None:
        found = maps.get(text_of(key.get("name")) or "", {}).get(text_of(key.get("key")) or "")
        return Value(UNKNOWN, (origin,)) if found is None else manifest.value(found)
    path = text_of(source.get("fieldRef", "fieldPath"))
    if path is not None:
        return _field(pod, path, origin)
    resource = text_of(source.get("resourceFieldRef", "resource")) or ""
    count = gpus_of(container) if resource.endswith("/gpu") else None
    return Value(UNKNOWN if count is None else str(count), (origin,))


def _field(pod: ImaginedPod, path: str, origin: Origin) -> Value:
    """What `fieldRef` gives (kubernetes/pkg/fieldpath)."""
    varies = frozenset((NODE,))
    if path == "metadata.name":
        return Value(pod.name, (origin,), varies)
    if path == "status.podIP" and pod.index < LAUNCHER_NODE:
        return Value(f"10.0.{pod.index // 250}.{pod.index % 250 + 1}", (origin,), varies)
    known = pod.fields.get(path.replace('"', "'"))
    return Value(UNKNOWN, (origin,)) if known is None else Value(known, (origin,), varies)


def _mounted(
    pod: ImaginedPod, container: At, manifest: Manifest, maps: ConfigMaps
) -> tuple[dict[str, str], dict[str, Callable[[int, int], Origin]]]:
    """The files that ConfigMaps of the same manifest put into a container, and where their characters are written."""
    texts: dict[str, str] = {}
    inside: dict[str, Callable[[int, int], Origin]] = {}
    volumes = {text_of(volume.get("name")): volume for volume in pod.spec.items("volumes")}
    for mount in container.items("volumeMounts"):
        path, volume = text_of(mount.get("mountPath")), volumes.get(text_of(mount.get("name")))
        source = None if volume is None else volume.get("configMap")
        data = None if source is None else maps.get(text_of(source.get("name")) or "")
        if path is None or data is None or source is None:
            continue
        renamed = [(text_of(i.get("key")), text_of(i.get("path"))) for i in source.items("items")]
        names = {key: to for key, to in renamed if key and to} if renamed else {key: key for key in data}
        part = text_of(mount.get("subPath"))
        for key, to in names.items():
            at = data.get(key)
            text = text_of(at)
            if at is None or text is None or (part is not None and part != to):
                continue
            texts[posixpath.normpath(path if part is not None else posixpath.join(path, to))] = text
            inside[text] = manifest.inside(at, Expansion(NOT_KNOWN))
    return texts, inside
