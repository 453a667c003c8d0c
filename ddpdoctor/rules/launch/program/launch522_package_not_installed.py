"""LAUNCH522: a package that the launcher or the script imports is not installed for its interpreter."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.startup import LookupKind, LookupResult, Startup, StartupLookup
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import where

LAUNCHERS = {"torch": "torch", "accelerate": "accelerate", "deepspeed": "deepspeed"}
"""The packages whose modules are launchers, and their distributions."""
SOURCES = {
    "apex": "git+https://github.com/NVIDIA/apex.git",
    "clip": "git+https://github.com/openai/CLIP.git",
    "detectron2": "git+https://github.com/facebookresearch/detectron2.git",
}
"""Packages that are not in the registry, or whose name belongs to another package there."""


@cause("LAUNCH522", "package-not-installed", Severity.ERROR, explains=("VERSION503",))
def package_not_installed(launch: Launch, startup: Startup) -> Iterator[Finding]:
    """The script imports a package at its top that is not installed for its interpreter.

    ## Why it matters
    Every rank fails with `ModuleNotFoundError: No module named 'cv2'` before it joins the job. If only one node lacks
    the package, the other nodes hang until they time out.

    ## Fix
    Install the package for this interpreter on every node.

    Or start the line with the interpreter that has it.

    ## Example
        ModuleNotFoundError: No module named 'cv2'

        # before
        torchrun train.py

        # after
        python -m pip install opencv-python
        torchrun train.py
    """
    if startup.python is None:
        not_here(next(iter(startup.unknown), "the line starts no Python that is known here"))
    line = launch.lines[0]
    launchers = list(_launchers(startup))
    wanted = {each.missing: LAUNCHERS[each.missing] for each in launchers}
    wanted |= {each.module: name for each in startup.imports if (name := SOURCES.get(each.module, each.distribution))}
    for each in launchers:
        place = where(line, line.layers[each.layer].program)
        yield _finding(startup, each.missing, wanted, place)
    for missing in startup.imports:
        if missing.module not in {each.missing for each in launchers}:
            place = Where(file=_script(startup, line), line=missing.line, column=missing.column)
            yield _finding(startup, missing.module, wanted, place, missing.folder)


def _launchers(startup: Startup) -> Iterator[StartupLookup]:
    """Launchers after `python -m` whose package is missing."""
    for each in startup.lookups:
        if each.kind is LookupKind.MODULE and each.result is LookupResult.MISSING and each.missing in LAUNCHERS:
            yield each


def _script(startup: Startup, line: LaunchLine) -> str | None:
    """The script as a user would type it in the folder where the line is started."""
    path = startup.script
    return path if path is None or line.cwd is None else path.removeprefix(f"{line.cwd}/")


def _finding(startup: Startup, module: str, wanted: dict[str, str], place: Where, folder: str | None = None) -> Finding:
    """One missing module.

    Args:
        wanted: what is to be installed for all missing modules, by module: one command installs them.
        folder: a folder that holds a module of this name and is not searched.
    """
    command = None
    if module in wanted:
        command = f"{startup.installer} {' '.join(dict.fromkeys(wanted.values()))}"
        fix = f"Install {wanted[module]} on every node, or start the line with the interpreter that has it."
    elif folder is not None:
        command = f"export PYTHONPATH={folder}:$PYTHONPATH"
        fix = f"Add the folder of {module} to the module search path."
    else:
        fix = (
            f"Find out which package provides {module} (the project's requirements, or a search on pypi.org), and install it"
            f" with {startup.installer} NAME; or add the folder of {module} to PYTHONPATH."
        )
    finding = Finding(
        f"`{module}` is not installed for {startup.python}",
        (Evidence("startup.imports", module, "an installed package"),),
        fix=fix,
        fix_command=command,
        where=place,
        label="not installed",
        group=f"packages of {startup.python}",
    )
    return finding.if_certain(startup.is_local)
