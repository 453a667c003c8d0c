"""LAUNCH520, LAUNCH521: the program or the environment that a launch line names does not exist."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.typo import TypoKind
from ddpdoctor.facts.launch.words import Word, quote
from ddpdoctor.facts.startup import LookupKind, LookupResult, Startup, StartupLookup
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.launch071_torchrun_of_other_python import is_plain_torchrun
from ddpdoctor.rules.launch.pointing import point, replace_word, shown

__all__ = ["looked_up"]

INSTALLS = {"accelerate": "accelerate", "deepspeed": "deepspeed", "torchrun": "torch", "composer": "mosaicml"}
"""The package that contains a program."""


def looked_up(startup: Startup, kind: LookupKind, result: LookupResult) -> Iterator[StartupLookup]:
    """The lookups of one kind with this result."""
    return (lookup for lookup in startup.lookups if lookup.kind is kind and lookup.result is result)


@cause("LAUNCH520", "program-not-found", Severity.ERROR)
def program_not_found(launch: Launch, startup: Startup | None = None) -> Iterator[Finding]:
    """The program that the launch line starts does not exist.

    ## Why it matters
    The shell fails at once with `command not found`, exit code 127, or `Permission denied`, exit code 126.

    ## Fix
    Correct the name, or activate the environment with the program.

    ## Example
        bash: torchrn: command not found

        # before
        torchrn --nproc-per-node=4 train.py

        # after
        torchrun --nproc-per-node=4 train.py
    """
    if startup is not None and launch.lines:
        yield from _missing(launch, launch.lines[0], startup)
    known = {} if startup is None else {each.layer: each for each in startup.lookups if each.kind is LookupKind.PROGRAM}
    for number, line in enumerate(launch.lines):
        for index, layer in enumerate(line.layers):
            at = known.get(index) if number == 0 else None
            if at is None or at.result is LookupResult.UNKNOWN:
                yield from _misspelled(launch, line, layer)


def _misspelled(launch: Launch, line: LaunchLine, layer: Layer) -> Iterator[Finding]:
    """A name that is almost a launcher's, if it was not looked up."""
    for typo in layer.typos:
        if typo.kind is TypoKind.PROGRAM:
            yield _finding(launch, line, layer.program, f"`{layer.name}` is not a known program", typo.meant[0])


def _finding(
    launch: Launch,
    line: LaunchLine,
    word: Word,
    message: str,
    similar: str | None,
    severity: Severity | None = None,
    fix: str = "",
) -> Finding:
    hint = f"; did you mean `{similar}`?" if similar else ""
    edits = None if similar is None else [replace_word(word, similar)]
    label = f"did you mean {similar}?" if similar else "not found"
    expected = similar or "an existing program"
    return point(launch, line, word, message + hint, expected, edits, label=label, severity=severity, fix=fix)


def _missing(launch: Launch, line: LaunchLine, startup: Startup) -> Iterator[Finding]:
    for each in looked_up(startup, LookupKind.PROGRAM, LookupResult.MISSING):
        layer = line.layers[each.layer]
        if is_plain_torchrun(line) and each.layer == 0:
            continue  # LAUNCH071 knows more about it
        word = next((word for word in layer.own if word.text == each.name), layer.program)
        meant = next((t.meant[0] for t in layer.typos if t.kind is TypoKind.PROGRAM), None)
        is_certain = each.is_local and each.beside is None
        found = _finding(
            launch,
            line,
            word,
            _message(word, each),
            meant or each.similar,
            None if is_certain else Severity.WARNING,
            "" if meant or each.similar else _fix(each, layer),
        )
        if "permission" in each.place:
            found = replace(found, label="not executable", fix_command=f"chmod +x {quote(each.name)}")
        yield found.if_certain(is_certain)


def _message(word: Word, each: StartupLookup) -> str:
    name = shown(word)
    if "permission" in each.place:
        return f"`{name}` is not executable"
    if "/" in each.name or each.place.startswith("/"):
        return f"`{name}` does not exist"
    where = "on PATH" if each.place == "PATH" else f"in {each.place}"
    return f"`{name}` is not {where}" + ("" if each.is_local else " of this node")


def _fix(each: StartupLookup, layer: Layer) -> str:
    if "permission" in each.place:
        return f"Make it executable: chmod +x {each.name}"
    if each.beside is not None:
        return f"Activate the environment that has it: export PATH={each.beside.rpartition('/')[0]}:$PATH"
    name = INSTALLS.get(layer.name)
    if name is not None and "/" not in each.name:
        return f"Activate the environment that has {each.name}, or install it there: python -m pip install {name}"
    return ""


@cause("LAUNCH521", "environment-not-found", Severity.ERROR)
def environment_not_found(launch: Launch, startup: Startup) -> Iterator[Finding]:
    """The environment or project that the launch line uses does not exist on this machine.

    ## Why it matters
    The launcher is not started: `EnvironmentLocationNotFound: Not a conda environment`, or `Poetry could not find a
    pyproject.toml file`.

    ## Fix
    Correct the name, or create the environment on every node.

    For a project, start the line in its folder.

    ## Example
        EnvironmentLocationNotFound: Not a conda environment: /opt/conda/envs/trian

        # before
        conda run -n trian torchrun train.py

        # after
        conda run -n train torchrun train.py
    """
    if not startup.lookups:
        not_here("the line does not name an environment")
    for each in looked_up(startup, LookupKind.ENVIRONMENT, LookupResult.MISSING):
        line = launch.lines[0]
        layer = line.layers[each.layer]
        word = next((g.value_word for g in layer.reading.given if g.value == each.name), layer.program)
        if word is layer.program:
            text = f"`{layer.name} run` finds no project in this folder or above it"
        else:
            text = f"`{layer.name}` has no environment `{each.name}` on this machine"
        found = _finding(launch, line, word, text, each.similar, None if each.is_local else Severity.WARNING)
        yield found.if_certain(each.is_local)
