"""What executing a shell or batch file shows of its text, for causes that no single launch line shows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.programs import REMOTE
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.facts.shell_text import MissingVariable, ShellCommand, ShellText, TextSpan
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.evaluator.imagined_run import ImaginedRun, Launched
from ddpdoctor.launch.evaluator.values import ARRAY, RANDOM, TIME, Origin, Value
from ddpdoctor.launch.sbatch import batch_layer
from ddpdoctor.launch.shell.text import Offsets, parse

__all__ = ["fixed_port", "shell_text_of", "span_of"]

MOST_COMMANDS = 4_000
"""Commands of a file that are kept."""


def shell_text_of(text: str, version: Version, run: ImaginedRun) -> ShellText:
    """The text of a file.

    Args:
        run: its execution.
    """
    late = tuple(_late_options(text))
    commands = (
        ShellCommand(tuple(value.text for value in command.words), span_of(command.origin), command.is_certain)
        for command in run.invoked[:MOST_COMMANDS]
    )
    return ShellText(
        text=text,
        commands=tuple(commands),
        missing=tuple(_missing(text, run)),
        late_options=late,
        is_batch=bool(late) or batch_layer(text, version) is not None,
        is_complete=not run.left_out,
    )


def _missing(text: str, run: ImaginedRun) -> Iterator[MissingVariable]:
    """Variables that are empty where a quoted text uses them; those that every shell of a cluster has are not meant."""
    seen = set()
    for each in run.missing:
        remote = next((name for name in reversed(each.via) if name in REMOTE), "")
        for name in each.names:
            is_set = re.search(rf"(?m)^[ \t]*(?:export[ \t]+)?({name})=", text)
            used = re.search(rf"\$(?:\{{{name}\}}|{name}\b)", text[each.origin.start :])
            is_doubtful = _EVERYWHERE.fullmatch(name) or re.search(rf"\b{name}=\S*\$\{{?{name}\b", text)
            if each.is_certain and name not in seen and used is not None and not is_doubtful:
                seen.add(name)
                at = each.origin.start
                assigned = None if is_set is None else TextSpan(*is_set.span(1))
                yield MissingVariable(name, TextSpan(at + used.start(), at + used.end()), assigned, remote)


_EVERYWHERE = re.compile(
    r"(SLURM|PMI|OMPI|PBS|LSB|CONDA)_\w+|PATH|HOME|USER|PWD|HOSTNAME|SHELL|TMPDIR|LD_LIBRARY_PATH|PYTHONPATH"
)


def span_of(origin: Origin) -> TextSpan:
    """The span of a place in the file."""
    return TextSpan(origin.start, origin.end)


def fixed_port(member: Launched, plan: Plan | None) -> int | None:
    """The port of the rendezvous, None where it is not written, or differs between two runs of the file."""
    if plan is None or plan.port is None or plan.is_standalone:
        return None
    number = re.compile(rf"(?<!\d){plan.port}(?!\d)")
    sources = [value for value in member.argv if number.search(value.text.replace(UNKNOWN, ""))]
    return plan.port if sources and not any(_differs(value) for value in sources) else None


def _differs(value: Value) -> bool:
    return not value.varies.isdisjoint((RANDOM, TIME, ARRAY))


def _late_options(text: str) -> Iterator[TextSpan]:
    """`#SBATCH` lines of the file itself after its first command: the comments of the grammar, not lines of a heredoc."""
    if "#SBATCH" not in text:
        return
    root = parse(text).children
    offsets = Offsets(text)
    first = next((each for each in root if each.is_named and each.type != "comment"), None)
    for each in root:
        if first is not None and each.type == "comment" and each.start_byte > first.start_byte:
            start, end = offsets.of(each)
            if text.startswith("#SBATCH", start) and (start == 0 or text[start - 1] == "\n"):
                yield TextSpan(start, end)
