"""The missing ranks at the timeout: one observation per node or host that the others waited for."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.facts.launchers import TORCHRUN
from ddpdoctor.facts.probe import Kind, Observation
from ddpdoctor.probe.rank_env import RankEnv
from ddpdoctor.probe.store_keys import StoreKeys

__all__ = ["cut_off_host", "never_joined", "not_joined_here", "unfinished_ranks"]


def never_joined(store_keys: StoreKeys, rank_env: RankEnv, seconds: float) -> list[Observation]:
    """One observation per node that did not join. Only the first rank to ask reads the whole log."""
    if store_keys.store.add("late", 1) > 1:
        return []
    size = rank_env.local_world_size
    nodes: dict[int | None, list[int]] = {}
    for rank in store_keys.missing():
        nodes.setdefault(rank // size if size else None, []).append(rank)
    observations = []
    for node, ranks in nodes.items():
        host = rank_env.host_of(node)
        where = "" if node is None else f" (node {node}{f', {host}' if host else ''})"
        message = f"{_who(ranks)}{where} did not join within {seconds:.0f} s"
        master = f"{rank_env.master_addr}:{rank_env.master_port}"
        they, have = ("it", "has") if len(ranks) == 1 else ("they", "have")
        if rank_env.launcher == "torchrun":  # it starts ranks only after all nodes have joined
            message += f"; torchrun started {'it' if len(ranks) == 1 else 'them'}, but {they} cannot reach {master}"
        elif rank_env.launcher == "env://":
            were = "was" if len(ranks) == 1 else "were"
            message += f"; {they} {were} not started, or {have} a master other than {master}"
        observations.append(
            Observation(Kind.NEVER_JOINED, message, tuple(ranks), rank_env.rank, host, node_rank=node, phase="join")
        )
    return observations


def not_joined_here(store_keys: StoreKeys, rank_env: RankEnv) -> list[Observation]:
    """The ranks of this node that had not joined when torchrun's agent terminated the others, as it does after one ended."""
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
            f"{_who(ranks)} on {rank_env.host} did not join before torchrun terminated the others; {ended} ended first",
            tuple(ranks) if len(ranks) == 1 else (),
            rank_env.rank,
            rank_env.host,
            node_rank=rank_env.node_rank,
            phase="join",
        )
    ]


def unfinished_ranks(store_keys: StoreKeys, rank_env: RankEnv, log: str, phase: str, state: str) -> list[Observation]:
    """One observation per host with ranks that have not written to the log."""
    present = {record["rank"] for record in store_keys.log(log)}
    hosts: dict[str | None, list[int]] = {}
    for rank in range(rank_env.world_size):
        if rank not in present:
            hosts.setdefault(store_keys.host_of(rank), []).append(rank)
    observations = []
    for host, ranks in hosts.items():
        message = f"{_who(ranks)}{f' on {host}' if host else ''} {state} when --timeout ran out"
        observations.append(Observation(Kind.OUT_OF_TIME, message, tuple(ranks), rank_env.rank, host, phase=phase))
    return observations


def cut_off_host(store_keys: StoreKeys, rank_env: RankEnv, evidence: Sequence[Observation]) -> Observation | None:
    """The host at the end of every closed link, none of whose ranks reported anything: the host or its network failed."""
    common = set.intersection(*({link.host, link.peer} for link in evidence)) if evidence else set()
    cut_off = next(((host, ranks) for host, ranks in store_keys.unreported().items() if host in common), None)
    if cut_off is None:
        return None
    host, ranks = cut_off
    node = next((link.node_rank for link in evidence if link.host == host), None)
    message = f"{host} ({_who(ranks)}) is no longer reachable from the other hosts"
    return Observation(Kind.HOST_LOST, message, tuple(ranks), rank_env.rank, host, node_rank=node, phase="mesh")


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
