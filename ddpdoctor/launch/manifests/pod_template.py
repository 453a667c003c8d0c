"""One container of a pod template: GPUs, CPUs, memory, shared memory, RDMA, the network."""

from __future__ import annotations

import re
from dataclasses import replace

from ddpdoctor.facts.launch.pod import Pod
from ddpdoctor.launch.manifests.yaml_nodes import At, number, size, text_of

__all__ = ["described", "gpus_of"]

_GPU = re.compile(r"(nvidia\.com|amd\.com|gpu\.intel\.com)/(gpu|mig-.*|i915)$")
_RDMA = re.compile(r"rdma|efa|hca|infiniband|roce|mlnx|sriov|hostdev|networking\.gke\.io|(^|[/_-])ib([_-]|$)")
_MESHES = {"sidecar.istio.io/inject": ("true",), "linkerd.io/inject": ("enabled", "ingress")}


def described(known: Pod, template: At, spec: At, container: At) -> Pod:
    """The pod with the GPUs, shared memory and network of its spec."""
    gpus = gpus_of(container)
    host_network = spec.get("hostNetwork")
    mesh = _mesh(template)
    pod = replace(
        known,
        gpus=gpus,
        host_network=text_of(host_network) == "true",
        host_network_at=None if host_network is None else host_network.mark,
        dns_policy=text_of(spec.get("dnsPolicy")),
        is_meshed=mesh is not None,
        mesh_at=None if mesh is None else mesh.mark,
        at=container.mark,
        has_rdma=_has_rdma(spec, container),
    )
    return _with_shm(_with_limits(pod, container), spec, container)


def _with_limits(pod: Pod, container: At) -> Pod:
    """The limits of CPUs and memory."""
    cpu, memory = container.get("resources", "limits", "cpu"), container.get("resources", "limits", "memory")
    return replace(
        pod,
        cpus=_cpus(cpu),
        cpus_at=None if cpu is None else cpu.mark,
        memory_bytes=size(memory),
        memory_at=None if memory is None else memory.mark,
    )


def _cpus(at: At | None) -> int | None:
    """Whole CPUs of `4`, `4.5` or `4500m`."""
    match = re.fullmatch(r"(\d{1,6})(?:\.\d+)?(m?)", text_of(at) or "")
    return None if match is None else int(match[1]) // 1000 if match[2] else int(match[1])


def _has_rdma(spec: At, container: At) -> bool:
    """A resource of a device plugin, the device folder of the host, or a privileged container."""
    if text_of(container.get("securityContext", "privileged")) == "true":
        return True
    added = [text_of(each) for each in container.items("securityContext", "capabilities", "add")]
    if text_of(spec.get("hostNetwork")) == "true" and "IPC_LOCK" in added:  # a hook of the runtime gives the devices
        return True
    names = [key for kind in ("limits", "requests") for key, _ in container.pairs("resources", kind)]
    if any(_RDMA.search(name) for name in names):
        return True
    return any((text_of(v.get("hostPath", "path")) or "").startswith("/dev/infiniband") for v in spec.items("volumes"))


def gpus_of(container: At, name: str = "resources") -> int | None:
    for kind in ("limits", "requests"):
        for key, value in container.pairs(name, kind):
            if _GPU.match(key):
                return number(value)
    return None


def _mesh(template: At) -> At | None:
    for place in ("annotations", "labels"):
        for key, value in template.pairs("metadata", place):
            if text_of(value) in _MESHES.get(key, ()):
                return value
    return None


def _with_shm(pod: Pod, spec: At, container: At) -> Pod:
    if text_of(spec.get("hostIPC")) == "true":
        return replace(pod, has_shm=True)
    mount = next(
        (m for m in container.items("volumeMounts") if (text_of(m.get("mountPath")) or "").rstrip("/") == "/dev/shm"),
        None,
    )
    if mount is None:
        return pod
    name = text_of(mount.get("name"))
    volume = next((v for v in spec.items("volumes") if text_of(v.get("name")) == name), None)
    empty = None if volume is None else volume.get("emptyDir")
    if volume is None or empty is None:
        return replace(pod, has_shm=True)
    limit = empty.get("sizeLimit")
    place = limit or volume
    memory = text_of(empty.get("medium")) == "Memory"
    return replace(pod, has_shm=True, shm_bytes=size(limit), in_memory=memory, shm_at=place.mark)
