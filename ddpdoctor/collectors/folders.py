"""The folders that jobs write to: /dev/shm, the temporary folder, and the build folder of torch's extensions."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator

from ddpdoctor.collectors.kernel import Kernel
from ddpdoctor.facts.host import ExtensionLock, Folder, Leftover
from ddpdoctor.system.machine import Machine, Root

__all__ = ["extension_locks", "mount_of", "shm_leftovers", "temporary_folder"]

MOST_FILES = 20_000
MOST_FOLDERS = 500
NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "9p", "fuse")
TORCH_FILE = re.compile(r"torch_(\d+)_")
"""torch names shared memory files after the process that created them (torch/csrc/StorageSharing.cpp)."""


def mount_of(root: Root, path: str) -> tuple[str, str] | None:
    """(mount point, file system) of `path`, from /proc/self/mounts; None when that cannot be read."""
    best: tuple[str, str] | None = None
    for line in (root.line("/proc/self/mounts") or "").splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= len(best[0])):
            best = point, fields[2]
    return best


def shm_leftovers(root: Root, shares_processes: bool) -> tuple[Leftover, ...]:
    """The files that NCCL and torch left in /dev/shm, by maker and owner.

    Args:
        shares_processes: the makers would be visible in /proc, so a missing one is dead.
    """
    files: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for name in root.names("/dev/shm")[:MOST_FILES]:
        maker = "nccl" if name.startswith("nccl-") else "torch" if name.startswith("torch_") else None
        if maker is None:
            continue
        try:
            size = os.lstat(root.at(f"/dev/shm/{name}")).st_blocks * 512
        except OSError:
            continue  # it was removed in between
        key = maker, _owner(root, name) if shares_processes else "unknown"
        files[key] += 1
        sizes[key] += size
    return tuple(Leftover(*key, files[key], sizes[key]) for key in sorted(files))


def _owner(root: Root, name: str) -> str:
    match = TORCH_FILE.match(name)
    if match is None:
        return "unknown"
    return "alive" if root.exists(f"/proc/{match[1]}") else "dead"


def temporary_folder(machine: Machine, kernel: Kernel) -> Folder:
    """The folder that tempfile would try first: TMPDIR, TEMP or TMP, else /tmp."""
    named = (machine.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    path = next((name for name in named if name), "/tmp")
    real = machine.root.at(path)
    if not os.path.isdir(real):
        return Folder(path, exists=False)
    return Folder(path, True, os.access(real, os.W_OK | os.X_OK), kernel.space(real).free_bytes)


def extension_locks(machine: Machine, is_container: bool) -> tuple[ExtensionLock, ...]:
    """The build locks of torch.utils.cpp_extension, with the process that holds each lock."""
    root, base = machine.root, _extensions_folder(machine)
    if base is None:
        return ()
    paths = list(_lock_files(root, base))
    holders = dict(_holders(root)) if paths else {}
    mount = mount_of(root, base)
    is_network = mount is not None and mount[1].partition(".")[0] in NETWORK_FILE_SYSTEMS
    locks = []
    for path in paths:
        try:
            age = max(0.0, time.time() - os.stat(root.at(path)).st_mtime)
        except OSError:
            continue  # it was released in between
        locks.append(ExtensionLock(path, round(age, 1), holders.get(path), not (is_network or is_container)))
    return tuple(locks)


def _extensions_folder(machine: Machine) -> str | None:
    """The same folder as torch.utils.cpp_extension.get_default_build_root."""
    environ = machine.environ
    if environ.get("TORCH_EXTENSIONS_DIR"):
        return environ["TORCH_EXTENSIONS_DIR"]
    cache = environ.get("XDG_CACHE_HOME") or (f"{environ['HOME']}/.cache" if environ.get("HOME") else None)
    return f"{cache}/torch_extensions" if cache else None


def _lock_files(root: Root, base: str) -> Iterator[str]:
    """BASE/extension/lock and BASE/py311_cu124/extension/lock."""
    for first in root.names(base)[:MOST_FOLDERS]:
        names = root.names(f"{base}/{first}")[:MOST_FOLDERS]
        if "lock" in names:
            yield f"{base}/{first}/lock"
        yield from (f"{base}/{first}/{name}/lock" for name in names if root.exists(f"{base}/{first}/{name}/lock"))


def _holders(root: Root) -> Iterator[tuple[str, int]]:
    """(path, process) of every open file named `lock` that is visible to this user."""
    for pid in root.names("/proc"):
        if not pid.isdecimal():
            continue
        for number in root.names(f"/proc/{pid}/fd"):
            try:
                path = os.readlink(root.at(f"/proc/{pid}/fd/{number}"))
            except OSError:
                continue  # the process ended, or closed it, in between
            if path.endswith("/lock"):
                yield path, int(pid)
