"""When this command started."""

from __future__ import annotations

import time

__all__ = ["STARTED"]

STARTED = time.monotonic()
"""`--timeout` counts from here."""
