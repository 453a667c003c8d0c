"""LAUNCH500: a program of another kind where Python expects a script."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.launch.words import SpanEdit
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import agents, before, point
from ddpdoctor.rules.launch.program.launch003_to_008_script_path import is_python


@cause("LAUNCH500", "script-not-python", Severity.ERROR)
def script_not_python(launch: Launch) -> Iterator[Finding]:
    """The script is no Python program, but torchrun runs it with Python.

    ## Why it matters
    torchrun puts Python before the script: a shell script ends on every rank with `SyntaxError: invalid syntax`, a binary with
    `SyntaxError: Non-UTF-8 code`.

    ## Fix
    Add --no-python, and make the script executable.
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
        text = f"{facts.path} is no Python program, and {layer.name} starts it with Python: expected --no-python"
        yield point(launch, line, script, text, "--no-python", edits if facts.is_executable else None)
