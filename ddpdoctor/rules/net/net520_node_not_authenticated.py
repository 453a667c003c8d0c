"""NET520: a node was refused because it does not prove that it belongs to this job."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.nodes import Nodes, Proves, Stranger
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.node_findings import named

WORDS = {
    Proves.NOTHING: "no secret",
    Proves.FILE: "a secret file",
    Proves.MUNGE: "munge",
    Proves.OTHER: "another secret",
}


@cause("NET520", "node-not-authenticated", Severity.ERROR)
def node_not_authenticated(nodes: Nodes) -> Iterator[Finding]:
    """A node was refused because it does not have the secret that this node has.

    ## Why it matters
    Nodes exchange facts only with nodes that prove the same secret (`--secret FILE`, `DDPDOCTOR_SECRET_FILE`,
    `~/.config/ddpdoctor/secret`, or munge in a Slurm job). Nothing that needs both nodes was examined; the job itself
    does not use this secret and may start.

    ## Fix
    Copy the file to all nodes (mode 0600) and name it in `--secret FILE` on each, or pass `--secret none` on all of
    them.

    ## Example

        node1 has no secret; node 0 (node0) has a secret file

        # before, on node1
        ddpdoctor check -- torchrun --nnodes 2 --node-rank 1 --master-addr node0 train.py
        # after
        ddpdoctor check --secret ~/job.secret -- torchrun --nnodes 2 --node-rank 1 --master-addr node0 train.py
    """
    refused: dict[str, list[Stranger]] = {}
    for stranger in nodes.strangers:
        if stranger.proves is not None:
            refused.setdefault(stranger.proves, []).append(stranger)
    own = WORDS[nodes.proves or Proves.NOTHING]
    is_whole = nodes.is_complete and len(nodes.nodes) > 1
    for proves, strangers in refused.items():
        hosts = list(dict.fromkeys(stranger.host for stranger in strangers))
        yield Finding(
            f"{', '.join(hosts[:6])} {'has' if len(hosts) == 1 else 'have'} {WORDS[proves]}; {named(nodes.nodes)} has {own}",
            tuple(
                Evidence(f"nodes.strangers[{each.host}].proves", WORDS[proves] + _at(each), own) for each in strangers
            ),
            where=Where(peer=hosts[0] if len(hosts) == 1 else None),
            severity=Severity.NOTE if is_whole else None,
        )


def _at(stranger: Stranger) -> str:
    return f" ({stranger.address})" if stranger.address else ""
