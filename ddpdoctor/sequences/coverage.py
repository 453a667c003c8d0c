"""What a rehearsal compared between ranks, and what it could not compare: a pass is about the former only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.sequences.records import Record
from ddpdoctor.sequences.tracks import Track
from ddpdoctor.wording import counted

__all__ = ["compared", "not_compared", "nothing_to_compare"]


def nothing_to_compare(ranks: Sequence[Track]) -> str:
    """Why a rehearsal can say nothing about its ranks; "" if it can."""
    if not ranks:
        return ""
    if len(ranks) == 1:
        return "only one rank ran: there is no other rank to compare it with; add --nproc-per-node 2 to the command"
    if not any(t.calls or t.transfers or t.steps or t.of_kind("gradients") for t in ranks):
        return (
            "nothing was compared: no rank called a collective or made an optimizer step; rehearse the script that trains, "
            "or give it more time with --seconds 120"
        )
    return ""


def compared(ranks: Sequence[Track]) -> tuple[str, ...]:
    """What was compared between the ranks, in words."""
    return tuple(_compared(ranks)) if len(ranks) > 1 else ()


def _compared(ranks: Sequence[Track]) -> Iterator[str]:
    calls = min(sum(not c.direction for c in t.calls.values()) for t in ranks)
    transfers = sum(bool(c.direction) for t in ranks for c in t.calls.values())
    if calls:
        yield counted(calls, "collective")
    if transfers:
        yield counted(transfers, "point-to-point call")
    for kind, what in (("gradients", "gradients"), ("params", "parameters"), ("rates", "learning rates")):
        steps = _least(ranks, kind)
        if steps:
            yield f"{what} of {counted(steps, 'step')}"
    evaluated = _least(ranks, "evaluated")
    if evaluated:
        yield f"{counted(evaluated, 'model')} in evaluation"
    batches = min(sum(bool(r.get("rows")) for r in _trained(t)) for t in ranks)
    if batches:
        yield f"samples of {counted(batches, 'training batch')}"
    files = {r.get("path") for t in ranks for kind in ("save", "load", "file") for r in t.of_kind(kind)}
    if files:
        yield counted(len(files), "file")


def _least(ranks: Sequence[Track], kind: str) -> int:
    """How many records of a kind every rank has."""
    return min(len(t.of_kind(kind)) for t in ranks)


def _trained(track: Track) -> list[Record]:
    """The listed batches of the loaders from which a rank trains."""
    loaders = {r.get("loader") for r in track.of_kind("epoch") if r.get("is_training")}
    return [r for r in track.of_kind("rows") if r.get("loader") in loaders]


def not_compared(ranks: Sequence[Track]) -> tuple[str, ...]:
    """What of a training could not be compared, with the reason."""
    if len(ranks) < 2:
        return ()
    found = []
    if any(t.steps for t in ranks):
        if not _least(ranks, "gradients"):
            found.append("gradients (sharded, none, or more than 1,000,000 elements)")
        if not _least(ranks, "params"):
            found.append("parameters (sharded, or more than 4,000,000 elements)")
        if not any(r.get("is_training") for t in ranks for r in t.of_kind("epoch")):
            found.append("training samples (no DataLoader)")
        elif not all(any(r.get("rows") for r in _trained(t)) for t in ranks):
            found.append("training samples (batches without tensors)")
        if not _least(ranks, "evaluated"):
            found.append("models in evaluation (none on all ranks)")
    found.append("values that are printed or logged")
    return tuple(found)
