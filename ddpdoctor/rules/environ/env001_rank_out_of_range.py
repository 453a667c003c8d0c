"""ENV001: a rank that the job does not have."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.launch.hand_started_ranks import hand_started_ranks
from ddpdoctor.rules.launch.pointing import point
from ddpdoctor.rules.observation_findings import observed


@cause(
    "ENV001",
    "rank-out-of-range",
    Severity.ERROR,
    scope=CauseScope.PROCESS,
    signatures=(r"rank < size\. \d+ vs \d+", r"Invalid rank requested : \d+/\d+"),
)
def rank_out_of_range(environ: Environ | None = None, probe: Probe | None = None) -> Iterator[Finding]:
    """RANK is not one of 0 to WORLD_SIZE-1.

    ## Why it matters
    Ranks count from 0. Gloo stops only this process, with `rank < size. 2 vs 2`; a rank that is never filled keeps all
    the others in init_process_group until `Timed out after … seconds waiting for clients`, so the healthy nodes look
    stuck.

    ## Fix
    Number the ranks 0 to WORLD_SIZE-1, or set WORLD_SIZE to the real number of processes; torchrun does both.

    ## Source
    torch/distributed/rendezvous.py: `_env_rendezvous_handler` takes RANK and WORLD_SIZE without comparing them.
    """
    if environ is None and probe is None:
        not_here("neither an environment nor a probe was collected")
    seen = probe.seen(Kind.RANK_OUT_OF_RANGE) if probe is not None else ()
    yield from observed(seen, expected="a RANK smaller than WORLD_SIZE")
    if environ is not None:
        told = {rank for each in seen for rank in each.ranks}
        names = next((pair for pair in _names(environ) if _is_outside(environ, pair)), None)
        if names is not None and environ.integer(names[0]) not in told:
            yield _finding(environ, names)


def _names(environ: Environ) -> Iterator[tuple[str, str]]:
    """The variables of rank and world size: torch's, then those of the launcher, first the ones that it shows."""
    yield "RANK", "WORLD_SIZE"
    launcher = environ.launcher
    if launcher is not None and not launcher.counts_pods:
        ranks, sizes = (filter(environ.has, names) for names in (launcher.rank, launcher.world_size))
        yield next(ranks, "RANK"), next(sizes, "WORLD_SIZE")


def _is_outside(environ: Environ, names: tuple[str, str]) -> bool:
    rank, world = (environ.integer(name) for name in names)
    if rank is None or world is None or 0 <= rank < world:
        return False
    return not (rank == -1 and world == 1)  # the usual way of saying "not distributed"


def _finding(environ: Environ, names: tuple[str, str]) -> Finding:
    rank, world = (environ.integer(name) or 0 for name in names)
    allowed = f"0 to {world - 1}" if world > 0 else f"a {names[1]} of at least 1"
    return Finding(
        f"{names[0]}={rank} with {names[1]}={world}: expected {allowed}",
        (
            Evidence(f"environ.variables.{names[0]}", str(rank), allowed),
            Evidence(f"environ.variables.{names[1]}", str(world)),
        ),
        where=Where(rank=rank) if rank >= 0 else Where(),
        ranks=(rank,) if rank >= 0 else (),
    )


@rank_out_of_range.look
def rank_out_of_range_in_line(launch: Launch) -> Iterator[Finding]:
    """A rank that is not below the number of ranks."""
    for each in hand_started_ranks(launch):
        variable = each.variable("RANK")
        if variable is not None and not 0 <= each.rank < each.size:
            text = f"RANK={each.rank} of WORLD_SIZE={each.size}: expected 0 to {each.size - 1}"
            yield point(launch, each.line, variable.word, text, f"0 to {each.size - 1}")
