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
from ddpdoctor.rules.launch.pointing import before, point, remove, replace_word, shown

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

__all__ = ["is_python"]

PYTHON = re.compile(r"python(\d+(\.\d+)*)?")


def is_python(word: Word) -> bool:
    """The word is the name of a Python interpreter."""
    return PYTHON.fullmatch(word.text.rpartition("/")[2]) is not None


def _named(launch: Launch) -> Iterator[tuple[LaunchLine, Layer, Word]]:
    """The innermost layers that name a script, where the words can be trusted."""
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
    torchrun does not look: the nodes meet first, then every worker ends with `can't open file '…': [Errno 2] No such file or
    directory`, far above a ChildFailedError with exit code 2. Where only one node lacks the file, the others hang.

    ## Fix
    Give a path that exists on every node, relative to the folder where the launcher starts, or -m and a module.
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
        hint = f"; {facts.similar} is there" if facts.similar else ""
        yield point(
            launch,
            line,
            script,
            f"{facts.path} does not exist{hint}: expected an existing script",
            "an existing file",
            edits,
        )
    if startup is not None:
        yield from _missing_modules(launch, startup)


def _missing_modules(launch: Launch, startup: Startup) -> Iterator[Finding]:
    """Modules after -m that the interpreter of the line does not find; a launcher's own package is LAUNCH522's."""
    line = launch.lines[0]
    for each in startup.lookups:
        if each.kind is not LookupKind.MODULE or each.result is not LookupResult.MISSING:
            continue
        word = next((word for word in line.argv if word.text == each.name), None)
        if word is None or each.missing in ("torch", "accelerate", "deepspeed"):
            continue
        hint = f"; did you mean `{each.similar}`?" if each.similar else ""
        edits = None if each.similar is None else [replace_word(word, each.similar)]
        text = f"{each.place} finds no module `{each.missing}`{hint}"
        severity = None if each.is_local else Severity.WARNING
        found = point(launch, line, word, text, each.similar or "an existing module", edits, severity=severity)
        label = f"did you mean {each.similar}?" if each.similar else "no such module"
        why = f"Every rank ends with `No module named {each.missing}`, exit code 1."
        fix = "Correct the name, or start the line in the folder that holds the module (or add that folder to PYTHONPATH)."
        yield replace(found.if_certain(each.is_local), label=label, why=why, fix=fix)


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
    """python stands between the launcher and the script.

    ## Why it matters
    The launcher starts Python itself and takes the word for the script: `can't open file '…/python': [Errno 2] No such file or
    directory`, and the summary says `python FAILED`.

    ## Fix
    Remove python, or add --no-python.
    """
    for line, layer, script in _named(launch):
        if layer.launcher is LauncherKind.PYTHON or not is_python(script):
            continue
        if any(layer.given(dest) for dest in ("no_python", "module", "run_path")):
            continue
        gone = [script]
        for word in layer.reading.arguments:
            if not word.text.startswith("-") or word.text in ("-m", "-c"):
                break
            gone.append(word)
        text = f"{layer.name} starts Python itself and takes {shown(script)} for the script: expected the script"
        runs_text = len(gone) <= len(layer.reading.arguments) and layer.reading.arguments[len(gone) - 1].text == "-c"
        edits = [before(script, "--no-python")] if runs_text else list(remove(line, *gone))
        yield point(launch, line, script, text, "the script", edits)


@cause("LAUNCH005", "no-python-script-not-executable", Severity.ERROR)
def no_python_script_not_executable(launch: Launch) -> Iterator[Finding]:
    """--no-python is given a script that cannot be executed.

    ## Why it matters
    The word is executed as a program: looked up on PATH, not in the working folder. `FileNotFoundError: [Errno 2] No such file
    or directory: 'train.py'` although the file is there, `PermissionError` without the executable bit.

    ## Fix
    Remove --no-python; or give ./train.py a first line `#!/usr/bin/env python` and chmod +x.
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
            problem = "is looked up on PATH, not in this folder"
        elif facts is not None and exists and facts.is_executable is False:
            problem = "is not executable"
        elif facts is not None and exists and is_python and facts.has_shebang is False:
            problem = "has no #! line"
        else:
            continue
        wanted, edits = f"no {shown(flag)}", list(remove(line, flag))
        if not is_python:
            wanted = f"./{script.text}" if "/" not in script.text else "chmod +x"
            edits = (
                [SpanEdit(script.start, script.start, "./")]
                if "/" not in script.text and facts and facts.is_executable
                else []
            )
        text = f"{shown(flag)} executes {script.text}, which {problem}: expected {wanted}"
        yield point(launch, line, flag, text, wanted, edits or None)


@cause(
    "LAUNCH006",
    "module-given-as-path",
    Severity.ERROR,
    signatures=(r"Error while finding module specification for '[^']*/[^']*'",),
)
def module_given_as_path(launch: Launch) -> Iterator[Finding]:
    """-m is given a path instead of a module's name.

    ## Why it matters
    `Error while finding module specification for 'pkg/train.py' (ModuleNotFoundError: No module named 'pkg/train')`.

    ## Fix
    Write the name with dots and without .py, or remove -m.
    """
    for line, layer, script in _named(launch):
        if layer.given("module") is not None and "/" in script.text and script.known:
            yield _module(launch, line, script, "a path")


@cause(
    "LAUNCH007",
    "module-given-with-suffix",
    Severity.ERROR,
    signatures=(
        r"__path__ attribute not found on '[^']+'[^\n]*while trying to find '[^']+\.py'",
        r"Error while finding module specification for '[^'/]+\.py'",
    ),
)
def module_given_with_suffix(launch: Launch) -> Iterator[Finding]:
    """-m is given a module's name that ends in .py.

    ## Why it matters
    Python imports `train` to look for `train.py` inside it: a script without main guard trains once as a side effect, on every
    rank alone, and then fails with `__path__ attribute not found on 'train'`.

    ## Fix
    Remove .py, or -m.
    """
    for line, layer, script in _named(launch):
        if (
            layer.given("module") is not None
            and "/" not in script.text
            and script.text.endswith(".py")
            and script.known
        ):
            yield _module(launch, line, script, "a file's name")


def _module(launch: Launch, line: LaunchLine, script: Word, what: str) -> Finding:
    name = script.text.removeprefix("./").removesuffix(".py").strip("/").replace("/", ".")
    edits: list[SpanEdit] | None = [replace_word(script, name)]
    if name.startswith(".") or not re.fullmatch(r"[\w.]+", name):
        edits = None
    return point(launch, line, script, f"-m takes a module, {shown(script)} is {what}: expected {name}", name, edits)


@cause(
    "LAUNCH008",
    "no-python-with-module",
    Severity.ERROR,
    signatures=(r"Don't use both the '--no-python' flag and the '--module' flag",),
)
def no_python_with_module(launch: Launch) -> Iterator[Finding]:
    """--no-python and -m are given together.

    ## Why it matters
    `ValueError: Don't use both the '--no-python' flag and the '--module' flag at the same time.`

    ## Fix
    Keep -m for a module, --no-python for a program.
    """
    for line, layer, _ in _named(launch):
        flag, module = _flag(layer, "no_python"), _flag(layer, "module")
        if flag is not None and module is not None and layer.launcher in (LauncherKind.TORCHRUN, LauncherKind.LEGACY):
            if layer.given("run_path") is not None:
                continue
            text = f"{shown(flag)} and {shown(module)} exclude each other: expected one of them"
            yield point(launch, line, flag, text, f"{shown(module)} alone", remove(line, flag))


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

    for found in signed(script_not_found, log):
        match = NO_MODULE.search(found.quote)
        if match is None:
            yield found
            continue
        name = match["asked"] or match["named"]
        similar = difflib.get_close_matches(name, MODULES, 1, 0.85)
        hint = f", misspelled for {similar[0]}" if similar and similar[0] != name else ""
        yield replace(
            retitled(found, f"Python finds no module {name}{hint}"),
            fix=f"Write python -m {similar[0]}."
            if hint
            else "Install the module for this Python, or correct its name after -m.",
        )
