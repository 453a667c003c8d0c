"""PROBE505 to PROBE508: how the ranks of a rehearsed script ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.findings import CausalStage, Certainty, Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal, RehearsedRank

LONGEST = 160


@cause("PROBE505", "rehearsed-script-raised", Severity.ERROR, stage=CausalStage.DEATH)
def rehearsed_script_raised() -> None:
    """The script raises an exception when it is rehearsed.

    ## Why it matters
    The job would end there as well, after it has waited for its GPUs and loaded its data. If one rank raises, the others wait
    for it: `Connection closed by peer`, or a watchdog timeout.

    ## Fix
    Correct the line of the exception.

    If it only fails because there are fewer ranks than in the job, rehearse with more: `--ranks N`.

    ## Example
        rank 1 raised KeyError: 'LOCAL_RANK' at train.py:12
        # before
        local_rank = int(os.environ["LOCAL_RANKS"])

        # after
        local_rank = int(os.environ["LOCAL_RANK"])
    """


@rehearsed_script_raised.look
def raised(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Exceptions that ended the script, once for all ranks that have the same one."""
    from ddpdoctor.dumps.conflict import ranges
    from ddpdoctor.facts.rehearsal import RankEnd
    from ddpdoctor.rules.rehearsal.difference_findings import file_of

    if rehearsal.obstacle is not None or rehearsal.difference is not None or _has_other_cause(rehearsal):
        return
    groups: dict[object, list[RehearsedRank]] = {}
    failed = [rank for rank in (*rehearsal.ranks, *rehearsal.others) if rank.end is RankEnd.RAISED]
    is_explained = any(not _is_of_peer(rank, rehearsal) for rank in failed) or bool(_dead(rehearsal))
    for rank in failed:
        if not is_explained or not _is_of_peer(rank, rehearsal):
            groups.setdefault((rank.error, rank.place), []).append(rank)
    for ranks in groups.values():
        first, place = ranks[0], ranks[0].place
        numbers = tuple(rank.rank for rank in ranks if rank.rank >= 0)
        text = " ".join(first.text.split())[:LONGEST]
        is_smaller = rehearsal.asked is not None
        yield Finding(
            f"{ranges(numbers) if numbers else 'the script'} raised {first.error}{f': {text}' if text else ''}",
            evidence=(Evidence(f"rehearsal.{place}", f"{first.error}: {text}", "no exception"),),
            where=Where(
                rank=numbers[0] if len(numbers) == 1 else None,
                file=file_of(rehearsal, place),
                line=None if place is None else place.line,
            ),
            ranks=numbers,
            label=f"{first.error}"
            + (f" with {len(rehearsal.ranks)} ranks instead of {rehearsal.asked}" if is_smaller else ""),
            certainty=Certainty.LIKELY if is_smaller else Certainty.CERTAIN,
        )


def _has_other_cause(rehearsal: Rehearsal) -> bool:
    """Whether the exception only follows from what was seen before it."""
    from ddpdoctor.facts.rehearsal import ObservationKind

    causes = (
        ObservationKind.SAME_RANK,
        ObservationKind.RANK_OUTSIDE,
        ObservationKind.BAD_FORK,
        ObservationKind.BAD_ORDINAL,
        ObservationKind.REFUSED,
        ObservationKind.SECOND_INIT,
        ObservationKind.UNUSED_PARAMETERS,
        ObservationKind.FROZEN_AFTER_WRAP,
        ObservationKind.SPAWN_UNDER_LAUNCHER,
        ObservationKind.FOLDER_RACE,
    )
    return any(observation.kind in causes for observation in rehearsal.observations)


def _is_of_peer(rank: RehearsedRank, rehearsal: Rehearsal) -> bool:
    """Whether a rank only failed because another one did."""
    from ddpdoctor.facts.rehearsal import RankEnd

    words = (
        "closed by peer",
        "reset by peer",
        "Broken pipe",
        "Connection refused",
        "terminated with the following error",
        "terminated with exit code",
    )
    others = any(
        other is not rank and other.end in (RankEnd.RAISED, RankEnd.KILLED, RankEnd.EXITED) for other in rehearsal.ranks
    )
    return others and any(word in rank.text for word in words)


@cause("PROBE506", "rehearsed-rank-killed", Severity.ERROR, stage=CausalStage.DEATH)
def rehearsed_rank_killed() -> None:
    """A rank of the rehearsed script ended without an exception, by a signal or exit code.

    ## Why it matters
    The launcher reports `exitcode: -11` or similar without a traceback, and ends all other ranks.

    ## Fix
    Look at the line: a crash in native code, `os._exit`, or too little memory.

    ## Example
        rank 1 was killed by SIGSEGV at train.py:33
        # before
        ctypes.string_at(0)

        # after
        ctypes.string_at(pointer)
    """


@rehearsed_rank_killed.look
def killed(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Ranks that ended by a signal, or with an exit code of their own."""
    from ddpdoctor.facts.rehearsal import RankEnd
    from ddpdoctor.rules.rehearsal.difference_findings import file_of

    if rehearsal.difference is not None:
        return
    if any(rank.end is RankEnd.RAISED and not _is_of_peer(rank, rehearsal) for rank in rehearsal.ranks):
        return
    for rank in _dead(rehearsal):
        code = rank.exit_code
        how = f"was killed by {signal_name(-code)}" if code is not None and code < 0 else f"ended with exit code {code}"
        yield Finding(
            f"rank {rank.rank} {how}",
            evidence=(Evidence(f"rehearsal.ranks[{rank.rank}]", how, "the end of the script"),),
            where=Where(
                rank=rank.rank,
                file=file_of(rehearsal, rank.place),
                line=None if rank.place is None else rank.place.line,
            ),
            ranks=(rank.rank,),
            label="the last line that was seen",
        )


def _dead(rehearsal: Rehearsal) -> list[RehearsedRank]:
    """Ranks that ended by a signal or with an exit code of their own; SIGKILL also ends what is left of a rehearsal."""
    from ddpdoctor.facts.rehearsal import RankEnd

    found = [
        rank
        for rank in rehearsal.ranks
        if rank.end is RankEnd.KILLED or (rank.end is RankEnd.EXITED and rank.exit_code not in (0, None))
    ]
    return [rank for rank in found if rank.exit_code != -9] or found


SIGNALS = {
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    13: "SIGPIPE",
    15: "SIGTERM",
}


def signal_name(number: int) -> str:
    """`SIGSEGV`, or `signal 40`."""
    return SIGNALS.get(number, f"signal {number}")


@cause("PROBE507", "rehearsed-rank-elsewhere", Severity.WARNING, stage=CausalStage.NOT_IN_COLLECTIVE)
def rehearsed_rank_elsewhere() -> None:
    """The ranks of the rehearsed script wait for one that is busy or blocked.

    ## Why it matters
    If that rank does not arrive within the timeout (10 minutes with NCCL, 30 with Gloo), the job ends with `Watchdog
    caught collective operation timeout`.

    ## Fix
    Look at the line where the rank is. If it only needs longer, rehearse with more time: `--seconds 300`.

    ## Example
        ranks 1-3 wait in barrier at train.py:40; rank 0 is at data.py:12
        # before
        if rank == 0:
            queue.get()
        dist.barrier()

        # after
        if rank == 0:
            queue.get(timeout=60)
        dist.barrier()
    """


@rehearsed_rank_elsewhere.look
def elsewhere(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A rank is not in the call in which the others wait."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    for finding in difference_findings(rehearsal, DifferenceKind.ABSENT, label="the other ranks wait for this one"):
        is_certain = rehearsal.difference is not None and rehearsal.difference.is_certain
        yield finding.if_certain(is_certain)


@cause("PROBE508", "rehearsal-end-caught", Severity.NOTE)
def rehearsal_end_caught() -> None:
    """The script catches every exception, including the one that ends its rehearsal.

    ## Why it matters
    A bare `except:` or `except BaseException:` also swallows Ctrl-C and the exception of a rank that must end: the other ranks
    wait for it.

    ## Fix
    Catch `Exception`, and let all other exceptions propagate.

    ## Example
        # before
        try:
            train()
        except:
            pass

        # after
        try:
            train()
        except Exception as error:
            log(error)
            raise
    """


@rehearsal_end_caught.look
def caught(rehearsal: Rehearsal) -> Iterator[Finding]:
    """The exception that ends the rehearsal was caught."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.SWALLOWED,
        lambda o, who: "the script caught the exception that ends its rehearsal, and continued",
        label="the script continued here",
        expected="the end of the script",
    )
