"""Which libnccl.so.2 and libcuda.so.1 the loader would load, searched like ld.so does, without loading anything."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

from ddpdoctor.collectors.elf import Dynamic, NotElf, read_texts
from ddpdoctor.facts.versions import NcclLibrary
from ddpdoctor.system.machine import Root

__all__ = ["find_libcuda", "find_nccl", "nccl_version"]

NCCL = "libnccl.so.2"
SYSTEM_FOLDERS = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)


def find_nccl(root: Root, environ: Mapping[str, str], torch: str, dynamic: Dynamic) -> tuple[NcclLibrary, ...]:
    """Every libnccl.so.2 on the search path of libtorch_cuda.so, in the loader's order; the first one would be loaded.

    Args:
        torch: torch's folder.
        dynamic: that of libtorch_cuda.so. DT_RPATH, which the wheels use, is searched before LD_LIBRARY_PATH, DT_RUNPATH after.
    """
    libraries: dict[str, NcclLibrary] = {}
    for path, source in _nccl_paths(root, environ, torch, dynamic):
        real = os.path.realpath(path)
        if real not in libraries and os.path.isfile(real):
            libraries[real] = _library(path, source, real, () if libraries else tuple(environ))
    return tuple(libraries.values())


def _library(path: str, source: str, real: str, names: tuple[str, ...]) -> NcclLibrary:
    """A library with its version, and which of these variables it reads: their names are texts in it."""
    wanted = sorted(name for name in names if name.startswith("NCCL_"))
    texts = _texts(real) if wanted else None
    version = nccl_version(real, texts)
    reads = None if texts is None else tuple(name for name in wanted if re.search(rf"\b{name}\0".encode(), texts))
    return NcclLibrary(path, source, version, reads)


def _texts(path: str) -> bytes | None:
    """The library's texts; None if it cannot be read."""
    try:
        return read_texts(path)
    except (OSError, NotElf):
        return None


def _nccl_paths(root: Root, environ: Mapping[str, str], torch: str, dynamic: Dynamic) -> Iterator[tuple[str, str]]:
    for path in re.split(r"[:\s]+", environ.get("LD_PRELOAD", "")):
        if "libnccl.so" in os.path.basename(path):
            yield root.at(path), "LD_PRELOAD"
    if not dynamic.runpath:
        yield from _in(_folders(torch, dynamic.rpath), "RPATH")
    yield from _in(_library_path(root, environ), "LD_LIBRARY_PATH")
    yield from _in(_folders(torch, dynamic.runpath), "RUNPATH")
    yield from ((root.at(path), "ld.so.cache") for path in _cached(root, NCCL))
    yield from _in(map(root.at, SYSTEM_FOLDERS), "system")
    # torch itself opens this one when the loader found none (torch/__init__.py:_preload_cuda_deps).
    yield os.path.join(os.path.dirname(torch), "nvidia", "nccl", "lib", NCCL), "wheel"
    if environ.get("CONDA_PREFIX"):
        yield os.path.join(root.at(environ["CONDA_PREFIX"]), "lib", NCCL), "conda"


def _in(folders: Iterable[str], source: str) -> Iterator[tuple[str, str]]:
    yield from ((os.path.join(folder, NCCL), source) for folder in folders)


def _folders(torch: str, paths: Iterable[str]) -> Iterator[str]:
    origin = os.path.join(torch, "lib")
    for path in paths:
        yield os.path.normpath(path.replace("$ORIGIN", origin).replace("${ORIGIN}", origin))


def _library_path(root: Root, environ: Mapping[str, str]) -> Iterator[str]:
    yield from (root.at(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder)


def _cached(root: Root, name: str) -> list[str]:
    """The paths of a library in /etc/ld.so.cache, in its order: they are plain strings in the file."""
    try:
        with open(root.at("/etc/ld.so.cache"), "rb") as file:
            cache = file.read(8 << 20)
    except OSError:
        return []  # no cache: the loader continues with the system folders
    pattern = rb"\0(/[^\0]*/" + re.escape(name.encode()) + rb")(?=\0)"
    return [os.fsdecode(path) for path in dict.fromkeys(re.findall(pattern, cache))]


def nccl_version(path: str, texts: bytes | None = None) -> str | None:
    """The version in a library's file name or in its strings ("NCCL version 2.21.5"), None if neither has it.

    `texts` are its texts if they were read already.
    """
    named = re.search(r"\.so\.(\d+\.\d+\.\d+)$", path)
    if named:
        return named[1]
    texts = _texts(path) if texts is None else texts
    in_strings = re.search(rb"NCCL version (\d+\.\d+\.\d+)", texts or b"")
    return in_strings[1].decode() if in_strings else None


def find_libcuda(root: Root, environ: Mapping[str, str]) -> tuple[str, str | None] | None:
    """(path, driver version in its real name) of the libcuda.so.1 that would be loaded, None without one."""
    paths = [os.path.join(folder, "libcuda.so.1") for folder in _library_path(root, environ)]
    paths += [root.at(path) for path in _cached(root, "libcuda.so.1")]
    paths += [os.path.join(root.at(folder), "libcuda.so.1") for folder in SYSTEM_FOLDERS]
    path = next((p for p in paths if os.path.isfile(p)), None)
    if path is None:
        return None
    named = re.search(r"libcuda\.so\.(\d+\.\d+(\.\d+)?)$", os.path.realpath(path))
    return path, named[1] if named else None
