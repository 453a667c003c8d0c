"""The ranks of an imagined job as nodes side by side, for the rules that compare what processes were given."""

from __future__ import annotations

import re
from collections import Counter

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.facts.nodes import Form, Node, Nodes
from ddpdoctor.launch.evaluator.imagined_run import Launched
from ddpdoctor.launch.evaluator.jobs import ImaginedJob, rank_of
from ddpdoctor.launch.evaluator.values import Origin

__all__ = ["VARIABLES", "nodes_of_ranks", "origin_of_variable"]

VARIABLES = {
    "nodes.master_addr": "MASTER_ADDR",
    "nodes.is_at_master": "MASTER_ADDR",
    "nodes.master_port": "MASTER_PORT",
    "nodes.rank": "RANK",
    "nodes.world_size": "WORLD_SIZE",
}
"""The variable behind a path of evidence."""
MOST_RANKS = 512


def nodes_of_ranks(job: ImaginedJob) -> Nodes | None:
    """One node per rank; None where torchrun starts the ranks, where no variable of env:// is set, or of one host.

    An unknown value is None, as is one that is not set.
    """
    members = job.launched[:MOST_RANKS]
    has_env = any({"MASTER_ADDR", "RANK"} & member.environ.keys() for member in members)
    if job.job.agents or not has_env or len({member.place.host for member in members}) < 2:
        return None
    sizes = Counter(member.place.host for member in members)
    nodes = [_node(member, sizes[member.place.host]) for member in members]
    owner = next((node for node in nodes if node.owns), nodes[0])
    joined = tuple(node if node.master_addr == owner.master_addr else _apart(node) for node in nodes)
    expected = Counter(node.world_size for node in nodes if node.world_size is not None).most_common(1)
    return Nodes(nodes=joined, expected=expected[0][0] if expected else None, hosted_by=nodes.index(owner))


def origin_of_variable(job: ImaginedJob, name: str) -> Origin | None:
    """Where the job file sets a variable of its ranks."""
    values = (member.environ[name] for member in job.launched if name in member.environ)
    return next((value.origins[0] for value in values if value.origins), None)


def _node(member: Launched, nproc: int) -> Node:
    rank = _number(member, "RANK")
    address = _text(member, "MASTER_ADDR")
    return Node(
        host=member.place.host,
        form=Form.ENV,
        machine=member.place.host,
        rank=rank,
        local_rank=_number(member, "LOCAL_RANK"),
        world_size=_number(member, "WORLD_SIZE"),
        nproc=nproc,
        launcher=member.place.via[-1] if member.place.via else "",
        master_addr=address,
        master_port=_number(member, "MASTER_PORT"),
        owns=(rank_of(member) if rank is None else rank) == 0,
        is_at_master=None
        if address is None or address.startswith(("127.", "localhost"))
        else address == member.place.host,
        is_scheduled=bool(member.place.via),
    )


def _apart(node: Node) -> Node:
    """A rank that looks for the master at another address than the rank that hosts the store."""
    from dataclasses import replace

    return replace(node, came="door")


def _text(member: Launched, name: str) -> str | None:
    value = member.environ.get(name)
    return None if value is None or not value.is_known or not value.text else value.text.replace(UNKNOWN, "")


def _number(member: Launched, name: str) -> int | None:
    text = _text(member, name)
    return int(text) if text is not None and re.fullmatch(r"\d{1,6}", text) else None
