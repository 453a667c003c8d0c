"""HOST001, LAUNCH003, LAUNCH050, LAUNCH077, NET009, NET017, NET021: causes that their signatures alone do not prove."""

from __future__ import annotations

__all__: list[str] = []
