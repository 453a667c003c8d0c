"""Lines that start one rank each: python with RANK and WORLD_SIZE before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from ddpdoctor.facts.environ import as_integer, shorten
from ddpdoctor.facts.launch.layer import Layer, Variable
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, escape, is_known, quote
from ddpdoctor.findings import Finding
from ddpdoctor.rules.launch.pointing import point


class HandStartedRank(NamedTuple):
    """One rank of a job that is started without a launcher: its line, and the rank and world size that it sets."""

    line: LaunchLine
    program: Layer
    rank: int
    size: int

    def variable(self, name: str) -> Variable | None:
        return next((v for v in reversed(self.program.variables) if v.name == name and is_known(v.value)), None)


def hand_started_ranks(launch: Launch) -> list[HandStartedRank]:
    """The lines that set the rank that they start."""
    ranks = []
    for line in launch.lines:
        program = line.program
        if program is None or program.launcher is not LauncherKind.PYTHON or line.starter or line.task_starter:
            continue
        values = {v.name: v.value for v in program.variables}
        rank, size = as_integer(values.get("RANK")), as_integer(values.get("WORLD_SIZE"))
        if rank is not None and size is not None:
            ranks.append(HandStartedRank(line, program, rank, size))
    return ranks


def hand_started_job(launch: Launch) -> list[HandStartedRank]:
    """The ranks of one job, one per `--node` line; [] if a line is something else."""
    ranks = [rank for rank in hand_started_ranks(launch) if rank.line.node is not None]
    return ranks if 1 < len(ranks) == len(launch.nodes) else []


def set_variable(variable: Variable, value: str) -> list[SpanEdit]:
    word = variable.word
    return [SpanEdit(word.start, word.end, escape(f"{variable.name}={quote(value)}", word.context))]


def differing_variable(launch: Launch, name: str) -> Iterator[Finding]:
    """One variable that differs between the lines: a finding at the line of the minority, on a tie the last one."""
    job = [(rank, variable) for rank in hand_started_job(launch) if (variable := rank.variable(name)) is not None]
    counts = Counter(variable.value for _, variable in job)
    if len(counts) < 2:
        return
    common = counts.most_common(1)[0][0]
    odd, variable = next((rank, v) for rank, v in reversed(job) if v.value != common)
    text = f"{name}={shorten(variable.value)} on node {odd.line.node}, but {shorten(common)} on the others"
    if len(counts) > 2 or counts[common] * 2 <= len(job):
        text = f"{name} differs: " + ", ".join(f"{shorten(v.value)} on node {rank.line.node}" for rank, v in job[:8])
    edits = set_variable(variable, common)
    yield point(launch, odd.line, variable.word, text, common, edits, label="use the same value everywhere")
