"""`log`: what the ranks, launchers, schedulers and kernels printed: the lines that matter, and who printed them."""

from __future__ import annotations

from ddpdoctor.facts.log.record import Exit, Frame, Kind, Line, Log, Seat, Source, Traceback, Who

__all__ = ["Exit", "Frame", "Kind", "Line", "Log", "Seat", "Source", "Traceback", "Who"]
