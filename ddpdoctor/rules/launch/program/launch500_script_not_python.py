"""LAUNCH500: a program that is not Python, started with Python."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.launch.words import SpanEdit
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import agents, base_name, before, point
from ddpdoctor.rules.launch.program.launch003_to_008_script_path import is_python


@cause("LAUNCH500", "script-not-python", Severity.ERROR)
def script_not_python(launch: Launch) -> Iterator[Finding]:
    """The script is not a Python program, but torchrun runs it with Python.

    ## Why it matters
    A shell script fails on every rank with `SyntaxError: invalid syntax`, a binary with `SyntaxError: Non-UTF-8
    code`.

    ## Fix
    Add `--no-python`, and make the script executable.

    ## Example
        SyntaxError: invalid syntax

        # before
        torchrun --nproc-per-node=2 run.sh

        # after
        torchrun --nproc-per-node=2 --no-python ./run.sh
    """
    for line, layer, _ in agents(launch):
        script, facts = layer.reading.script, line.script
        if script is None or facts is None or facts.is_python is not False or layer.given("no_python") is not None:
            continue
        if line.program is not layer or layer.given("module") is not None or is_python(script):
            continue
        edits: list[SpanEdit] = [before(script, "--no-python")]
        if "/" not in script.text:
            edits.append(SpanEdit(script.start, script.start, "./"))
        text = f"{base_name(facts.path)} is not a Python program"
        corrected = edits if facts.is_executable else None
        yield point(launch, line, script, text, "--no-python", corrected, label="add --no-python")
