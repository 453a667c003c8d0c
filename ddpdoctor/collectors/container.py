"""Which container runtime, if any, runs this process, and the evidence for it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.system.machine import Machine

__all__ = ["find_container"]

MARKS = (
    (r"kubepods", "kubernetes"),
    (r"/libpod-|/libpod/", "podman"),
    (r"/docker/[0-9a-f]{12}|docker-[0-9a-f]{12}", "docker"),
    (r"cri-containerd|/containerd/", "containerd"),
    (r"/lxc(\.payload\.|/)", "lxc"),
    (r"machine\.slice/.*nspawn", "systemd-nspawn"),
)
"""How the runtimes name their cgroups."""
GVISOR = "SMP Sun Jan 10 15:06:54 PST 2016"
"""The kernel build that gVisor always reports."""


def find_container(machine: Machine) -> tuple[str, str]:
    """The runtime and the evidence, ("", "") outside of a container. The most specific evidence counts."""
    return next(_signs(machine), ("", ""))


def _signs(machine: Machine) -> Iterator[tuple[str, str]]:
    root, environ = machine.root, machine.environ
    if environ.get("KUBERNETES_SERVICE_HOST"):
        yield "kubernetes", "KUBERNETES_SERVICE_HOST is set"
    if root.exists("/var/run/secrets/kubernetes.io/serviceaccount"):
        yield "kubernetes", "/var/run/secrets/kubernetes.io/serviceaccount"
    for name, runtime in (("APPTAINER_CONTAINER", "apptainer"), ("SINGULARITY_CONTAINER", "singularity")):
        if environ.get(name):
            yield runtime, f"{name} is set"
    if environ.get("ENROOT_ROOTFS") or environ.get("container") == "enroot":
        yield "enroot", "ENROOT_ROOTFS or container=enroot is set"
    if root.exists("/run/.containerenv"):
        yield "podman", "/run/.containerenv"
    if GVISOR in (root.line("/proc/version") or ""):
        yield "gvisor", "/proc/version is gVisor's"
    if root.exists("/.dockerenv"):
        yield "docker", "/.dockerenv"
    if root.exists("/.singularity.d"):
        yield "apptainer", "/.singularity.d"
    yield from _systemd(machine)
    for path in ("/proc/self/cgroup", "/proc/1/cgroup"):
        text = root.line(path) or ""
        yield from ((runtime, path) for mark, runtime in MARKS if re.search(mark, text))
    if "microsoft" in (root.line("/proc/sys/kernel/osrelease") or "").lower():
        yield "wsl", "/proc/sys/kernel/osrelease"


def _systemd(machine: Machine) -> Iterator[tuple[str, str]]:
    """systemd's convention: the container manager writes its name to a file, and sets `container=` for process 1."""
    line = machine.root.line("/run/systemd/container")
    if line:
        yield line, "/run/systemd/container"
    if machine.environ.get("container"):
        yield machine.environ["container"], "container= is set"
    match = re.search(r"(?:^|\0)container=([^\0]+)", machine.root.line("/proc/1/environ") or "")
    if match:
        yield match[1], "/proc/1/environ"
