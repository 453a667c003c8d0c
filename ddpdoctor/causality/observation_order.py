"""Orders the ranks' observations: finds the one that is the cause of the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.findings import CausalStage

__all__ = ["NEEDS_NO_GRACE", "STAGES", "weigh"]

STAGES: dict[Kind, CausalStage] = {
    Kind.BAD_ENVIRONMENT: CausalStage.FAULT,
    Kind.RANK_OUT_OF_RANGE: CausalStage.FAULT,
    Kind.DUPLICATE_RANK: CausalStage.FAULT,
    Kind.WORLD_SIZE_DIFFERS: CausalStage.FAULT,
    Kind.DUPLICATE_GPU: CausalStage.FAULT,
    Kind.PORT_TAKEN: CausalStage.ADDRESS,
    Kind.MASTER_ELSEWHERE: CausalStage.ADDRESS,
    Kind.STRANGER: CausalStage.ADDRESS,
    Kind.UNRESOLVABLE: CausalStage.ADDRESS,
    Kind.OUT_OF_FILES: CausalStage.OPEN_FILES,
    Kind.GLOO_NO_INTERFACE: CausalStage.INTERFACE,
    Kind.GLOO_LOOPBACK: CausalStage.INTERFACE,
    Kind.IMPORT_FAILED: CausalStage.IMPORT,
    Kind.MISMATCH: CausalStage.MISMATCH,
    Kind.DIED: CausalStage.DEATH,
    Kind.STOPPED: CausalStage.STOPPED,
    Kind.HOST_LOST: CausalStage.HOST_LOST,
    Kind.UNINTERRUPTIBLE: CausalStage.UNINTERRUPTIBLE,
    Kind.EXCEPTION: CausalStage.RANK_ERROR,
    Kind.WRONG_VALUE: CausalStage.RANK_ERROR,
    Kind.ELSEWHERE: CausalStage.NOT_IN_COLLECTIVE,
    Kind.MASTER_WITHOUT_HOST: CausalStage.REACHABILITY,
    Kind.NO_ROUTE: CausalStage.REACHABILITY,
    Kind.REFUSED: CausalStage.REACHABILITY,
    Kind.SILENT: CausalStage.REACHABILITY,
    Kind.PORT_DROPPED: CausalStage.REACHABILITY,
    Kind.PORT_REJECTED: CausalStage.REACHABILITY,
    Kind.UNREACHABLE: CausalStage.REACHABILITY,
    Kind.NEVER_JOINED: CausalStage.REACHABILITY,
    Kind.LINK_BLACK_HOLE: CausalStage.BLACK_HOLE,
    Kind.LINK_BLOCKED: CausalStage.BLOCKED_LINK,
    Kind.GLOO_UNREACHABLE: CausalStage.BLOCKED_LINK,
    Kind.PEER_ERROR: CausalStage.PEER_ERROR,
    Kind.STORE_LOST: CausalStage.STORE_LOST,
    Kind.OUT_OF_TIME: CausalStage.OUT_OF_TIME,
    Kind.HANG: CausalStage.HANG,
    Kind.TERMINATED: CausalStage.TERMINATED,
}
"""The stage of each kind of observation."""

NEEDS_NO_GRACE = frozenset((Kind.BAD_ENVIRONMENT, Kind.RANK_OUT_OF_RANGE, Kind.DUPLICATE_RANK))
"""Kinds for which no observation of another rank can be a better explanation."""


def weigh(observations: Iterable[Observation]) -> tuple[Observation, ...]:
    """Order observations by stage, not by time, and mark which are causes and which are consequences.

    Within a stage, a death by abort comes last: a peer's death makes Gloo abort its process. The end of a
    rank that reported SIGTERM is left out.
    """
    evidence = dict.fromkeys(observations)
    terminated = {o.ranks for o in evidence if o.kind is Kind.TERMINATED}
    found = sorted((o for o in evidence if not (o.ranks in terminated and _is_seen_to_end(o))), key=_weight)
    return tuple(replace(o, is_cause=STAGES[o.kind] == STAGES[found[0].kind]) for o in found)


def _is_seen_to_end(observation: Observation) -> bool:
    """Whether other ranks only noticed that its supervisor was gone."""
    return observation.kind is Kind.DIED and observation.signal is None and observation.seen_by not in observation.ranks


def _weight(observation: Observation) -> tuple[CausalStage, bool, tuple[int, ...], str]:
    return (STAGES[observation.kind], observation.signal == "SIGABRT", observation.ranks, observation.message)
