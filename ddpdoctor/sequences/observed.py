"""From records to an observation."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.facts.rehearsal import ObservationKind, RehearsalObservation
from ddpdoctor.sequences.records import places_of
from ddpdoctor.sequences.tracks import Track

__all__ = ["observed"]


def observed(
    kind: ObservationKind, tracks: Sequence[Track], at: object, other: object = None, **values: object
) -> RehearsalObservation:
    """An observation of these ranks at the places of a record. `other` is a second place; values without one are left out."""
    others = places_of(other)
    return RehearsalObservation(
        kind,
        tuple(sorted({t.rank for t in tracks if t.rank is not None})),
        places_of(at),
        other=others[0] if others else None,
        values={name: str(value) for name, value in values.items() if value is not None},
    )
