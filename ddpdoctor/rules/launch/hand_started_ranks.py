"""Lines that start one rank each: python with RANK and WORLD_SIZE before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from ddpdoctor.facts.environ import as_integer
from ddpdoctor.facts.launch.layer import Layer, Variable
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, escape, is_known, quote
from ddpdoctor.findings import Finding
from ddpdoctor.rules.launch.pointing import point


class HandStartedRank(NamedTuple):
    line: LaunchLine
    program: Layer
    rank: int
    size: int

    def variable(self, name: str) -> Variable | None:
        return next((v for v in reversed(self.program.variables) if v.name == name and is_known(v.value)), None)


def hand_started_ranks(launch: Launch) -> list[HandStartedRank]:
    """The lines that say by themselves which rank they start."""
    found = []
    for line in launch.lines:
        program = line.program
        if program is None or program.launcher is not LauncherKind.PYTHON or line.starter or line.task_starter:
            continue
        told = {v.name: v.value for v in program.variables}
        rank, size = as_integer(told.get("RANK")), as_integer(told.get("WORLD_SIZE"))
        if rank is not None and size is not None:
            found.append(HandStartedRank(line, program, rank, size))
    return found


def hand_started_job(launch: Launch) -> list[HandStartedRank]:
    """The ranks of one job, one a `--node` line; [] where a line is something else."""
    found = [each for each in hand_started_ranks(launch) if each.line.node is not None]
    return found if 1 < len(found) == len(launch.nodes) else []


def set_variable(variable: Variable, value: str) -> list[SpanEdit]:
    word = variable.word
    return [SpanEdit(word.start, word.end, escape(f"{variable.name}={quote(value)}", word.context))]


def differing_variable(launch: Launch, name: str) -> Iterator[Finding]:
    """One variable that is not the same on all lines: the line of the minority, on a tie the last one."""
    job = [(each, variable) for each in hand_started_job(launch) if (variable := each.variable(name)) is not None]
    counts = Counter(variable.value for _, variable in job)
    if len(counts) < 2:
        return
    common = counts.most_common(1)[0][0]
    odd, variable = next((each, v) for each, v in reversed(job) if v.value != common)
    told = ", ".join(f"node {each.line.node}: {v.value}" for each, v in job[:8])
    text = f"{name} differs between the lines ({told}): expected one value"
    yield point(launch, odd.line, variable.word, text, common, set_variable(variable, common))
