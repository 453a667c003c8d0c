"""Objects of a manifest that their controller refuses, or whose pods lack what it would have given them.

Sources: kubernetes, pkg/apis/batch/validation and pkg/apis/apps/validation (restartPolicy of the pod template);
volcano-sh/volcano, pkg/controllers/job/plugins/svc (VC_*_HOSTS, VC_*_NUM) and distributed-framework (plugins that need svc).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddpdoctor.facts.submission import RestartPolicy, VolcanoNames
from ddpdoctor.launch.manifests.yaml_nodes import At, text_of

__all__ = ["restart_policies", "volcano_names"]

_TEMPLATES = {
    "Job": ("spec", "template", "spec"),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
    "Deployment": ("spec", "template", "spec"),
    "ReplicaSet": ("spec", "template", "spec"),
    "StatefulSet": ("spec", "template", "spec"),
    "DaemonSet": ("spec", "template", "spec"),
}
_WITH_NAMES = {"svc", "pytorch", "tensorflow", "mpi", "ray", "hcclrank"}
"""Plugins of Volcano that give pods names, or bring in the one that does."""
_OF_PLUGIN = re.compile(r"\$\{?(VC_\w+_(?:HOSTS|NUM))\b|\$\((VC_\w+_(?:HOSTS|NUM))\)")


def restart_policies(objects: Sequence[At]) -> Iterator[RestartPolicy]:
    """The restartPolicy of the pods of every object of Kubernetes itself that allows only some."""
    for each in objects:
        kind, group = text_of(each.get("kind")) or "", text_of(each.get("apiVersion")) or ""
        spec = each.get(*_TEMPLATES[kind]) if kind in _TEMPLATES else None
        if spec is None or not group.startswith(("batch/", "apps/")):
            continue
        policy = spec.get("restartPolicy")
        place = policy or spec
        yield RestartPolicy(kind, text_of(each.get("metadata", "name")) or "", text_of(policy) or "", place.mark)


def volcano_names(objects: Sequence[At]) -> Iterator[VolcanoNames]:
    """The Jobs of Volcano whose pods use a variable of the plugin `svc`, which they do not switch on."""
    for each in objects:
        spec = each.get("spec")
        if not (text_of(each.get("apiVersion")) or "").startswith("batch.volcano.sh") or spec is None:
            continue
        if {name for name, _ in spec.pairs("plugins")} & _WITH_NAMES:
            continue
        used = next((found for task in spec.items("tasks") for found in _variables(task)), None)
        if used is not None:
            place = spec.get("plugins") or spec
            yield VolcanoNames(text_of(each.get("metadata", "name")) or "", used, place.mark)


def _variables(task: At) -> Iterator[str]:
    """The variables of the plugin that the containers of a task use and do not set themselves."""
    for container in task.items("template", "spec", "containers"):
        own = {text_of(entry.get("name")) for entry in container.items("env")}
        if container.get("envFrom") is not None:
            continue
        words = [*container.items("command"), *container.items("args")]
        values = [value for entry in container.items("env") if (value := entry.get("value")) is not None]
        for item in (*words, *values):
            for found in _OF_PLUGIN.finditer(text_of(item) or ""):
                name = found[1] or found[2]
                is_set = re.search(rf"(?:^|[\s;&]){name}=", text_of(item) or "") is not None
                if name not in own and not is_set:
                    yield name
