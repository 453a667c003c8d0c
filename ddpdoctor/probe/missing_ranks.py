"""Who is missing when the time runs out: one observation for each node, or host, that the others waited for."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.facts.launchers import TORCHRUN
from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.probe.rank_env import Place
from ddpdoctor.probe.store_keys import Board

__all__ = ["behind", "cut_off", "left_out", "never_joined"]


def never_joined(board: Board, place: Place, seconds: float) -> list[Observation]:
    """One observation for each node that never arrived. Only the first rank to ask reads the whole log."""
    if board.store.add("late", 1) > 1:
        return []
    size = place.local_world_size
    nodes: dict[int | None, list[int]] = {}
    for rank in board.missing():
        nodes.setdefault(rank // size if size else None, []).append(rank)
    found = []
    for node, ranks in nodes.items():
        host = place.host_of(node)
        where = "" if node is None else f" (node {node}{f', {host}' if host else ''})"
        words = f"{_who(ranks)}{where} never arrived within {seconds:.0f} s"
        if place.launcher == "torchrun":  # which starts ranks only when all nodes have met
            words += f"; torchrun has started it, so look there why it does not reach {place.master_addr}:{place.master_port}"
        elif place.launcher == "env://":
            words += f"; it was not started, or has another master than {place.master_addr}:{place.master_port}"
        found.append(
            Observation(Kind.NEVER_JOINED, words, tuple(ranks), place.rank, host, node_rank=node, phase="join")
        )
    return found


def left_out(board: Board, place: Place) -> list[Observation]:
    """The ranks of this node that had not come when torchrun's agent told the others to end: it does so when one has ended."""
    if place.launcher != TORCHRUN.title or place.local_rank is None or place.local_world_size is None:
        return []
    first = place.rank - place.local_rank
    ranks = [rank for rank in board.missing() if first <= rank < first + place.local_world_size]
    if not ranks:
        return []
    ended = "it" if len(ranks) == 1 else "one of them"
    return [
        Observation(
            Kind.NEVER_JOINED,
            f"{_who(ranks)} on {place.host} had not come when torchrun told the others to end: {ended} ended first",
            tuple(ranks) if len(ranks) == 1 else (),
            place.rank,
            place.host,
            node_rank=place.node_rank,
            phase="join",
        )
    ]


def behind(board: Board, place: Place, log: str, phase: str, words: str) -> list[Observation]:
    """One observation for each host with ranks that have not written to the log."""
    there = {record["rank"] for record in board.log(log)}
    hosts: dict[str | None, list[int]] = {}
    for rank in range(place.world_size):
        if rank not in there:
            hosts.setdefault(board.host_of(rank), []).append(rank)
    found = []
    for host, ranks in hosts.items():
        told = f"{_who(ranks)}{f' on {host}' if host else ''} {words} when --timeout ran out"
        found.append(Observation(Kind.OUT_OF_TIME, told, tuple(ranks), place.rank, host, phase=phase))
    return found


def cut_off(board: Board, place: Place, evidence: Sequence[Observation]) -> Observation | None:
    """The host to which every closed way leads, and of whose ranks none told what it saw: it is gone, or its network is."""
    common = set.intersection(*({each.host, each.peer} for each in evidence)) if evidence else set()
    found = next(((host, ranks) for host, ranks in board.unheard().items() if host in common), None)
    if found is None:
        return None
    host, ranks = found
    node = next((each.node_rank for each in evidence if each.host == host), None)
    words = f"{_who(ranks)} on {host}: the other hosts reach it no more, and nothing came from it since"
    return Observation(Kind.HOST_LOST, words, tuple(ranks), place.rank, host, node_rank=node, phase="mesh")


def _who(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_ranges(ranks)}"


def _ranges(ranks: Sequence[int]) -> str:
    """`0-3, 7`."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and parts[-1][-1] == rank - 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ", ".join("-".join(map(str, part)) for part in parts)
