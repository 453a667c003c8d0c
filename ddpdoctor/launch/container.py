"""What the options of `docker run` and similar commands give a container: GPUs, shared memory, CPUs, memory, network,
devices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.reading import Given
from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.facts.launch.words import UNKNOWN, Word
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Container", "bytes_of", "container_of", "wants_rdma"]

ENGINES = ("docker", "podman", "podman-hpc", "nerdctl")
DEFAULT_SHM_BYTES = 64 << 20
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class Container:
    """A container that a line starts. `run` is the word of the subcommand; None and () stand for what the line does not
    set.

    `gpus` is the number of GPUs, 0 if it is unknown, None without a GPU. `shm_bytes` is the size of its own /dev/shm,
    None if it uses the host's or a mounted one. `ports` are those published on the host.
    """

    layer: Layer
    run: Word
    gpus: int | None
    shm_bytes: int | None
    shm: Given | None
    memory: Given | None
    cpus: Given | None
    cpu_set: Given | None
    ports: tuple[int, ...]
    is_bridged: bool
    has_infiniband: bool
    may_lock_memory: bool


def container_of(line: LaunchLine) -> Container | None:
    """The container of the line's innermost program; None without one, or if an unknown word may contain its options."""
    layer = line.layer(LauncherKind.CONTAINER)
    if layer is None or layer.name not in ENGINES or layer.reading.is_open:
        return None
    run = next((word for word in layer.own[1:] if word.text == "run"), None)
    if run is None or "compose" in {word.text for word in layer.own}:
        return None
    shm = _last(layer, "--shm-size")
    devices = _values(layer, "--device")
    privileged = _is_on(layer, "--privileged")
    network = (_values(layer, "--network", "--net") or ["bridge"])[-1]
    return Container(
        layer=layer,
        run=run,
        gpus=_gpus(layer, devices),
        shm_bytes=_shm_bytes(layer, shm),
        shm=shm,
        memory=_last(layer, "-m", "--memory"),
        cpus=_last(layer, "--cpus"),
        cpu_set=_last(layer, "--cpuset-cpus"),
        ports=tuple(_ports(layer)),
        is_bridged=network in ("bridge", "default", "slirp4netns", "pasta") and layer.name != "podman-hpc",
        has_infiniband=privileged or any(d.startswith("/dev/infiniband") or d == "/dev" for d in devices),
        may_lock_memory=any(re.match(r"memlock=(-1|unlimited)", v) for v in _values(layer, "--ulimit")),
    )


def _last(layer: Layer, *flags: str) -> Given | None:
    return next((g for g in reversed(layer.reading.given) if g.flag in flags), None)


def _values(layer: Layer, *flags: str) -> list[str]:
    return [g.value or "" for g in layer.reading.given if g.flag in flags]


def _is_on(layer: Layer, flag: str) -> bool:
    given = _last(layer, flag)
    return given is not None and given.value not in ("false", "0")


def _gpus(layer: Layer, devices: list[str]) -> int | None:
    given = _values(layer, "--gpus")
    if given:
        text = given[-1].strip("\"'")
        if text.isdigit():
            return int(text)
        listed = re.search(r"device=([\w,-]+)", text)
        return len(listed[1].split(",")) if listed and UNKNOWN not in text else 0
    named = [d for d in devices if d.startswith("nvidia.com/gpu=")]
    if named:
        return 0 if "nvidia.com/gpu=all" in named else len(named)
    return 0 if "nvidia" in _values(layer, "--runtime") else None


def _shm_bytes(layer: Layer, shm: Given | None) -> int | None:
    """The size of its own /dev/shm; None for the host's, a mounted one, or an unknown one."""
    ipc = _values(layer, "--ipc")
    mounts = " ".join(_values(layer, "-v", "--volume", "--mount", "--tmpfs"))
    if (ipc and ipc[-1] not in ("private", "shareable", "none")) or "/dev/shm" in mounts:
        return None
    return DEFAULT_SHM_BYTES if shm is None else bytes_of(shm.value)


def bytes_of(text: str | None, unit: str = "") -> int | None:
    """A size such as `16g`, `64m` or `1.5GiB` in bytes; `unit` is that of a bare number. None if it is not a size."""
    match = _SIZE.fullmatch((text or "").strip())
    return int(float(match[1]) * _UNITS[match[2].lower() or unit]) if match else None


def _ports(layer: Layer) -> list[int]:
    ports: list[int] = []
    for value in _values(layer, "-p", "--publish"):
        match = re.fullmatch(r"(?:\d+\.[\d.]+:)?(?:(\d+)(?:-(\d+))?:)?\d+(?:-\d+)?(?:/tcp)?", value)
        if match and match[1]:
            ports += range(int(match[1]), min(int(match[2] or match[1]), 65535) + 1)
    return ports


def wants_rdma(environ: Mapping[str, str]) -> str | None:
    """The variable that requests RDMA, as `NAME=value`; None without one."""
    if environ.get("NCCL_IB_DISABLE") == "1":
        return None
    for name in ("NCCL_IB_HCA", "NCCL_NET", "FI_PROVIDER"):
        value = environ.get(name, "")
        if value and (name == "NCCL_IB_HCA" or value.lower() in ("ib", "efa", "aws libfabric", "ofi")):
            return f"{name}={value.replace(UNKNOWN, '…')}"
    return None
