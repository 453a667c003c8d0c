"""From the records of all processes to the facts of a rehearsal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from ddpdoctor.facts.rehearsal import (
    CodePlace,
    Difference,
    ObservationKind,
    RankEnd,
    Rehearsal,
    RehearsalObservation,
    RehearsedRank,
    Side,
)
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.sequences.branches import Sources, begun, explained
from ddpdoctor.sequences.comparison import Comparison
from ddpdoctor.sequences.coverage import compared, not_compared, nothing_to_compare
from ddpdoctor.sequences.decisions import decisions
from ddpdoctor.sequences.lesser_observations import divided_losses, set_orders
from ddpdoctor.sequences.observations import observations
from ddpdoctor.sequences.reached import ExecutedCode, executed_files, rank_branches, unreached
from ddpdoctor.sequences.records import places_of
from ddpdoctor.sequences.tracks import Track, members_of

__all__ = ["Circumstances", "files_named", "summary"]

STACK_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
SAVES = re.compile(r"\b(torch\.save|save_checkpoint|save_pretrained|save_state|dcp\.save|save_model)\b")
EVALUATES = re.compile(r"\.eval\(\)")


@dataclass(frozen=True)
class Circumstances:
    """What the comparison does not know: how the ranks were started, and what the supervisor saw of them."""

    nodes: int = 1
    asked: int | None = None
    torch: str = ""
    seconds: float = 0.0
    isolation: dict[str, str] = field(default_factory=dict)
    stacks: Mapping[int, str] = field(default_factory=dict)
    is_out_of_time: bool = False
    folder: str = ""


def files_named(comparison: Comparison) -> set[str]:
    """The user's files that the records name, and those of which lines ran."""
    calls = (call.places for track in comparison.ranks for call in track.calls.values())
    return {place.file for places in calls for place in places} | executed_files(list(comparison.tracks.values()))


def summary(comparison: Comparison, texts: Mapping[str, str], seen: Circumstances) -> Rehearsal:
    """The facts. `texts` are the user's files that records name, by path."""
    ranks = comparison.ranks
    difference = _difference(comparison, texts, seen)
    processes = ranks or list(comparison.tracks.values())
    cannot = next(((t, r) for t in processes for r in t.of_kind("cannot")), None) or _missing_package(processes)
    sources = Sources(texts)
    parents = [t for t in comparison.tracks.values() if t not in ranks]
    seen_too = observations(ranks or list(comparison.tracks.values()), parents)
    executed = ExecutedCode.of(list(comparison.tracks.values()))
    standins = {f"{r.get('what')}: {r.get('by')}" for t in ranks for r in t.of_kind("standin")}
    return Rehearsal(
        ranks=tuple(_rank(track, comparison.world, seen) for track in ranks),
        nodes=seen.nodes,
        asked=seen.asked,
        backend=next((t.backend for t in ranks if t.backend), ""),
        torch=seen.torch,
        seconds=round(seen.seconds, 1),
        difference=difference,
        observations=(
            *_in_loops(seen_too, sources),
            *decisions(ranks, sources),
            *divided_losses(ranks, sources),
            *set_orders(ranks, sources),
            *rank_branches(sources, executed, ranks),
        ),
        standins=tuple(sorted(standins)),
        not_reached=_not_reached(ranks, texts),
        unreached=unreached(sources, executed),
        files=tuple(sorted(executed.lines)),
        compared=compared(ranks),
        not_compared=not_compared(ranks),
        empty_reason=nothing_to_compare(ranks),
        obstacle=None if cannot is None else str(cannot[1].get("what")),
        obstacle_reason="needs a GPU" if cannot is None else str(cannot[1].get("why", "needs a GPU")),
        obstacle_place=None if cannot is None else next(iter(places_of(cannot[1].get("at"))), None),
        isolation=seen.isolation,
        others=tuple(
            _rank(t, comparison.world, seen)
            for t in comparison.tracks.values()
            if t not in ranks and t.raised is not None
        ),
        is_out_of_time=seen.is_out_of_time,
        folder=seen.folder,
    )


def _in_loops(found: Iterable[RehearsalObservation], sources: Sources) -> tuple[RehearsalObservation, ...]:
    """The observations; a missing set_epoch is placed at the loop over the epochs, where it belongs."""
    placed = []
    for each in found:
        at = each.place if each.kind is ObservationKind.EPOCH_NOT_SET else None
        loops = [a for a in sources.around(at) if a.is_loop and a.node.lineno < at.line] if at is not None else []
        if at is not None and loops:
            outer = CodePlace(at.file, loops[-1].node.lineno, at.function)
            each = replace(each, places=(outer, *each.places), other=at)
        placed.append(each)
    return tuple(placed)


def _missing_package(ranks: Sequence[Track]) -> tuple[Track, dict[str, object]] | None:
    """A package for GPUs that the script imports and that is not installed, if its import ended the script."""
    for track in ranks:
        text = str((track.raised or {}).get("text", ""))
        is_import = (track.raised or {}).get("type") in ("ModuleNotFoundError", "ImportError")
        for record in track.of_kind("missing_gpu_package"):
            if is_import and f"'{record.get('what')}'" in text:
                return track, {**record, "at": (track.raised or {}).get("at")}
    return None


def _difference(comparison: Comparison, texts: Mapping[str, str], seen: Circumstances) -> Difference | None:
    found = comparison.settled()
    if found is None:
        is_own = any(t.end in (RankEnd.RAISED, RankEnd.KILLED) for t in comparison.ranks)
        found = None if is_own else comparison.stalled()
        if found is None and seen.is_out_of_time and not is_own:
            found = comparison.waiting_for(t for t in comparison.ranks if not t.is_done and not t.is_blocked)
    if found is None:
        return None
    earlier = {
        track.rank: {(place.file, place.line) for call in track.calls.values() for place in call.places}
        for track in comparison.ranks
        if track.rank is not None
    }
    sources = Sources(texts)
    return begun(explained(found, sources, earlier), _pairs_before(found, comparison), sources)


def _pairs_before(found: Difference, comparison: Comparison) -> Iterable[tuple[Side, Side]]:
    """The calls of two sides that matched before a difference, in order."""
    ranks = [side.ranks[0] for side in found.sides[:2] if side.ranks and side.call is not None]
    tracks = [t for rank in ranks for t in comparison.ranks if t.rank == rank]
    if len(tracks) < 2:
        return
    for group in tracks[0].sequences.keys() & tracks[1].sequences.keys():
        if members_of(group, comparison.world) != found.group:
            continue
        for one, other in zip(*(t.sequence(group)[: found.number - 1] for t in tracks[:2]), strict=False):
            yield (
                Side((ranks[0],), one.seen(comparison.world)),
                Side((ranks[1],), other.seen(comparison.world)),
            )


def _rank(track: Track, world: int, seen: Circumstances) -> RehearsedRank:
    raised = track.raised or {}
    waits = track.blocked[0].seen(world) if track.blocked and not track.is_done else None
    end = track.end
    if end is RankEnd.RUNNING and waits is not None:
        end = RankEnd.WAITING
    places = (
        places_of(raised.get("at"))
        or track.end_places
        or _stack(seen.stacks.get(track.index if track.index is not None else -1, ""))
    )
    return RehearsedRank(
        rank=-1 if track.rank is None else track.rank,
        node=track.node,
        local_rank=track.local_rank,
        end=end,
        steps=track.steps,
        calls=len(track.calls),
        exit_code=track.exit_code,
        error=str(raised["type"]) if "type" in raised else None,
        text=str(raised.get("text", "")),
        places=places or places_of((track.last or {}).get("at")),
        call=waits,
    )


def _stack(text: str) -> tuple[CodePlace, ...]:
    """The user's frames of a stack that faulthandler wrote."""
    found = [CodePlace(m["file"], int(m["line"]), m["function"]) for m in STACK_LINE.finditer(text)]
    own = [
        p
        for p in found
        if "site-packages" not in p.file and "/ddpdoctor_rehearsal_" not in p.file and "/lib/python" not in p.file
    ]
    return tuple(own[:5])


def _not_reached(ranks: Sequence[Track], texts: Mapping[str, str]) -> tuple[str, ...]:
    """What the script contains and did not reach, because the rehearsal ended it."""
    if not any(t.end is RankEnd.ENDED for t in ranks):
        return ()
    whole = "\n".join(texts.values())
    missing = []
    if EVALUATES.search(whole) and not any(t.of_kind("eval") for t in ranks):
        missing.append("validation")
    if SAVES.search(whole) and not any(t.of_kind("save") or t.of_kind("saved") for t in ranks):
        missing.append("saving a checkpoint")
    epochs = [r for t in ranks for r in t.of_kind("epoch") if r.get("is_training")]
    if epochs and not any(isinstance(r.get("iteration"), int) and r["iteration"] > 0 for r in epochs):
        missing.append("the second epoch")
    return tuple(missing)
