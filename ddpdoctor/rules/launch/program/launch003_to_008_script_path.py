"""LAUNCH003 to LAUNCH008: the script or module that a line names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, Word
from ddpdoctor.facts.startup import LookupKind, LookupResult, Startup
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import base_name, before, instead, point, remove, replace_word, shown

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

__all__ = ["is_python"]

PYTHON = re.compile(r"python(\d+(\.\d+)*)?")


def is_python(word: Word) -> bool:
    """The word is the name of a Python interpreter."""
    return PYTHON.fullmatch(word.text.rpartition("/")[2]) is not None


def _named(launch: Launch) -> Iterator[tuple[LaunchLine, Layer, Word]]:
    """The innermost layers that name a script, if their words can be read."""
    for line in launch.lines:
        layer = line.starter or line.program
        if layer is not None and layer.reading.script is not None and not layer.is_garbled:
            yield line, layer, layer.reading.script


def _flag(layer: Layer, dest: str) -> Word | None:
    given = layer.given(dest)
    return None if given is None else given.word


@cause(
    "LAUNCH003",
    "script-not-found",
    Severity.ERROR,
    yields_to=("LAUNCH006", "LAUNCH007", "LAUNCH071", "LAUNCH004", "LAUNCH014", "LAUNCH015", "LAUNCH018", "LAUNCH055"),
    signatures=(
        r"can't open file '[^']*': \[Errno 2\]",
        r"^\S*python[\d.]*: No module named ",
        r"finding module specification for '",
    ),
)
def script_not_found(launch: Launch, startup: Startup | None = None) -> Iterator[Finding]:
    """The script does not exist where the launcher looks for it.

    ## Why it matters
    torchrun does not check it: the nodes join first, then every worker fails with `can't open file '…': [Errno 2] No
    such file or directory`, far above a ChildFailedError with exit code 2. If only one node lacks the file, the
    others hang.

    ## Fix
    Use a path that exists on every node.

    It is relative to the folder where the launcher starts. Or use `-m` and a module.

    ## Example
        can't open file '/home/me/trian.py': [Errno 2] No such file or directory

        # before
        torchrun --nproc-per-node=2 trian.py

        # after
        torchrun --nproc-per-node=2 train.py
    """
    for line, layer, script in _named(launch):
        facts = line.script
        if facts is None or facts.exists is not False or line.program is not layer or _is_python(layer, script):
            continue
        if layer.given("no_python") is not None and "/" not in script.text:
            continue
        edits = None
        if facts.similar is not None and script.known is not None:
            folder = script.text.rpartition("/")
            edits = [replace_word(script, f"{folder[0]}{folder[1]}{facts.similar}")]
        state, label = instead(facts.kind)
        label = f"did you mean {facts.similar}?" if facts.similar else label
        text = f"{_cut(script)} {state}"
        place = facts.path.removesuffix(script.text).rstrip("/")
        if facts.kind is None and place != facts.path and len(text) + len(place) < 58:
            text += f" in {place}"
        # A job file is written for another machine: without a script of nearly this name here, it may well be right.
        severity = Severity.NOTE if line.file is not None and facts.similar is None else None
        yield point(launch, line, script, text, "an existing file", edits, label=label, severity=severity)
    if startup is not None:
        yield from _missing_modules(launch, startup)


def _cut(word: Word) -> str:
    """A path as written; only its end if it is long."""
    text = shown(word)
    return text if len(text) <= 40 else "…" + text[-39:]


def _missing_modules(launch: Launch, startup: Startup) -> Iterator[Finding]:
    """Modules after -m that the interpreter of the line does not find; for packages of launchers see LAUNCH522."""
    line = launch.lines[0]
    for lookup in startup.lookups:
        if lookup.kind is not LookupKind.MODULE or lookup.result is not LookupResult.MISSING:
            continue
        word = next((word for word in line.argv if word.text == lookup.name), None)
        if word is None or lookup.missing in ("torch", "accelerate", "deepspeed"):
            continue
        hint = f"; did you mean `{lookup.similar}`?" if lookup.similar else ""
        edits = None if lookup.similar is None else [replace_word(word, lookup.similar)]
        text = f"{lookup.place} has no module `{lookup.missing}`{hint}"
        severity = None if lookup.is_local else Severity.WARNING
        expected = lookup.similar or "an existing module"
        label = f"did you mean {lookup.similar}?" if lookup.similar else "no such module"
        finding = point(launch, line, word, text, expected, edits, label=label, severity=severity)
        why = f"Every rank fails with `No module named {lookup.missing}`, exit code 1."
        fix = "Correct the name, start the line in the folder of the module, or add that folder to PYTHONPATH."
        yield replace(finding.if_certain(lookup.is_local), why=why, fix=fix)


def _is_python(layer: Layer, script: Word) -> bool:
    name = script.text.rpartition("/")[2]
    return bool(PYTHON.fullmatch(name)) or name in ("torchrun", "accelerate", "deepspeed") or "/" in name


@cause(
    "LAUNCH004",
    "interpreter-before-script",
    Severity.ERROR,
    signatures=(r"can't open file '[^']*/python[\d.]*': \[Errno 2\]", r"^python3? FAILED"),
)
def interpreter_before_script(launch: Launch) -> Iterator[Finding]:
    """python is written between the launcher and the script.

    ## Why it matters
    The launcher starts Python itself and runs the word as the script. Every worker fails with `can't open file
    '…/python': [Errno 2] No such file or directory`, and the summary says `python FAILED`.

    ## Fix
    Remove `python`, or add `--no-python`.

    ## Example
        can't open file '/home/me/python': [Errno 2] No such file or directory

        # before
        torchrun --nproc-per-node=2 python train.py

        # after
        torchrun --nproc-per-node=2 train.py
    """
    for line, layer, script in _named(launch):
        if layer.launcher is LauncherKind.PYTHON or not is_python(script):
            continue
        if any(layer.given(dest) for dest in ("no_python", "module", "run_path")):
            continue
        removed = [script]
        for word in layer.reading.arguments:
            if not word.text.startswith("-") or word.text in ("-m", "-c"):
                break
            removed.append(word)
        arguments = layer.reading.arguments
        runs_text = len(removed) <= len(arguments) and arguments[len(removed) - 1].text == "-c"
        edits = [before(script, "--no-python")] if runs_text else list(remove(line, *removed))
        text = f"{_cut(script)} would be run as the script"
        yield point(launch, line, script, text, "the script", edits, label=f"{layer.name} starts Python itself")


@cause("LAUNCH005", "no-python-script-not-executable", Severity.ERROR)
def no_python_script_not_executable(launch: Launch) -> Iterator[Finding]:
    """--no-python is given with a script that cannot be executed.

    ## Why it matters
    The script is executed as a program, which is looked up on PATH, not in the working folder: `FileNotFoundError:
    [Errno 2] No such file or directory: 'train.py'` although the file exists. Without the executable bit it fails
    with `PermissionError`.

    ## Fix
    Remove `--no-python`.

    Or give ./train.py a first line `#!/usr/bin/env python` and run `chmod +x train.py`.

    ## Example
        FileNotFoundError: [Errno 2] No such file or directory: 'train.py'

        # before
        torchrun --nproc-per-node=2 --no-python train.py

        # after
        torchrun --nproc-per-node=2 train.py
    """
    for line, layer, script in _named(launch):
        flag = _flag(layer, "no_python")
        if flag is None or layer.given("module") or layer.launcher is LauncherKind.LEGACY:
            continue
        if line.program is None or line.program.launcher is not LauncherKind.OTHER:
            continue  # a program that is known to start the script
        facts, is_python = line.script, script.text.endswith(".py")
        exists = facts is not None and facts.exists
        if "/" not in script.text and (is_python or (exists and script.text.endswith(".sh"))):
            problem = "not on PATH"
        elif facts is not None and exists and facts.is_executable is False:
            problem = "not executable"
        elif facts is not None and exists and is_python and facts.has_shebang is False:
            problem = "no #! line"
        else:
            continue
        expected, label, edits = f"no {shown(flag)}", f"remove {shown(flag)}", list(remove(line, flag))
        if not is_python:
            expected = f"./{script.text}" if "/" not in script.text else "chmod +x"
            label = f"use {expected}" if "/" not in script.text else "run chmod +x on the script"
            edits = (
                [SpanEdit(script.start, script.start, "./")]
                if "/" not in script.text and facts and facts.is_executable
                else []
            )
        text = f"{shown(flag)} cannot run {base_name(script.text)}: {problem}"
        yield point(launch, line, flag, text, expected, edits or None, label=label)


@cause(
    "LAUNCH006",
    "module-given-as-path",
    Severity.ERROR,
    signatures=(r"Error while finding module specification for '[^']*/[^']*'",),
)
def module_given_as_path(launch: Launch) -> Iterator[Finding]:
    """-m is given a path instead of a module name.

    ## Why it matters
    Every worker fails with `Error while finding module specification for 'pkg/train.py' (ModuleNotFoundError: No
    module named 'pkg/train')`.

    ## Fix
    Write the name with dots and without .py, or remove `-m`.

    ## Example
        Error while finding module specification for 'pkg/train.py' (ModuleNotFoundError: No module named 'pkg/train')

        # before
        torchrun --nproc-per-node=2 -m pkg/train.py

        # after
        torchrun --nproc-per-node=2 -m pkg.train
    """
    for line, layer, script in _named(launch):
        if layer.given("module") is not None and "/" in script.text and script.known:
            yield _module(launch, line, script, "a path")


@cause(
    "LAUNCH007",
    "module-given-with-suffix",
    Severity.ERROR,
    signatures=(
        r"__path__ attribute not found on '[^']+'[^\n]{0,300}while trying to find '[^']+\.py'",
        r"Error while finding module specification for '[^'/]+\.py'",
    ),
)
def module_given_with_suffix(launch: Launch) -> Iterator[Finding]:
    """-m is given a module name that ends in .py.

    ## Why it matters
    Python imports `train` to look for `train.py` inside it. A script without a main guard trains once at import, on
    every rank separately, and then fails with `__path__ attribute not found on 'train'`.

    ## Fix
    Remove `.py`, or `-m`.

    ## Example
        ModuleNotFoundError: __path__ attribute not found on 'train' while trying to find 'train.py'

        # before
        torchrun --nproc-per-node=2 -m train.py

        # after
        torchrun --nproc-per-node=2 -m train
    """
    for line, layer, script in _named(launch):
        if (
            layer.given("module") is not None
            and "/" not in script.text
            and script.text.endswith(".py")
            and script.known
        ):
            yield _module(launch, line, script, "a file name")


def _module(launch: Launch, line: LaunchLine, script: Word, kind: str) -> Finding:
    name = script.text.removeprefix("./").removesuffix(".py").strip("/").replace("/", ".")
    edits: list[SpanEdit] | None = [replace_word(script, name)]
    if name.startswith(".") or not re.fullmatch(r"[\w.]+", name):
        edits = None
    text = f"-m {_cut(script)}: {kind}, not a module"
    return point(launch, line, script, text, name, edits, label=f"use {name}")


@cause(
    "LAUNCH008",
    "no-python-with-module",
    Severity.ERROR,
    signatures=(r"Don't use both the '--no-python' flag and the '--module' flag",),
)
def no_python_with_module(launch: Launch) -> Iterator[Finding]:
    """--no-python and -m are given together.

    ## Why it matters
    torchrun fails with `ValueError: Don't use both the '--no-python' flag and the '--module' flag at the same time.`

    ## Fix
    Use `-m` for a module, or `--no-python` for a program.

    ## Example
        ValueError: Don't use both the '--no-python' flag and the '--module' flag at the same time.

        # before
        torchrun --nproc-per-node=2 --no-python -m train

        # after
        torchrun --nproc-per-node=2 -m train
    """
    for line, layer, _ in _named(launch):
        flag, module = _flag(layer, "no_python"), _flag(layer, "module")
        if flag is not None and module is not None and layer.launcher in (LauncherKind.TORCHRUN, LauncherKind.LEGACY):
            if layer.given("run_path") is not None:
                continue
            text, expected = f"{shown(flag)} cannot be combined with {shown(module)}", f"{shown(module)} alone"
            yield point(launch, line, flag, text, expected, remove(line, flag), label=f"remove {shown(flag)}")


NO_MODULE = re.compile(
    r"finding module specification for '(?P<asked>[\w.]+)'|python[\d.]*: No module named '?(?P<named>\w[\w.]*)"
)


MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
)


@script_not_found.look
def program_missing(log: Log) -> Iterator[Finding]:
    """A script that does not exist, or a module after -m that Python does not find."""
    from ddpdoctor.rules.log.signatures import retitled, signed

    for finding in signed(script_not_found, log):
        match = NO_MODULE.search(finding.quote)
        if match is None:
            yield finding
            continue
        name = match["asked"] or match["named"]
        meant = difflib.get_close_matches(name, MODULES, 1, 0.85)
        hint = f"; did you mean {meant[0]}?" if meant and meant[0] != name else ""
        yield replace(
            retitled(finding, f"Python has no module {name}{hint}"),
            fix=f"Write `python -m {meant[0]}`."
            if hint
            else "Install the module for this Python, or correct its name after `-m`.",
        )
