"""How much of /dev/shm NCCL and the DataLoader use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

__all__ = []


CONNECTION_BYTES = 4096 + 524_288 + 4_915_200 + 4_194_304

CHANNELS = 2

NEIGHBOURS = 2

DATALOADER_BYTES = 64 << 20
