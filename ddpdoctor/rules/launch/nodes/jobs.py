"""LAUNCH040, LAUNCH041: two jobs of one script that get into each other's way."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch import Launch, Layer, Line, Plan
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.launch.pointing import after, agents, point, revalue, spelled

Agent = tuple[Line, Layer, Plan]


def _together(launch: Launch) -> Iterator[tuple[Agent, Agent]]:
    """Pairs of launches of one file on one host, the first of them still running when the second starts."""
    found = [a for a in agents(launch) if a[0].node is None and a[0].layers[0].name != "ssh"]
    for i, second in enumerate(found):
        for first in found[:i]:
            if first[0].is_background and first[0].file == second[0].file and first[0].task_starter is None:
                yield first, second


def _script(layer: Layer) -> str | None:
    return layer.reading.script.text if layer.reading.script is not None else None


@rule("LAUNCH040", "rdzv-id-shared", Severity.ERROR)
def shared_id(launch: Launch) -> Iterator[Finding]:
    """Two jobs meet at one endpoint under the same --rdzv-id.

    ## Why it matters
    Without --rdzv-id every job is called `none`. The second job waits inside the rendezvous of the first, and dies with
    RendezvousConnectionError when that one ends.

    ## Fix
    Give each job an id and a port of its own.
    """
    for (_, first, one), (line, second, two) in _together(launch):
        if one.backend != "c10d" or two.backend != "c10d" or one.port is None or _script(first) == _script(second):
            continue
        if (one.host, one.port, one.rdzv_id) != (two.host, two.port, two.rdzv_id) or two.rdzv_id is None:
            continue
        given = second.given("rdzv_id")
        name = f"{two.rdzv_id}-2" if two.rdzv_id != "none" else "job2"
        edits = (
            [revalue(given, name)]
            if given is not None
            else [after(second.own[-1], f"{spelled(second, 'rdzv_id', launch.version)}={name}")]
        )
        text = f"another job of this file meets at {two.host}:{two.port} as {two.rdzv_id!r}, too: expected an id of its own"
        yield point(
            launch, line, second.program if given is None else given.value_word, text, "another --rdzv-id", edits
        )


@rule("LAUNCH041", "master-port-shared-by-jobs", Severity.ERROR)
def shared_port(launch: Launch) -> Iterator[Finding]:
    """Two jobs use the same master port on one node.

    ## Why it matters
    The second job ends with EADDRINUSE; or, worse, its other nodes join the first job's store and start workers there.

    ## Fix
    Give each job another --master-port; on one node leave it out, or use --standalone.
    """
    for (_, _, one), (line, second, two) in _together(launch):
        if one.backend != "static" or two.backend != "static" or one.port is None or one.port != two.port:
            continue
        if (one.node_rank or 0) != 0 or (two.node_rank or 0) != 0 or one.is_multinode or two.is_multinode:
            continue
        given = second.given("master_port")
        edits = None if given is None else [revalue(given, str(one.port + 1))]
        if edits is None and not two.settings["rdzv_endpoint"].value:
            edits = [after(second.own[-1], f"{spelled(second, 'master_port', launch.version)}={one.port + 1}")]
        text = f"port {two.port} is taken by the job before it on this node: expected another port"
        yield point(launch, line, second.program if given is None else given.value_word, text, str(one.port + 1), edits)
