"""ENV500 to ENV504: the variables that env:// needs: all are set, integers, and consistent."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ, as_integer, shorten
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import CauseScope, cause

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""In the order in which torch reads them: its error names only the first one that is missing."""
NUMBERS = {
    "RANK": Severity.ERROR,
    "WORLD_SIZE": Severity.ERROR,
    "LOCAL_RANK": Severity.ERROR,
    "LOCAL_WORLD_SIZE": Severity.ERROR,
    "GROUP_RANK": Severity.WARNING,
    "GROUP_WORLD_SIZE": Severity.WARNING,
    "NODE_RANK": Severity.WARNING,
    "NNODES": Severity.WARNING,
}


@cause("ENV500", "rendezvous-variable-missing", Severity.ERROR, scope=CauseScope.PROCESS)
def rendezvous_variable_missing(environ: Environ, probe: Probe | None = None) -> Iterator[Finding]:
    """Some of RANK, WORLD_SIZE, MASTER_ADDR, and MASTER_PORT are set, and another one is missing or empty.

    ## Why it matters
    init_process_group fails with `environment variable WORLD_SIZE expected, but not set`, one name at a time. An
    empty value counts as missing; it is usually a command substitution that found nothing.

    ## Fix
    Export all four in every process, or start the processes with torchrun, which sets them.

    ## Example

        ValueError: … environment variable WORLD_SIZE expected, but not set

        # before
        RANK=0 MASTER_ADDR=node0 MASTER_PORT=29500 python train.py
        # after
        RANK=0 WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29500 python train.py

    ## Source
    torch/distributed/rendezvous.py: `_env_rendezvous_handler`.
    """
    absent = [name for name in NEEDED if not environ.has(name)]
    present = [name for name in NEEDED if environ.has(name)]
    empty = [name for name in absent if environ.get(name) == ""]
    if not absent or not present or environ.integer("RANK") == -1:
        return
    if probe is not None and probe.seen(Kind.BAD_ENVIRONMENT):
        severity = None  # a rank has failed because of it
    elif empty:
        severity = None if environ.has("RANK") or environ.has("WORLD_SIZE") else Severity.WARNING
    elif environ.has("RANK"):
        severity = Severity.WARNING  # a script may still set the others itself
    elif absent == ["RANK"] and environ.launcher is None and environ.scheduler is None:
        severity = Severity.NOTE  # each process may get its RANK on its own command line
    else:
        return
    unset = [name for name in absent if name not in empty]
    shown = [f"{_listed(unset)} not set"] if unset else []
    shown += [f"{_listed(empty)} empty"] if empty else []
    yield Finding(
        f"{' and '.join(shown)}, but {_listed(present)} set",
        tuple(Evidence(f"environ.variables.{name}", "empty" if name in empty else "unset", "set") for name in absent),
        severity=severity,
    )


def _listed(names: list[str]) -> str:
    """`RANK is` or `RANK, WORLD_SIZE are`."""
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


@cause("ENV501", "local-rank-not-set", Severity.NOTE, scope=CauseScope.PROCESS)
def local_rank_not_set(environ: Environ) -> Iterator[Finding]:
    """RANK and WORLD_SIZE were set by hand, but LOCAL_RANK was not.

    ## Why it matters
    torch itself does not need LOCAL_RANK, but most scripts choose their GPU with it. They fail with `KeyError:
    'LOCAL_RANK'`, or use 0 and put every rank of the node on one GPU.

    ## Fix
    Export LOCAL_RANK, the rank within the node, or start the processes with torchrun.

    ## Example

        KeyError: 'LOCAL_RANK'

        # before
        RANK=0 WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29500 python train.py
        # after
        RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29500 python train.py
    """
    launcher = environ.launcher
    if launcher is None or launcher.name != "by-hand" or environ.has("LOCAL_RANK") or environ.scheduler is not None:
        return
    if (environ.world_size or 0) < 2 or (environ.rank or 0) < 0:
        return
    rank = shorten(environ.get("RANK") or "") if environ.rank is None else environ.rank
    yield Finding(
        f"RANK={rank} and WORLD_SIZE={environ.world_size} are set, but LOCAL_RANK is not",
        (Evidence("environ.variables.LOCAL_RANK", "unset", "the rank within the node"),),
        where=Where(rank=environ.rank),
        ranks=() if environ.rank is None else (environ.rank,),
    )


@cause("ENV502", "rank-variable-not-integer", Severity.ERROR, scope=CauseScope.PROCESS)
def rank_variable_not_integer(environ: Environ) -> Iterator[Finding]:
    """A variable that counts ranks or nodes is not an integer.

    ## Why it matters
    torch and the scripts call int() on it: `ValueError: invalid literal for int() with base 10: '2.0'`. The
    traceback does not name the variable.

    ## Fix
    Set it to a plain integer such as 0, without a fraction, a unit, or quotes, or let the launcher set it.

    ## Example

        ValueError: invalid literal for int() with base 10: '2.0'

        # before
        export WORLD_SIZE=2.0
        # after
        export WORLD_SIZE=2
    """
    for name, severity in NUMBERS.items():
        value = environ.get(name)
        if not value or as_integer(value) is not None:
            continue
        yield Finding(
            f"{name}={shorten(value)} is not an integer",
            (Evidence(f"environ.variables.{name}", shorten(value), "an integer"),),
            severity=severity,
        )


@cause("ENV503", "group-rank-out-of-range", Severity.ERROR, scope=CauseScope.PROCESS)
def group_rank_out_of_range(environ: Environ) -> Iterator[Finding]:
    """The rank of this node is not between 0 and the number of nodes minus 1.

    ## Why it matters
    Nodes count from 0. A node rank that is too large means that another one never joins, and the nodes wait until
    `Timed out after 901 seconds waiting for clients`.

    ## Fix
    Number the nodes from 0 to the number of nodes minus 1.

    ## Example

        Timed out after 901 seconds waiting for clients. 1/2 clients joined.

        # before
        torchrun --nnodes 2 --node-rank 2 --master-addr node0 train.py    # on the second node
        # after
        torchrun --nnodes 2 --node-rank 1 --master-addr node0 train.py    # on the second node
    """
    for name, total_name in (
        ("GROUP_RANK", "GROUP_WORLD_SIZE"),
        ("NODE_RANK", "NNODES"),
        ("PET_NODE_RANK", "PET_NNODES"),
    ):
        index = environ.integer(name)
        total = as_integer((environ.get(total_name) or "").rpartition(":")[2])  # PET_NNODES may be MIN:MAX
        if index is None or total is None or total < 1 or 0 <= index < total:
            continue
        yield Finding(
            f"{name}={index} is outside 0 to {total - 1} ({total_name}={shorten(environ.variables[total_name])})",
            (Evidence(f"environ.variables.{name}", str(index), f"0 to {total - 1}"),),
            where=Where(node_rank=index) if index >= 0 else Where(),
        )


@cause("ENV504", "rank-below-local-rank", Severity.WARNING, scope=CauseScope.PROCESS)
def rank_below_local_rank(environ: Environ) -> Iterator[Finding]:
    """RANK is smaller than LOCAL_RANK, which no valid numbering produces.

    ## Why it matters
    The two come from different sources: usually RANK was exported once for all processes, or is the number of a
    node or a pod. Several processes then have the same RANK, and init_process_group waits for ranks that no process
    has.

    ## Fix
    Take RANK and LOCAL_RANK from the same launcher; if you know the node rank, RANK is node_rank * nproc_per_node +
    LOCAL_RANK.

    ## Example

        RANK=0 is smaller than LOCAL_RANK=1

        # before, in every process of node 0
        export RANK=$NODE_RANK
        # after
        export RANK=$((NODE_RANK * LOCAL_WORLD_SIZE + LOCAL_RANK))
    """
    rank, local_rank = environ.integer("RANK"), environ.integer("LOCAL_RANK")
    if rank is None or local_rank is None or rank < 0 or rank >= local_rank:
        return
    local_size = environ.integer(environ.local_size_name)
    if local_size is not None and local_rank >= local_size:
        return  # ENV003: LOCAL_RANK is the wrong one
    yield Finding(
        f"RANK={rank} is smaller than LOCAL_RANK={local_rank}",
        (
            Evidence("environ.variables.RANK", str(rank), f"at least {local_rank}"),
            Evidence("environ.variables.LOCAL_RANK", str(local_rank)),
        ),
    )
