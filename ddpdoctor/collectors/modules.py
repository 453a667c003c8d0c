"""Queries an interpreter, in one child process, for the modules that it finds. No code of the job is imported or run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.system import process
from ddpdoctor.system.machine import Deadline
from ddpdoctor.system.regular_file import text_of_regular

__all__ = ["ModuleAnswer", "ModuleSearch", "ask_modules"]

SECONDS = 5.0

QUESTION = r"""
import importlib.machinery, importlib.util, json, os, sys
ask = json.loads(sys.argv[1])
if sys.path and sys.path[0] == "":
    sys.path[0] = ask["folder"]
found = {}
for name in ask["names"]:
    try:
        found[name] = name in sys.builtin_module_names or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        found[name] = None
def beside(places):
    names = set()
    for place in places:
        try:
            names.update(each[:-3] if each.endswith(".py") else each for each in os.listdir(place or "."))
        except OSError:
            pass
    return sorted(name for name in names if name.isidentifier())[:2000]
modules = {}
for dotted in ask["modules"]:
    places, done, answer = None, [], {"missing": None}
    for part in dotted.split("."):
        done.append(part)
        try:
            spec = importlib.util.find_spec(part) if places is None else importlib.machinery.PathFinder.find_spec(
                ".".join(done), places)
        except (ImportError, ValueError, AttributeError):
            answer = {"missing": None, "unknown": True}
            break
        if spec is None:
            top = [sys.path[0]] + [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
            answer = {"missing": ".".join(done), "beside": beside(top if places is None else places), "above": origin
                      if places is not None else None}
            break
        origin = spec.origin
        places = list(spec.submodule_search_locations) if spec.submodule_search_locations is not None else []
    modules[dotted] = answer
torch = importlib.util.find_spec("torch")
print("\n" + json.dumps({"version": sys.version.split()[0], "executable": sys.executable, "found": found,
    "modules": modules, "torch": list(torch.submodule_search_locations or []) if torch else None}))
"""


@dataclass(frozen=True, slots=True)
class ModuleSearch:
    """The search for a dotted module: `missing` is its first part that does not exist, None if it was found.

    `beside` are the names in the folder of that part, `above` the file of the enclosing package. `is_unknown`: the
    interpreter could not decide.
    """

    missing: str | None = None
    beside: tuple[str, ...] = ()
    above: str | None = None
    is_unknown: bool = False


@dataclass(frozen=True, slots=True)
class ModuleAnswer:
    """The answer of one interpreter. `found` is None for a module that it could not decide. `torch` is its folder."""

    executable: str
    version: str
    found: dict[str, bool | None] = field(default_factory=dict)
    modules: dict[str, ModuleSearch] = field(default_factory=dict)
    torch: str | None = None


def ask_modules(
    python: str,
    flags: Sequence[str],
    folder: str,
    names: Sequence[str],
    modules: Sequence[str],
    environ: Mapping[str, str],
    deadline: Deadline,
) -> ModuleAnswer:
    """The modules that `python` finds with this environment.

    Args:
        flags: options of the interpreter that change its search path, such as `-I`.
        folder: the first entry of its search path: the script's folder, or the working directory.
        names: top-level modules.
        modules: dotted modules.

    Raises:
        OSError: it cannot be started.
        process.LateError: it timed out.
        ValueError: its output is not the expected JSON.
    """
    question = json.dumps({"folder": folder, "names": list(names), "modules": list(modules)})
    done = process.run([python, *flags, "-c", QUESTION, question], deadline.cut(SECONDS).left, environ=environ)
    lines = done.text.strip().splitlines()
    if done.code != 0 or not lines:
        errors = done.err.decode("utf-8", "replace").strip().splitlines()
        raise ValueError(f"exit code {done.code}" + (f": {errors[-1]:.100}" if errors else ""))
    answer = json.loads(lines[-1])
    torch = answer["torch"]
    return ModuleAnswer(
        executable=answer["executable"] or python,
        version=answer["version"],
        found=answer["found"],
        modules={name: _search(result) for name, result in answer["modules"].items()},
        torch=torch[0] if torch else None,
    )


def _search(answer: Mapping[str, object]) -> ModuleSearch:
    missing, above = answer.get("missing"), answer.get("above")
    beside = answer.get("beside")
    origin = above if isinstance(above, str) else None
    return ModuleSearch(
        missing=missing if isinstance(missing, str) else None,
        beside=tuple(map(str, beside)) if isinstance(beside, list) else (),
        above=origin,
        is_unknown=bool(answer.get("unknown")) or (origin is not None and _has_its_own_path(origin)),
    )


def _has_its_own_path(init: str) -> bool:
    """Whether a package sets its own search path; True if it cannot be read."""
    try:
        text = text_of_regular(init, 1 << 20)
        return re.search(r"\b__path__\b|\bextend_path\b|\bsys\.(path|modules)\b", text) is not None
    except OSError:
        return not os.path.isdir(os.path.dirname(init))
