"""What ranks observed, in causal order: which observation is the cause of the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.findings import Stage

__all__ = ["NEEDS_NO_GRACE", "STAGES", "weigh"]

STAGES: dict[Kind, Stage] = {
    Kind.BAD_ENVIRONMENT: Stage.FAULT,
    Kind.RANK_OUT_OF_RANGE: Stage.FAULT,
    Kind.DUPLICATE_RANK: Stage.FAULT,
    Kind.WORLD_SIZE_DIFFERS: Stage.FAULT,
    Kind.DUPLICATE_GPU: Stage.FAULT,
    Kind.PORT_TAKEN: Stage.ADDRESS,
    Kind.MASTER_ELSEWHERE: Stage.ADDRESS,
    Kind.STRANGER: Stage.ADDRESS,
    Kind.UNRESOLVABLE: Stage.ADDRESS,
    Kind.OUT_OF_FILES: Stage.OPEN_FILES,
    Kind.GLOO_NO_INTERFACE: Stage.INTERFACE,
    Kind.GLOO_LOOPBACK: Stage.INTERFACE,
    Kind.IMPORT_FAILED: Stage.IMPORT,
    Kind.MISMATCH: Stage.MISMATCH,
    Kind.DIED: Stage.DEATH,
    Kind.STOPPED: Stage.STOPPED,
    Kind.HOST_LOST: Stage.HOST_LOST,
    Kind.UNINTERRUPTIBLE: Stage.UNINTERRUPTIBLE,
    Kind.EXCEPTION: Stage.RANK_ERROR,
    Kind.WRONG_VALUE: Stage.RANK_ERROR,
    Kind.ELSEWHERE: Stage.NOT_IN_COLLECTIVE,
    Kind.MASTER_WITHOUT_HOST: Stage.REACHABILITY,
    Kind.NO_ROUTE: Stage.REACHABILITY,
    Kind.REFUSED: Stage.REACHABILITY,
    Kind.SILENT: Stage.REACHABILITY,
    Kind.PORT_DROPPED: Stage.REACHABILITY,
    Kind.PORT_REJECTED: Stage.REACHABILITY,
    Kind.UNREACHABLE: Stage.REACHABILITY,
    Kind.NEVER_JOINED: Stage.REACHABILITY,
    Kind.LINK_BLACK_HOLE: Stage.BLACK_HOLE,
    Kind.LINK_BLOCKED: Stage.BLOCKED_LINK,
    Kind.GLOO_UNREACHABLE: Stage.BLOCKED_LINK,
    Kind.PEER_ERROR: Stage.PEER_ERROR,
    Kind.STORE_LOST: Stage.STORE_LOST,
    Kind.OUT_OF_TIME: Stage.OUT_OF_TIME,
    Kind.HANG: Stage.HANG,
    Kind.TERMINATED: Stage.TERMINATED,
}
"""The stage of everything that a rank can observe."""

NEEDS_NO_GRACE = frozenset((Kind.BAD_ENVIRONMENT, Kind.RANK_OUT_OF_RANGE, Kind.DUPLICATE_RANK))
"""Nothing that other ranks could still tell would explain these better."""


def weigh(observations: Iterable[Observation]) -> tuple[Observation, ...]:
    """Order evidence by stage, whoever was first to tell, and mark what is a cause and what follows from one.

    Within a stage, a death by abort comes last: a peer's death makes Gloo abort its process. That a rank ended which had
    said that it was told to is no news.
    """
    evidence = dict.fromkeys(observations)
    told = {o.ranks for o in evidence if o.kind is Kind.TERMINATED}
    found = sorted((o for o in evidence if not (o.ranks in told and _is_seen_to_end(o))), key=_weight)
    return tuple(replace(o, is_cause=STAGES[o.kind] == STAGES[found[0].kind]) for o in found)


def _is_seen_to_end(observation: Observation) -> bool:
    """Whether others only saw that its supervisor went away."""
    return observation.kind is Kind.DIED and observation.signal is None and observation.seen_by not in observation.ranks


def _weight(observation: Observation) -> tuple[Stage, bool, tuple[int, ...], str]:
    return (STAGES[observation.kind], observation.signal == "SIGABRT", observation.ranks, observation.message)
