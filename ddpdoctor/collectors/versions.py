"""Collects `versions` from the files of the installed packages; torch is never imported."""

from __future__ import annotations

import ast
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

from ddpdoctor.collectors import Missing
from ddpdoctor.collectors.elf import Dynamic, NotElf, read_dynamic, read_texts
from ddpdoctor.collectors.interpreter import Interpreter, environment_of, interpreter_of, script_python
from ddpdoctor.collectors.libraries import find_libcuda, find_nccl
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.versions import Package, TorchPlace, Versions
from ddpdoctor.system import process
from ddpdoctor.system.machine import Machine

__all__ = ["collect"]

MAX_BYTES = 1 << 20
ARCHS = re.compile(rb"\0((?:(?:sm|compute)_\d+[af]? ?){2,})\0")
"""The string that torch.cuda.get_arch_list() returns, compiled into libtorch_python.so."""
PIN = re.compile(r"^Requires-Dist: nvidia-nccl-cu\d+\s*\(?==\s*([\d.]+)", re.M)


def collect(machine: Machine, interpreter: Interpreter | None = None) -> Versions:
    """What is installed for the Python of this machine.

    Args:
        interpreter: the Python to examine instead of `machine.python`.

    Raises:
        Missing: that Python could not be queried.
    """
    try:
        python = interpreter or interpreter_of(machine)
    except (OSError, ValueError, process.LateError) as error:
        raise Missing(f"{machine.python}: {error}") from None
    gaps: list[Gap] = []
    torches = tuple(_torches(python.search_path))
    facts: dict[str, Any] = {}
    if torches:
        facts = _torch(machine, torches[0].path, gaps)
    libcuda = find_libcuda(machine.root, machine.environ)
    return Versions(
        python=python.version,
        python_path=python.path,
        torch=torches[0].version if torches else None,
        torch_path=torches[0].path if torches else None,
        torches=torches,
        nccl_packages=tuple(_packages(python.search_path, r"nvidia_nccl_cu\d+")),
        numpy=next((p.version for p in _packages(python.search_path, "numpy")), None),
        libcuda_path=libcuda[0] if libcuda else None,
        libcuda_version=libcuda[1] if libcuda else None,
        **facts,
        **_commands(machine, gaps),
        gaps=tuple(gaps),
    )


def _torches(search_path: Iterable[str]) -> Iterator[TorchPlace]:
    """The folders that `import torch` would find, each once, in the order of sys.path."""
    seen = set()
    for entry in search_path:
        path = os.path.join(entry or ".", "torch")
        real = os.path.realpath(path)
        if real not in seen and os.path.isfile(os.path.join(path, "__init__.py")):
            seen.add(real)
            yield TorchPlace(path, _constants(path).get("__version__"))


def _constants(torch: str) -> dict[str, Any]:
    """The constants that torch/version.py assigns, parsed without importing it; {} if unreadable."""
    try:
        tree = ast.parse(_read(os.path.join(torch, "version.py")))
    except (OSError, SyntaxError, ValueError):
        return {}
    constants = {}
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant):
            constants.update({target.id: value.value for target in targets if isinstance(target, ast.Name)})
    return constants


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(MAX_BYTES).decode("utf-8", "replace")


def _torch(machine: Machine, torch: str, gaps: list[Gap]) -> dict[str, Any]:
    """Facts from the files of one torch."""
    constants = _constants(torch)
    if "__version__" not in constants:
        gaps.append(Gap("versions.torch", f"{torch}/version.py has no version"))
    texts = {
        name: constants.get(key) for name, key in (("torch_cuda", "cuda"), ("torch_hip", "hip"), ("torch_xpu", "xpu"))
    }
    facts: dict[str, Any] = {name: value if isinstance(value, str) else None for name, value in texts.items()}
    facts["torch_git"] = constants.get("git_version")
    facts["torch_is_debug"] = constants.get("debug")
    facts["torch_abi"] = _abi(torch)
    if facts["torch_cuda"]:
        facts.update(_nccl(machine, torch, gaps))
        facts["torch_archs"] = _archs(torch, gaps)
        facts["nccl_required"] = _pin(torch)
    return facts


def _abi(torch: str) -> str | None:
    """`cpython-311` of torch/_C.cpython-311-x86_64-linux-gnu.so; None for the stable ABI or a broken installation."""
    names = os.listdir(torch)
    found = [match[1] for name in names if (match := re.match(r"_C\.(cpython-\d+t?)-.*\.so$", name))]
    return found[0] if len(found) == 1 else None


def _nccl(machine: Machine, torch: str, gaps: list[Gap]) -> dict[str, Any]:
    path = os.path.join(torch, "lib", "libtorch_cuda.so")
    try:
        dynamic = read_dynamic(path)
    except (OSError, NotElf) as error:
        gaps.append(Gap("versions.nccl_is_static", f"{path}: {error}"))
        dynamic = Dynamic()
        is_static = None
    else:
        is_static = not any(name.startswith("libnccl.so") for name in dynamic.needed)
    return {"nccl_is_static": is_static, "nccl_libraries": find_nccl(machine.root, machine.environ, torch, dynamic)}


def _archs(torch: str, gaps: list[Gap]) -> tuple[str, ...]:
    path = os.path.join(torch, "lib", "libtorch_python.so")
    try:
        matched = ARCHS.search(read_texts(path))
    except (OSError, NotElf) as error:
        gaps.append(Gap("versions.torch_archs", f"{path}: {error}", Why.NOT_HERE))
        return ()
    if matched is None:
        gaps.append(Gap("versions.torch_archs", f"{path} does not list its GPU architectures", Why.NOT_HERE))
        return ()
    return tuple(matched[1].decode().split())


def _pin(torch: str) -> str | None:
    """The NCCL version that torch's metadata pins; None for a build without a pin (conda, source)."""
    site = os.path.dirname(torch)
    for name in os.listdir(site):
        if re.fullmatch(r"torch-[^-]+\.dist-info", name):
            try:
                matched = PIN.search(_read(os.path.join(site, name, "METADATA")))
            except OSError:
                continue  # partly removed
            if matched:
                return matched[1]
    return None


def _packages(search_path: Iterable[str], name: str) -> Iterator[Package]:
    """The installed distributions whose normalized name matches, from their .dist-info folders."""
    pattern = re.compile(rf"({name})-([^-]+)\.dist-info", re.IGNORECASE)
    seen = set()
    for entry in search_path:
        try:
            names = os.listdir(entry or ".")
        except OSError:
            continue  # a zip file, or a missing folder: both are common on sys.path
        for found in filter(None, map(pattern.fullmatch, sorted(names))):
            if found[1] not in seen:
                seen.add(found[1])
                yield Package(found[1].replace("_", "-"), found[2])


def _packages_of(prefix: str) -> Iterator[str]:
    """The folders of packages of an environment; those of Debian's Python are called otherwise."""
    yield os.path.join(prefix, "lib", "python3", "dist-packages")
    for library in ("lib", "lib64", "local/lib"):
        folder = os.path.join(prefix, library)
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            if re.fullmatch(r"python\d+\.\d+", name):
                yield from (os.path.join(folder, name, each) for each in ("site-packages", "dist-packages"))


def _commands(machine: Machine, gaps: list[Gap]) -> dict[str, Any]:
    """The torchrun and the python that a shell would run, and their environments."""
    path = machine.environ.get("PATH", os.defpath)
    torchrun = shutil.which("torchrun", path=path)
    shell = shutil.which("python", path=path) or shutil.which("python3", path=path) or machine.python
    prefixes: dict[str, str | bool | None] = {}
    for name, ask in (("torchrun_prefix", torchrun), ("shell_prefix", shell)):
        if ask is None:
            continue
        try:
            python = script_python(ask, path) if name == "torchrun_prefix" else ask
            prefixes[name] = environment_of(python) if python else None
        except OSError as error:
            gaps.append(Gap(f"versions.{name}", f"{error.filename}: {error.strerror}", Why.NOT_HERE))
    prefix = prefixes.get("shell_prefix")
    if isinstance(prefix, str):
        prefixes["shell_has_torch"] = any(_torches(_packages_of(prefix)))
    return {"torchrun_path": torchrun, "shell_python": shell, **prefixes}
