"""LOG007, SCRIPT020: lines that mean what they seem to only where nothing else was told before them."""

from __future__ import annotations

__all__: list[str] = []
