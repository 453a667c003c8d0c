"""The torch that parses a launch line: which one would run, and the options in its source. It is never imported."""

from __future__ import annotations

import ast
import importlib.util
import os
import platform
import re
import shutil
import sys

from ddpdoctor.facts.torchrun_options import NEWEST, Option, learn, version_of
from ddpdoctor.system.machine import Machine

__all__ = ["find_torch", "option_table", "torch_of", "version_in"]


def torch_of(machine: Machine, given: str | None) -> tuple[str, str, str]:
    """The version of the torch that parses the line, its origin, and its Python's version."""
    if given is not None:
        return given, "option", platform.python_version()
    found = find_torch(machine)
    if found is None:
        return f"{NEWEST[0]}.{NEWEST[1]}", "assumed", platform.python_version()
    version, folder = found
    own = folder.startswith(sys.prefix)
    near = re.search(r"/python(\d+\.\d+)/", folder)
    origin = "source" if _learned(version, folder) else "installed"
    return version, origin, platform.python_version() if own or near is None else near[1]


def _learned(version: str, folder: str) -> bool:
    """Whether the options of a torch newer than the table were read from its source."""
    known = version_of(version) or NEWEST
    if known <= NEWEST:
        return False
    try:
        learn(known, option_table(os.path.join(folder, "distributed", "run.py")).values())
    except (OSError, SyntaxError, ValueError, StopIteration):
        return False
    return True


def find_torch(machine: Machine) -> tuple[str, str] | None:
    """Version and folder of the torch whose torchrun would run: the one on PATH, else this Python's. Never imported."""
    found = ((version_in(folder), folder) for folder in _torch_folders(machine))
    return next(((version, folder) for version, folder in found if version is not None), None)


def version_in(folder: str) -> str | None:
    """The version of the torch in a folder, None if unknown."""
    try:
        with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
            match = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)", file.read(65536), re.MULTILINE)
    except OSError:
        return None
    return match[1] if match and version_of(match[1]) else None


def _torch_folders(machine: Machine) -> list[str]:
    folders = []
    torchrun = shutil.which("torchrun", path=machine.environ.get("PATH"))
    if torchrun is not None:
        library = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(torchrun))), "lib")
        for name in _names(library):
            if re.fullmatch(r"python\d+\.\d+", name):
                folders.append(os.path.join(library, name, "site-packages", "torch"))
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.submodule_search_locations:
        folders += list(spec.submodule_search_locations)
    return folders


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def option_table(run_py: str) -> dict[str, Option]:
    """The options that torch's own `distributed/run.py` declares, read from its source.

    Raises:
        OSError: the file cannot be read.
        SyntaxError: it is not Python.
    """
    with open(run_py, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    parser = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "get_args_parser")
    found = {}
    for call in ast.walk(parser):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            option = _declared(call)
            if option is not None:
                found[option.dest] = option
    return found


def _declared(call: ast.Call) -> Option | None:
    flags = tuple(a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str))
    if not flags or not flags[0].startswith("-"):
        return None
    keywords = {k.arg: k.value for k in call.keywords}
    dest = next(f for f in flags if f.startswith("--"))[2:].replace("-", "_")
    action = keywords.get("action")
    action_name = action.id if isinstance(action, ast.Name) else ""
    kind = keywords.get("type")
    kind_name = kind.id if isinstance(kind, ast.Name) else "str"
    default = keywords.get("default")
    value = default.value if isinstance(default, ast.Constant) else None
    return Option(
        dest,
        flags,
        "flag" if action_name == "check_env" else "list" if kind_name == "comma_separated_list" else kind_name,
        None if value is None else str(value),
        from_env=action_name in ("env", "check_env"),
        choices=_choices(keywords.get("choices")),
    )


def _choices(node: ast.expr | None) -> tuple[str, ...]:
    values = node.elts if isinstance(node, (ast.List, ast.Tuple)) else []
    return tuple(v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str))
