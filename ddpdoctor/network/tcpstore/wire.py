"""The wire format of torch's TCPStore protocol (torch/csrc/distributed/c10d/TCPStoreBackend.hpp), for client and server.

Integers are in the machine's byte order, as in torch; keys and values are prefixed with their length as a u64.
"""

from __future__ import annotations

import struct

__all__ = ["MAGIC", "NUMBER", "READY", "StoreOp", "pack"]

MAGIC = struct.pack("=I", 0x3C85F7CE)
"""What a client sends after VALIDATE."""
NUMBER = struct.Struct("=Q")
SIGNED = struct.Struct("=q")
NONCE = struct.Struct("=I")
READY = 0
"""The answer of CHECK when all keys exist, and of WAIT when they were set; 1 is "not ready" and "cancelled"."""


class StoreOp:
    """The first byte of a request."""

    VALIDATE, SET, COMPARE_SET, GET, ADD, CHECK, WAIT, NUM_KEYS, DELETE, APPEND, MULTI_GET, MULTI_SET, CANCEL = range(
        13
    )
    PING, PUSH, POP, LENGTH, LIST = range(13, 18)


def pack(*texts: bytes | bytearray) -> bytes:
    """Byte strings, each prefixed with its length."""
    return b"".join(NUMBER.pack(len(text)) + text for text in texts)
