"""Finds the environments of launch lines: conda environments, and projects of uv, poetry, pdm and pixi. Nothing is run."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.light_dataclass import dataclass

__all__ = ["CONDAS", "PROJECTS", "Environment", "environment_of_layer"]

MAX_BYTES = 4 << 20
FILES = ("pyproject.toml", "uv.lock", "poetry.lock", "pdm.lock", "pixi.toml", "pixi.lock", "Pipfile", "Pipfile.lock")
"""The files that name a project's tasks and dependencies."""
CONDAS = ("conda", "mamba", "micromamba")
PROJECTS = ("uv", "poetry", "pdm", "rye", "pixi", "pipenv")


@dataclass(frozen=True, slots=True)
class Environment:
    """Where the program of the next layer is searched. `prefix` is None if it is unknown, and `reason` is why.

    `name` is its name in messages. `is_missing`: it certainly does not exist; `similar` is the nearest name.
    `installs`: the tool may install what is missing when it starts. `adds` is the command that adds a package, `texts` are
    the project's files, which name its tasks and what it depends on.
    """

    name: str
    prefix: str | None = None
    reason: str = ""
    is_missing: bool = False
    similar: str | None = None
    installs: bool = False
    adds: str | None = None
    texts: tuple[str, ...] = ()

    def mentions(self, name: str) -> bool:
        """Whether the project's files name a task or a dependency, so that it may exist at the start of the line."""
        wanted = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])", re.IGNORECASE)
        return any(wanted.search(_text(path)) for path in self.texts)


def environment_of_layer(layer: Layer, environ: Mapping[str, str], cwd: str | None) -> Environment | None:
    """The environment that a program such as `conda run -n NAME` chooses; None for programs that choose none."""
    if layer.name in CONDAS:
        return _conda(layer, environ)
    if layer.name in PROJECTS:
        return _project(layer, environ, cwd)
    if layer.name in ("uvx", "pipx", "hatch"):
        return Environment(f"{layer.name}'s environment", reason=f"{layer.name} creates its own environment")
    return None


def _value(layer: Layer, *flags: str) -> str | None:
    return next((g.value for g in reversed(layer.reading.given) if g.flag in flags), None)


def _conda(layer: Layer, environ: Mapping[str, str]) -> Environment:
    prefix, name = _value(layer, "-p", "--prefix"), _value(layer, "-n", "--name")
    if UNKNOWN in f"{prefix}{name}":
        return Environment("the conda environment", reason="the name of the conda environment depends on the shell")
    if prefix is not None:
        return _conda_at(prefix, f"the conda environment {prefix}", os.path.expanduser(prefix))
    if name is None:
        own = environ.get("CONDA_PREFIX")
        return Environment("the active conda environment", own, "" if own else "no conda environment is active")
    roots = _conda_roots(environ)
    if name in ("base", "root") and roots:
        return Environment("the conda environment base", roots[0])
    known = dict(_conda_environments(roots, environ))
    if name in known:
        return _conda_at(name, f"the conda environment {name}", known[name])
    if not roots:
        return Environment(
            f"the conda environment {name}", reason=f"{layer.name} keeps its environments in an unknown folder"
        )
    similar = difflib.get_close_matches(name, known, 1, 0.6)
    return Environment(name, is_missing=True, similar=similar[0] if similar else None)


def _conda_at(name: str, title: str, folder: str) -> Environment:
    if os.path.isdir(os.path.join(folder, "bin")):
        return Environment(title, folder)
    return Environment(name, is_missing=True)


def _conda_roots(environ: Mapping[str, str]) -> list[str]:
    """The installation folders of conda and mamba."""
    found = [environ.get("MAMBA_ROOT_PREFIX"), environ.get("CONDA_ROOT"), environ.get("CONDA_PYTHON_PREFIX")]
    exe = environ.get("CONDA_EXE") or environ.get("MAMBA_EXE")
    found += [os.path.dirname(os.path.dirname(os.path.realpath(exe)))] if exe else []
    for folder in environ.get("PATH", "").split(os.pathsep):
        for name in CONDAS[:2]:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                found.append(os.path.dirname(os.path.dirname(os.path.realpath(path))))
    return [
        prefix for prefix in dict.fromkeys(found) if prefix and os.path.isdir(os.path.join(prefix, "conda-meta"))
    ] or [prefix for prefix in dict.fromkeys(found) if prefix and os.path.isdir(os.path.join(prefix, "envs"))]


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_BYTES)
    except OSError:
        return ""


def _conda_environments(roots: Sequence[str], environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Names and folders of the environments that conda would find by name."""
    home = environ.get("HOME", "")
    folders = [
        each for name in ("CONDA_ENVS_PATH", "CONDA_ENVS_DIRS") for each in environ.get(name, "").split(os.pathsep)
    ]
    rcs = [
        os.path.join(home, ".condarc"),
        os.path.join(home, ".mambarc"),
        *(os.path.join(r, ".condarc") for r in roots),
    ]
    folders += [folder for rc in rcs for folder in _environment_folders(rc, environ)]
    folders += [*(os.path.join(root, "envs") for root in roots), os.path.join(home, ".conda", "envs")]
    for folder in reversed([each for each in folders if each]):  # the first folder has priority, so it is read last
        for name in _names(folder):
            if os.path.isdir(os.path.join(folder, name, "conda-meta")) or os.path.isdir(
                os.path.join(folder, name, "bin")
            ):
                yield name, os.path.join(folder, name)


def _environment_folders(rc: str, environ: Mapping[str, str]) -> list[str]:
    """`envs_dirs` of a .condarc."""
    block = re.search(r"^envs_dirs:[ \t]*\n((?:[ \t]*-[^\n]*\n?)+)", _text(rc), re.MULTILINE)
    found = re.findall(r"-[ \t]*['\"]?([^'\"\n]+)", block[1]) if block else []
    return [re.sub(r"^~|\$\{?HOME\}?", environ.get("HOME", "~"), each.strip()) for each in found]


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


MANIFESTS = {"pixi": ("pixi.toml", "pyproject.toml"), "pipenv": ("Pipfile",)}
MAKES = ("uv", "pixi")
"""These create and update their environment when they run."""


def _project(layer: Layer, environ: Mapping[str, str], cwd: str | None) -> Environment:
    """The environment of the project around the working directory."""
    name = layer.name
    title = f"the environment of the {name} project"
    start = _value(layer, "--project", "--directory", "-C", "-P", "--manifest-path") or "."
    if cwd is None or UNKNOWN in start:
        return Environment(title, reason=f"the project folder of {name} is unknown")
    folder = os.path.normpath(os.path.join(cwd, start))
    folder = folder if os.path.isdir(folder) else os.path.dirname(folder)
    top = _above(folder, MANIFESTS.get(name, ("pyproject.toml",)))
    if top is None and name != "uv":
        return Environment(f"{name} project in {folder}", is_missing=True)
    adds = {"uv": "uv add", "poetry": "poetry add", "pdm": "pdm add", "rye": "rye add", "pipenv": "pipenv install"}
    return Environment(
        title,
        _project_prefix(layer, top, folder, environ),
        reason=f"{name} run creates its environment when it starts"
        if name in MAKES
        else f"the folder of {title} is unknown",
        installs=name in MAKES and top is not None,
        adds=adds.get(name),
        texts=tuple(os.path.join(top or folder, file) for file in FILES),
    )


def _project_prefix(layer: Layer, top: str | None, folder: str, environ: Mapping[str, str]) -> str | None:
    own = top or folder
    if layer.name == "pixi":
        chosen = _value(layer, "-e", "--environment") or "default"
        candidates = [os.path.join(own, ".pixi", "envs", chosen)]
    elif layer.name == "uv":
        candidates = [os.path.join(own, environ.get("UV_PROJECT_ENVIRONMENT", ".venv"))]
        if top is None:
            candidates = [environ.get("VIRTUAL_ENV", ""), environ.get("CONDA_PREFIX", ""), *candidates]
    else:
        candidates = [environ.get("VIRTUAL_ENV", ""), os.path.join(own, ".venv")]
    return next(
        (candidate for candidate in candidates if candidate and os.path.isdir(os.path.join(candidate, "bin"))), None
    )


def _above(folder: str, names: Sequence[str]) -> str | None:
    """The nearest folder, upward from this one, that has one of these files."""
    while True:
        if any(os.path.isfile(os.path.join(folder, name)) for name in names):
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
