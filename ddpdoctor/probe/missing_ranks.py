"""Who is missing when the time runs out: one observation for each node, or host, that the others waited for."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.facts.launchers import TORCHRUN
from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.probe.rank_env import RankEnv
from ddpdoctor.probe.store_keys import StoreKeys

__all__ = ["cut_off_host", "never_joined", "not_joined_here", "unfinished_ranks"]


def never_joined(store_keys: StoreKeys, rank_env: RankEnv, seconds: float) -> list[Observation]:
    """One observation for each node that never arrived. Only the first rank to ask reads the whole log."""
    if store_keys.store.add("late", 1) > 1:
        return []
    size = rank_env.local_world_size
    nodes: dict[int | None, list[int]] = {}
    for rank in store_keys.missing():
        nodes.setdefault(rank // size if size else None, []).append(rank)
    found = []
    for node, ranks in nodes.items():
        host = rank_env.host_of(node)
        where = "" if node is None else f" (node {node}{f', {host}' if host else ''})"
        words = f"{_who(ranks)}{where} never arrived within {seconds:.0f} s"
        if rank_env.launcher == "torchrun":  # which starts ranks only when all nodes have met
            master = f"{rank_env.master_addr}:{rank_env.master_port}"
            words += f"; torchrun has started it, so look there why it does not reach {master}"
        elif rank_env.launcher == "env://":
            words += f"; it was not started, or has another master than {rank_env.master_addr}:{rank_env.master_port}"
        found.append(
            Observation(Kind.NEVER_JOINED, words, tuple(ranks), rank_env.rank, host, node_rank=node, phase="join")
        )
    return found


def not_joined_here(store_keys: StoreKeys, rank_env: RankEnv) -> list[Observation]:
    """The ranks of this node that had not come when torchrun's agent told the others to end: it does so when one has ended."""
    if rank_env.launcher != TORCHRUN.title or rank_env.local_rank is None or rank_env.local_world_size is None:
        return []
    first = rank_env.rank - rank_env.local_rank
    ranks = [rank for rank in store_keys.missing() if first <= rank < first + rank_env.local_world_size]
    if not ranks:
        return []
    ended = "it" if len(ranks) == 1 else "one of them"
    return [
        Observation(
            Kind.NEVER_JOINED,
            f"{_who(ranks)} on {rank_env.host} had not come when torchrun told the others to end: {ended} ended first",
            tuple(ranks) if len(ranks) == 1 else (),
            rank_env.rank,
            rank_env.host,
            node_rank=rank_env.node_rank,
            phase="join",
        )
    ]


def unfinished_ranks(store_keys: StoreKeys, rank_env: RankEnv, log: str, phase: str, words: str) -> list[Observation]:
    """One observation for each host with ranks that have not written to the log."""
    there = {record["rank"] for record in store_keys.log(log)}
    hosts: dict[str | None, list[int]] = {}
    for rank in range(rank_env.world_size):
        if rank not in there:
            hosts.setdefault(store_keys.host_of(rank), []).append(rank)
    found = []
    for host, ranks in hosts.items():
        told = f"{_who(ranks)}{f' on {host}' if host else ''} {words} when --timeout ran out"
        found.append(Observation(Kind.OUT_OF_TIME, told, tuple(ranks), rank_env.rank, host, phase=phase))
    return found


def cut_off_host(store_keys: StoreKeys, rank_env: RankEnv, evidence: Sequence[Observation]) -> Observation | None:
    """The host to which every closed way leads, and of whose ranks none told what it saw: it is gone, or its network is."""
    common = set.intersection(*({each.host, each.peer} for each in evidence)) if evidence else set()
    found = next(((host, ranks) for host, ranks in store_keys.unreported().items() if host in common), None)
    if found is None:
        return None
    host, ranks = found
    node = next((each.node_rank for each in evidence if each.host == host), None)
    words = f"{_who(ranks)} on {host}: the other hosts reach it no more, and nothing came from it since"
    return Observation(Kind.HOST_LOST, words, tuple(ranks), rank_env.rank, host, node_rank=node, phase="mesh")


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
