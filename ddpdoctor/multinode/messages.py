"""The messages between nodes: one JSON object per line, limited in size, with the protocol number in the first one.

The token separates jobs. It is not a secret: any client that reaches the port can join, but only gets what the nodes
report about themselves.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

__all__ = [
    "MAX_HELLO_BYTES",
    "MAX_LINE_BYTES",
    "PROTOCOL",
    "SILENT_SECONDS",
    "WireError",
    "decode_line",
    "encode_line",
    "receive_message",
    "send_heartbeats",
    "send_lines",
    "send_message",
]

PROTOCOL = 1
MAX_HELLO_BYTES = 256 << 10
"""The longest first line: a node of 16 GPUs needs less than a tenth of it."""
MAX_LINE_BYTES = 4 << 20
"""The longest line from an admitted node: links and verdicts of a thousand nodes."""


BEAT_SECONDS = 0.5
SILENT_SECONDS = 3.0
"""A peer that is silent for this long was suspended, or its machine is gone: both sides send heartbeats."""


class WireError(Exception):
    """The peer sent something that is not this protocol."""


def encode_line(message: dict[str, Any]) -> bytes:
    """One message as it is sent."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


ALIVE = encode_line({"kind": "alive"})


def decode_line(line: bytes) -> dict[str, Any]:
    """One message as it was received.

    Raises:
        WireError: it is not a JSON object.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise WireError("not JSON") from None
    if not isinstance(message, dict):
        raise WireError("not a JSON object")
    return message


async def receive_message(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next message; {} at the end of the stream.

    Raises:
        WireError: the line is too long, or not a JSON object.
        OSError: the connection was lost.
    """
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as rest:
        if rest.partial:
            raise WireError("incomplete line") from None
        return {}
    except asyncio.LimitOverrunError:
        raise WireError("line too long") from None
    return decode_line(line)


async def send_message(writer: asyncio.StreamWriter, message: dict[str, Any], seconds: float = 5.0) -> None:
    """Send one message.

    Raises:
        OSError: the connection was lost, or the peer does not read.
    """
    await send_lines(writer, encode_line(message), seconds)


async def send_lines(writer: asyncio.StreamWriter, lines: bytes, seconds: float) -> None:
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


async def send_heartbeats(writer: asyncio.StreamWriter) -> None:
    """Send heartbeats until the task is cancelled or the peer stops reading."""
    while not writer.is_closing():
        await asyncio.sleep(BEAT_SECONDS)
        await send_lines(writer, ALIVE, SILENT_SECONDS)
