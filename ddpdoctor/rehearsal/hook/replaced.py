"""Stand-ins as records: what was replaced, by what, and where the script first used it."""

from __future__ import annotations

from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import place

__all__ = ["replaced"]

_told: set[str] = set()


def replaced(what: str, by: str) -> None:
    """Name a stand-in in the report, once."""
    if what not in _told:
        _told.add(what)
        channel().say("standin", what=what, by=by, at=place())
