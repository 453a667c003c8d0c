"""The words of torch's TCPStore protocol (torch/csrc/distributed/c10d/TCPStoreBackend.hpp), for our client and server.

Integers are in the byte order of the machine, as torch writes them; keys and values carry their length as a u64.
"""

from __future__ import annotations

import struct

__all__ = ["MAGIC", "NUMBER", "READY", "StoreOp", "pack"]

MAGIC = struct.pack("=I", 0x3C85F7CE)
"""What a client says after VALIDATE."""
NUMBER = struct.Struct("=Q")
SIGNED = struct.Struct("=q")
NONCE = struct.Struct("=I")
READY = 0
"""The answer of CHECK when all keys are there, and of WAIT when they have come; 1 is "not ready" and "cancelled"."""


class StoreOp:
    """The first byte of a request."""

    VALIDATE, SET, COMPARE_SET, GET, ADD, CHECK, WAIT, NUM_KEYS, DELETE, APPEND, MULTI_GET, MULTI_SET, CANCEL = range(
        13
    )
    PING, PUSH, POP, LENGTH, LIST = range(13, 18)


def pack(*texts: bytes | bytearray) -> bytes:
    """Byte strings, each after its length."""
    return b"".join(NUMBER.pack(len(text)) + text for text in texts)
