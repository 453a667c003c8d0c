"""The messages between nodes: one JSON object per line, limited in size, with the protocol number in the first one.

The token separates jobs. It is not a secret: without one (`authentication.py`), any client that reaches the port can join,
but only gets what the nodes report about themselves.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

__all__ = [
    "MAX_HELLO_BYTES",
    "MAX_LINE_BYTES",
    "MOST_HELLO_VALUES",
    "MOST_VALUES",
    "PROTOCOL",
    "SILENT_SECONDS",
    "WireError",
    "cost_of",
    "decode_line",
    "encode_line",
    "send_bytes",
]

PROTOCOL = 1
MAX_HELLO_BYTES = 256 << 10
"""The longest first line: a node of 16 GPUs needs less than a tenth of it."""
MAX_LINE_BYTES = 4 << 20
"""The longest line from an admitted node: links and verdicts of a thousand nodes."""
MOST_VALUES = 200_000
"""The most JSON values in one line: each takes up to 80 bytes, however short its text is."""
MOST_HELLO_VALUES = 8_000
"""The same for lines that a host receives: many nodes may send at once, and none has a tenth of this to tell."""
VALUE_BYTES = 80
SILENT_SECONDS = 3.0
"""A peer that is silent for this long was suspended, or its machine is gone: both sides send heartbeats."""


class WireError(Exception):
    """The peer sent something that is not this protocol."""


def encode_line(message: dict[str, Any]) -> bytes:
    """One message as it is sent."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def cost_of(line: bytes) -> int:
    """About how many bytes of memory a message takes."""
    return len(line) + VALUE_BYTES * _values(line)


def _values(line: bytes) -> int:
    return line.count(b",") + line.count(b"[") + line.count(b"{")


def decode_line(line: bytes, most_values: int = MOST_VALUES) -> dict[str, Any]:
    """One message as it was received.

    Raises:
        WireError: it is not a JSON object, or has too many values.
    """
    if _values(line) > most_values:
        raise WireError("too many values")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise WireError("not JSON") from None
    if not isinstance(message, dict):
        raise WireError("not a JSON object")
    return message


async def send_bytes(writer: asyncio.StreamWriter, lines: bytes, seconds: float) -> None:
    """Send encoded lines.

    Raises:
        OSError: the connection was lost, or the peer does not read.
    """
    writer.write(lines)
    if not writer.transport.get_write_buffer_size():
        return  # everything was sent: nothing to wait for
    try:
        await asyncio.wait_for(writer.drain(), seconds)
    except asyncio.TimeoutError:
        raise TimeoutError("the peer does not read") from None
