"""ENV001: RANK is outside 0 to WORLD_SIZE-1."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.launch.hand_started_ranks import hand_started_ranks
from ddpdoctor.rules.launch.pointing import point
from ddpdoctor.rules.launch.submitted import at_mark, numbered_ranks, option_mark, source_of
from ddpdoctor.rules.observation_findings import observed


@cause(
    "ENV001",
    "rank-out-of-range",
    Severity.ERROR,
    scope=CauseScope.PROCESS,
    signatures=(r"rank < size\. \d+ vs \d+", r"Invalid rank requested : \d+/\d+"),
    repairs=("rank-variable",),
)
def rank_out_of_range(environ: Environ | None = None, probe: Probe | None = None) -> Iterator[Finding]:
    """RANK is not one of 0 to WORLD_SIZE-1.

    ## Why it matters
    Gloo stops the process that has this rank with `rank < size. 2 vs 2`. The other ranks wait in init_process_group
    for a rank that never joins and end with `Timed out after … seconds waiting for clients`.

    ## Fix
    Number the ranks from 0 to WORLD_SIZE-1, or set WORLD_SIZE to the number of processes; torchrun does both.

    ## Example

        RuntimeError: [enforce fail at …] rank < size. 2 vs 2

        # before: two processes, numbered from 1
        RANK=1 WORLD_SIZE=2 python train.py    # node 0
        RANK=2 WORLD_SIZE=2 python train.py    # node 1

        # after
        RANK=0 WORLD_SIZE=2 python train.py    # node 0
        RANK=1 WORLD_SIZE=2 python train.py    # node 1

    ## Source
    torch/distributed/rendezvous.py: `_env_rendezvous_handler` takes RANK and WORLD_SIZE without comparing them.
    """
    if environ is None and probe is None:
        not_here("neither an environment nor a probe was collected")
    observations = probe.seen(Kind.RANK_OUT_OF_RANGE) if probe is not None else ()
    yield from observed(observations, expected="a RANK smaller than WORLD_SIZE")
    if environ is not None:
        reported = {rank for observation in observations for rank in observation.ranks}
        names = next((pair for pair in _names(environ) if _is_outside(environ, pair)), None)
        if names is not None and environ.integer(names[0]) not in reported:
            yield _finding(environ, names)


def _names(environ: Environ) -> Iterator[tuple[str, str]]:
    """The variables of the rank and the world size: torch's, then the launcher's, those that are set first."""
    yield "RANK", "WORLD_SIZE"
    launcher = environ.launcher
    if launcher is not None and not launcher.counts_pods:
        ranks, sizes = (filter(environ.has, names) for names in (launcher.rank, launcher.world_size))
        yield next(ranks, "RANK"), next(sizes, "WORLD_SIZE")


def _is_outside(environ: Environ, names: tuple[str, str]) -> bool:
    rank, world = (environ.integer(name) for name in names)
    if rank is None or world is None or 0 <= rank < world:
        return False
    return not (rank == -1 and world == 1)  # the common notation for "not distributed"


def _finding(environ: Environ, names: tuple[str, str]) -> Finding:
    rank, world = (environ.integer(name) or 0 for name in names)
    allowed = f"0 to {world - 1}" if world > 0 else f"a {names[1]} of at least 1"
    outside = f"{names[0]}={rank} is outside {allowed} ({names[1]}={world})"
    return Finding(
        outside if world > 0 else f"{names[1]}={world} leaves no rank for {names[0]}={rank}",
        (
            Evidence(f"environ.variables.{names[0]}", str(rank), allowed),
            Evidence(f"environ.variables.{names[1]}", str(world)),
        ),
        where=Where(rank=rank) if rank >= 0 else Where(),
        ranks=(rank,) if rank >= 0 else (),
    )


@rank_out_of_range.look
def rank_out_of_range_in_line(launch: Launch) -> Iterator[Finding]:
    """A launch line whose RANK is outside 0 to WORLD_SIZE-1."""
    for process in hand_started_ranks(launch):
        variable = process.variable("RANK")
        if variable is not None and not 0 <= process.rank < process.size:
            allowed = f"0 to {process.size - 1}"
            text = f"RANK={process.rank} is outside {allowed} (WORLD_SIZE={process.size})"
            yield point(launch, process.line, variable.word, text, allowed, label=f"use {allowed}")


@rank_out_of_range.look
def of_tasks(submission: Submission) -> Iterator[Finding]:
    """The ranks that a job file starts are more than its WORLD_SIZE."""
    for step, ranks, size in numbered_ranks(submission):
        if max(ranks) >= size:
            task = step.tasks[0]
            text = f"WORLD_SIZE is {size}, but {source_of(task)} starts ranks up to {max(ranks)}"
            mark, label = task.set_at.get("WORLD_SIZE") or option_mark(submission, task), f"{len(ranks)} ranks start"
            yield at_mark(submission, mark, text, seen=f"WORLD_SIZE={size}", expected=str(len(ranks)), label=label)
