"""LAUNCH522: a package that the launcher or the script imports is not installed for the interpreter that runs it."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.startup import LookupKind, LookupResult, MissingImport, Startup, StartupLookup
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
"""Packages that the registry does not have, or has another one of this name."""


@cause("LAUNCH522", "package-not-installed", Severity.ERROR)
def package_not_installed(launch: Launch, startup: Startup) -> Iterator[Finding]:
    """The script imports a package at its top that the interpreter which runs it does not have.

    ## Why it matters
    Every rank ends with `ModuleNotFoundError: No module named 'cv2'` before it joins the job; where only one node lacks the
    package, the other nodes hang until they time out.

    ## Fix
    Install the package for this interpreter on every node, or start the line with the interpreter that has it.
    """
    if startup.python is None:
        not_here(next(iter(startup.unknown), "the line starts no Python that is known here"))
    line = launch.lines[0]
    launchers = list(_launchers(startup))
    for each in launchers:
        name = each.missing
        yield _finding(startup, name, LAUNCHERS[name], where(line, line.layers[each.layer].program))
    seen = {each.missing for each in launchers}
    for missing in startup.imports:
        if missing.module not in seen:
            yield _of_script(startup, missing, line)


def _launchers(startup: Startup) -> Iterator[StartupLookup]:
    """Launchers that `python -m` is to start and whose package is missing."""
    for each in startup.lookups:
        if each.kind is LookupKind.MODULE and each.result is LookupResult.MISSING and each.missing in LAUNCHERS:
            yield each


def _of_script(startup: Startup, missing: MissingImport, line: LaunchLine) -> Finding:
    path = line.script.path if line.script is not None else startup.script
    place = Where(file=path, line=missing.line, column=missing.column)
    if missing.folder is not None and missing.distribution is None:
        return _finding(startup, missing.module, None, place, missing.folder)
    return _finding(startup, missing.module, missing.distribution, place)


def _finding(
    startup: Startup, module: str, distribution: str | None, place: Where, folder: str | None = None
) -> Finding:
    wanted = SOURCES.get(module, distribution)
    command = None if wanted is None else f"{startup.installer} {wanted}"
    if folder is not None:
        fix = f"Put the folder of {module} on the module search path: export PYTHONPATH={folder}:$PYTHONPATH"
        command = f"export PYTHONPATH={folder}:$PYTHONPATH"
    elif wanted is None:
        fix = (
            f"Find out which package provides {module} (the project's requirements, or a search on pypi.org), and install it"
            f" with {startup.installer} NAME; or add the folder of {module} to PYTHONPATH."
        )
    else:
        fix = f"Install {wanted} on every node, or start the line with the interpreter that has it."
    finding = Finding(
        f"`{module}` is not installed for {startup.python}",
        (Evidence("startup.imports", module, "an installed package"),),
        fix=fix,
        fix_command=command,
        where=place,
        label="not installed",
        severity=None if startup.is_local else Severity.WARNING,
    )
    return finding.if_certain(startup.is_local)
