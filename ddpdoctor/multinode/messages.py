"""What nodes say to each other: one JSON object a line, limited in size, with the number of the protocol in the first one.

The token keeps jobs apart. It is no secret: whoever reaches the port can take part, and all that can be had or done
there is what one node tells the others of itself.
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
"""The longest line from a node that has been let in: links and verdicts of a thousand nodes."""


BEAT_SECONDS = 0.5
SILENT_SECONDS = 3.0
"""Who says nothing for so long was stopped, or its machine is gone: every side says at least that it is alive."""


class WireError(Exception):
    """What came is no line of this protocol."""


def encode_line(message: dict[str, Any]) -> bytes:
    """One message as it is sent."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


ALIVE = encode_line({"kind": "alive"})


def decode_line(line: bytes) -> dict[str, Any]:
    """One message as it came.

    Raises:
        WireError: it is no JSON object.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise WireError("not JSON") from None
    if not isinstance(message, dict):
        raise WireError("no JSON object")
    return message


async def receive_message(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next message; {} at the end of the stream.

    Raises:
        WireError: a line that is too long, or no JSON object.
        OSError: the connection broke.
    """
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as rest:
        if rest.partial:
            raise WireError("half a line") from None
        return {}
    except asyncio.LimitOverrunError:
        raise WireError("a line that is too long") from None
    return decode_line(line)


async def send_message(writer: asyncio.StreamWriter, message: dict[str, Any], seconds: float = 5.0) -> None:
    """Send one message.

    Raises:
        OSError: the connection broke, or the other side does not read.
    """
    await send_lines(writer, encode_line(message), seconds)


async def send_lines(writer: asyncio.StreamWriter, lines: bytes, seconds: float) -> None:
    """Send lines that are encoded already.

    Raises:
        OSError: the connection broke, or the other side does not read.
    """
    writer.write(lines)
    if not writer.transport.get_write_buffer_size():
        return  # all of it has gone already: nothing to wait for
    try:
        await asyncio.wait_for(writer.drain(), seconds)
    except asyncio.TimeoutError:
        raise TimeoutError("the other side does not read") from None


async def send_heartbeats(writer: asyncio.StreamWriter) -> None:
    """Say that this side is alive, as long as the task is allowed to run and the other side reads."""
    while not writer.is_closing():
        await asyncio.sleep(BEAT_SECONDS)
        await send_lines(writer, ALIVE, SILENT_SECONDS)
