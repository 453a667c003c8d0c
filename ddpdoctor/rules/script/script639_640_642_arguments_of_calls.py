"""SCRIPT639, SCRIPT640 and SCRIPT642: arguments and results of collectives that mean something else."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import history_findings
from ddpdoctor.scripts.histories.record import MistakeKind


@cause("SCRIPT639", "root-outside-group", Severity.ERROR)
def root_outside_group(script: Script) -> Iterator[Finding]:
    """Each rank passes its own group and the same number as the root.

    ## Why it matters
    src and dst are global ranks: rank 0 is a member of one of the groups only. In the others torch raises
    `ValueError: Global rank 0 is not part of group`.

    ## Fix
    Pass `group_src=0`, or the first global rank of the group.

    ## Example
        # before
        dist.broadcast(x, src=0, group=group_of_my_node)

        # after
        dist.broadcast(x, group_src=0, group=group_of_my_node)

    ## Source
    torch/distributed/distributed_c10d.py: get_group_rank.
    """
    yield from history_findings(script, MistakeKind.ROOT_OUTSIDE_GROUP)


@cause("SCRIPT640", "split-sizes-not-exchanged", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def split_sizes_not_exchanged(script: Script) -> Iterator[Finding]:
    """all_to_all_single gets the sizes that this rank sends as the sizes that it receives.

    ## Why it matters
    The peers send other sizes: `Split sizes doesn't match total dim 0 size`, a hang, or mixed up rows.

    ## Fix
    Exchange the sizes first: `dist.all_to_all_single(received, sent)`.

    ## Example
        # before
        dist.all_to_all_single(out, x, output_split_sizes=sent, input_split_sizes=sent)

        # after
        dist.all_to_all_single(received, sent)
        dist.all_to_all_single(out, x, received.tolist(), sent.tolist())
    """
    yield from history_findings(script, MistakeKind.SPLITS_NOT_EXCHANGED)


@cause("SCRIPT642", "handle-overwritten", Severity.ERROR)
def handle_overwritten(script: Script) -> Iterator[Finding]:
    """A loop starts asynchronous calls and keeps only the handle of the last one.

    ## Why it matters
    wait() returns when the last call is done. The other tensors may still be in use: the optimizer steps with gradients that
    are not reduced yet.

    ## Fix
    Keep the handles in a list and wait for each.

    ## Example
        # before
        for p in model.parameters():
            work = dist.all_reduce(p.grad, async_op=True)
        work.wait()

        # after
        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        for work in works:
            work.wait()
    """
    yield from history_findings(script, MistakeKind.HANDLE_OVERWRITTEN)
