"""NET018: a rendezvous store that outlives its job, as launch lines and logs show it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import Word, is_known
from ddpdoctor.findings import CausalStage, Evidence, Finding, Role, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import agents, point, shown, where

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

_INIT = re.compile(r"--?(?:dist[_-]?(?:url|init[_-]?method)|init[_-]?method)(?:=(.*))?")


@cause(
    "NET018",
    "rendezvous-store-stale",
    Severity.ERROR,
    stage=CausalStage.PEER_ERROR,
    signatures=("RendezvousClosedError", r"The rendezvous '[^']*' is closed"),
)
def rendezvous_store_stale(launch: Launch) -> Iterator[Finding]:
    """The rendezvous store still holds keys of an earlier run.

    ## Why it matters
    An init file, or a rendezvous id in etcd, outlives the job that wrote it. The launcher fails with `RendezvousClosedError`,
    or ranks read the addresses of a dead job and their connections are refused.

    ## Fix
    Use a new init file and a new `--rdzv-id` for each attempt, the same on all nodes; delete the old file before the start.

    ## Example
    In the log:

        torch.distributed.elastic.rendezvous.api.RendezvousClosedError

    On every node:

        # before
        torchrun --nnodes 2 --rdzv-backend etcd-v2 --rdzv-endpoint etcd0:2379 --rdzv-id train train.py
        # after
        torchrun --nnodes 2 --rdzv-backend etcd-v2 --rdzv-endpoint etcd0:2379 --rdzv-id train-2 train.py
    """
    earlier: dict[tuple[str | None, int | None, str | None], LaunchLine] = {}
    for line, layer, plan in agents(launch):
        if plan.backend in ("etcd", "etcd-v2") and plan.rdzv_id is not None and line.node is None and plan.host:
            key = (plan.host, plan.port, plan.rdzv_id)
            if key in earlier and earlier[key].file == line.file:
                given = layer.given("rdzv_id")
                text = (
                    f"rendezvous id {plan.rdzv_id!r} is reused; etcd still holds the rendezvous of the earlier launch"
                )
                word = layer.program if given is None else given.value_word
                yield point(launch, line, word, text, "another --rdzv-id", label="use a new --rdzv-id")
            earlier.setdefault(key, line)
    for line in launch.lines:
        init_file = _init_file(line)
        if init_file is not None and init_file[1] not in line.before.get("removed", "").split():
            word, path = init_file
            text = f"{shown(word)} is reused: after a crash {path} still lists the ranks of the dead job"
            yield Finding(
                text,
                (Evidence("launch.script.init_file", path, "a path with the job's id"),),
                where=where(line, word),
                severity=Severity.NOTE,
                label="use a new file per attempt",
            )


def _init_file(line: LaunchLine) -> tuple[Word, str] | None:
    """The init file in the script's arguments, if its name is the same in every run."""
    words = line.program.reading.arguments if line.program is not None else ()
    for i, word in enumerate(words):
        match = _INIT.fullmatch(word.text)
        if match is None:
            continue
        given = word if match[1] is not None else words[i + 1] if i + 1 < len(words) else word
        value = match[1] if match[1] is not None else given.text
        if value.startswith("file://") and is_known(value) and "$" not in given.raw:
            return given, value.removeprefix("file://")
    return None


CLOSED = (r"RendezvousClosedError", r"The rendezvous '[^']*' is closed")


TERMINATED = (r"Received (15|Signals\.SIGTERM|SIGTERM) death signal",)
"""What the other launcher prints, whose end closes the rendezvous."""


@rendezvous_store_stale.look
def rendezvous_closed(log: Log) -> Iterator[Finding]:
    """A launcher that joins a closed rendezvous: left by an earlier job, or closed by another node of this job."""
    from ddpdoctor.logs.context_patterns import context_lines
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.logs.rendezvous_view import workers_joined
    from ddpdoctor.rules.log.log015_021_killed import scheduler_ended_job
    from ddpdoctor.rules.log.signatures import finding_of

    left = [line for line, _ in context_lines(log, "left_file")]
    waited = [line for line in log.lines if (count := workers_joined(line)) is not None and count[0] > count[1]]
    if left and waited:
        title = "The init file was left by an earlier run and still counts its ranks"
        yield finding_of(log, [*left, *waited], title, blames_speaker=False)
    lines = matching_lines(log, CLOSED)
    if not lines:
        return
    title = "The rendezvous was closed before this launcher joined"
    if log.exits or any(source.restarted_at is not None for source in log.sources) or log.world_size is not None:
        title = "The rendezvous was closed because another node's launcher ended"
    else:
        title += " (reused --rdzv-id, or a node gave up)"
    finding = finding_of(log, lines, title, blames_speaker=False)
    yield (
        replace(finding, role=Role.CONSEQUENCE, caused_by=scheduler_ended_job.code)
        if matching_lines(log, TERMINATED)
        else finding
    )


@rendezvous_store_stale.look
def on_lines(launch: Launch) -> Iterable[Finding]:
    """The same check on launch lines only."""
    return rendezvous_store_stale(launch) or ()
