"""ENV001, ENV004, ENV005, ENV019, ENV020 on lines that start one rank each: python with RANK and WORLD_SIZE before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from ddpdoctor.facts.environ import as_integer
from ddpdoctor.facts.launch.layer import Layer, Variable
from ddpdoctor.facts.launch.programs import Launcher
from ddpdoctor.facts.launch.record import Launch, Line
from ddpdoctor.facts.launch.words import Edit, escape, is_known, quote
from ddpdoctor.findings import Finding
from ddpdoctor.rules import on_lines
from ddpdoctor.rules.environ.env001_rank_out_of_range import check as out_of_range
from ddpdoctor.rules.environ.env004_duplicate_rank import check as duplicate
from ddpdoctor.rules.environ.env005_world_size_mismatch import check as size_differs
from ddpdoctor.rules.environ.env019_master_port_differs import check as port_differs
from ddpdoctor.rules.environ.env020_master_addr_differs import check as addr_differs
from ddpdoctor.rules.launch.pointing import point


class _Rank(NamedTuple):
    line: Line
    program: Layer
    rank: int
    size: int

    def variable(self, name: str) -> Variable | None:
        return next((v for v in reversed(self.program.variables) if v.name == name and is_known(v.value)), None)


def _ranks(launch: Launch) -> list[_Rank]:
    """The lines that say by themselves which rank they start."""
    found = []
    for line in launch.lines:
        program = line.program
        if program is None or program.launcher is not Launcher.PYTHON or line.starter or line.task_starter:
            continue
        told = {v.name: v.value for v in program.variables}
        rank, size = as_integer(told.get("RANK")), as_integer(told.get("WORLD_SIZE"))
        if rank is not None and size is not None:
            found.append(_Rank(line, program, rank, size))
    return found


def _job(launch: Launch) -> list[_Rank]:
    """The ranks of one job, one a `--node` line; [] where a line is something else."""
    found = [each for each in _ranks(launch) if each.line.node is not None]
    return found if 1 < len(found) == len(launch.nodes) else []


def _set(variable: Variable, value: str) -> list[Edit]:
    word = variable.word
    return [Edit(word.start, word.end, escape(f"{variable.name}={quote(value)}", word.context))]


@on_lines(out_of_range)
def rank_out_of_range(launch: Launch) -> Iterator[Finding]:
    """A rank that is not below the number of ranks."""
    for each in _ranks(launch):
        variable = each.variable("RANK")
        if variable is not None and not 0 <= each.rank < each.size:
            text = f"RANK={each.rank} of WORLD_SIZE={each.size}: expected 0 to {each.size - 1}"
            yield point(launch, each.line, variable.word, text, f"0 to {each.size - 1}")


@on_lines(duplicate)
def same_rank(launch: Launch) -> Iterator[Finding]:
    """Two lines of one job that start the same rank."""
    job = _job(launch)
    counts = Counter(each.rank for each in job)
    absent = sorted(set(range(max((each.size for each in job), default=0))) - set(counts))
    for rank, count in counts.items():
        if count < 2:
            continue
        same = [each for each in job if each.rank == rank]
        last = same[-1].variable("RANK")
        if last is not None:
            nodes = ", ".join(str(each.line.node) for each in same)
            text = f"{count} lines start RANK={rank} (nodes {nodes}): expected every rank once"
            edits = _set(last, str(absent[0])) if len(absent) == 1 and count == 2 else None
            yield point(launch, same[-1].line, last.word, text, "a rank of its own", edits)


def _differing(launch: Launch, name: str) -> Iterator[Finding]:
    """One variable that is not the same on all lines: the line of the minority, on a tie the last one."""
    job = [(each, variable) for each in _job(launch) if (variable := each.variable(name)) is not None]
    counts = Counter(variable.value for _, variable in job)
    if len(counts) < 2:
        return
    common = counts.most_common(1)[0][0]
    odd, variable = next((each, v) for each, v in reversed(job) if v.value != common)
    told = ", ".join(f"node {each.line.node}: {v.value}" for each, v in job[:8])
    text = f"{name} differs between the lines ({told}): expected one value"
    yield point(launch, odd.line, variable.word, text, common, _set(variable, common))


@on_lines(size_differs)
def sizes(launch: Launch) -> Iterator[Finding]:
    """Lines of one job with different numbers of ranks."""
    yield from _differing(launch, "WORLD_SIZE")


@on_lines(port_differs)
def ports(launch: Launch) -> Iterator[Finding]:
    """Lines of one job with different ports."""
    yield from _differing(launch, "MASTER_PORT")


@on_lines(addr_differs)
def addresses(launch: Launch) -> Iterator[Finding]:
    """Lines of one job with different addresses."""
    yield from _differing(launch, "MASTER_ADDR")
