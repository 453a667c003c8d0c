"""ENV030 as lines show it: variables of the script that the shell inside of srun, mpirun, ssh or bash -c never gets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.programs import REMOTE
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.launch.words import Edit
from ddpdoctor.findings import Finding
from ddpdoctor.rules import on_lines
from ddpdoctor.rules.environ.nodes import not_everywhere
from ddpdoctor.rules.launch.pointing import point


@on_lines(not_everywhere)
def not_exported(launch: Launch) -> Iterator[Finding]:
    """Text in single quotes for another shell names variables that this script only assigns."""
    for line in launch.lines:
        if not line.private:
            continue
        names = ", ".join(line.private)
        shell = next(layer.own[-1] for layer in line.layers if layer.is_shell_text)
        words = (word for layer in line.layers for word in (*layer.own, *layer.reading.arguments) if word.context)
        word = next((w for w in words if re.search(rf"\$\{{?{line.private[0]}\b", w.raw)), shell)
        remote = next((layer for layer in line.layers if layer.name in REMOTE), None)
        are = "are" if len(line.private) > 1 else "is"
        if remote is not None:
            text = f"{names} {are} empty in the quoted text: {remote.name} passes no variables; expected double quotes"
            yield point(
                launch, line, word, text, "double quotes", fix="Put the text in double quotes, or export inside it."
            )
            continue
        text = f"{names} {are} empty in the quoted text: this script assigns and does not export; expected export"
        start = line.argv[0].start
        edits = [Edit(start, start, f"export {' '.join(line.private)}; ")]
        yield point(launch, line, word, text, "export", edits, fix="Export them where they are assigned.")
