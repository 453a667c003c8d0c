"""One connection between two nodes: lines of limited size, sealed with a proof each if both nodes know the job's secret."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from dataclasses import field
from typing import Any

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.multinode.messages import (
    MAX_LINE_BYTES,
    MOST_VALUES,
    SILENT_SECONDS,
    WireError,
    cost_of,
    decode_line,
    encode_line,
    send_bytes,
)

__all__ = ["READ_BYTES", "NodeConnection", "ReadBudget", "SessionKeys", "send_heartbeats"]

READ_BYTES = 64 << 10
"""How much of a connection is read at once; asyncio buffers at most 256 KiB in addition."""
DIGITS = 32
"""Hexadecimal digits of a line's proof: 128 bits."""
BEAT_SECONDS = 0.5
ALIVE = encode_line({"kind": "alive"})


@dataclass
class ReadBudget:
    """How many bytes of incomplete lines all connections may hold together. Above it, the one that holds most is closed: a
    node sends its line at once.
    """

    most: int
    _held: dict[NodeConnection, int] = field(default_factory=dict)

    def hold(self, channel: NodeConnection, size: int) -> None:
        """`channel` holds `size` bytes of an incomplete line."""
        self._held[channel] = size
        while sum(self._held.values()) > self.most:
            largest = max(self._held, key=lambda each: self._held[each])
            self.release(largest)
            largest.abort()

    def release(self, channel: NodeConnection) -> None:
        """`channel` holds nothing any more."""
        self._held.pop(channel, None)


@dataclass(frozen=True)
class SessionKeys:
    """The keys of one connection: for the lines of this side and of the other one."""

    own: bytes
    other: bytes


class NodeConnection:
    """Sends and receives messages. With `keys` each line begins with its proof, which counts the lines: none can be added,
    changed, repeated, or left out.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        most: int = MAX_LINE_BYTES,
        most_values: int = MOST_VALUES,
        budget: ReadBudget | None = None,
        start: bytes = b"",
    ) -> None:
        self.writer = writer
        self.most = most
        """The longest line that is accepted, in bytes."""
        self._most_values = most_values
        self.cost = 0
        """About how many bytes of memory the last message takes."""
        self._reader = reader
        self._budget = budget
        self._buffer = bytearray(start)
        self._keys: SessionKeys | None = None
        self._sent = 0
        self._received = 0

    @property
    def is_proven(self) -> bool:
        """Whether the other side has proved that it knows the secret of the job."""
        return self._keys is not None

    def seal_with(self, keys: SessionKeys) -> None:
        """From now on, all lines in both directions carry a proof."""
        self._keys = keys

    def abort(self) -> None:
        """Close at once, without sending what is left."""
        self.writer.transport.abort()

    async def receive(self) -> dict[str, Any]:
        """The next message; {} at the end of the stream.

        Raises:
            WireError: the line is too long, not a JSON object, or its proof is wrong.
            OSError: the connection was lost.
        """
        line = await self._line()
        if not line:
            return {}
        self.cost = cost_of(line)
        if self._keys is None:
            return decode_line(line, self._most_values)
        proof, _, text = line.partition(b" ")
        if not hmac.compare_digest(proof, _proof(self._keys.other, self._received, text.rstrip(b"\n"))):
            raise WireError("the proof of a message is wrong")
        self._received += 1
        return decode_line(text, self._most_values)

    async def read(self, size: int) -> bytes:
        """At most `size` bytes that are not a message; b"" at the end of the stream."""
        if not self._buffer:
            return await self._reader.read(size)
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        return piece

    async def read_exactly(self, size: int) -> bytes:
        """`size` bytes that are not a message.

        Raises:
            asyncio.IncompleteReadError: the stream ended before.
        """
        start = bytes(self._buffer[:size])
        del self._buffer[:size]
        return start + await self._reader.readexactly(size - len(start))

    async def send(self, message: dict[str, Any], seconds: float = 5.0) -> None:
        """Send one message.

        Raises:
            OSError: the connection was lost, or the peer does not read.
        """
        await self.send_lines(encode_line(message), seconds)

    async def send_lines(self, lines: bytes, seconds: float) -> None:
        """Send encoded lines, each with its proof.

        Raises:
            OSError: the connection was lost, or the peer does not read.
        """
        await send_bytes(self.writer, self._sealed(lines), seconds)

    def announce(self, message: dict[str, Any], data: bytes = b"") -> None:
        """Write a message, followed by data that is not a message, without waiting."""
        self.writer.write(self._sealed(encode_line(message)) + data)

    def _sealed(self, lines: bytes) -> bytes:
        if self._keys is None:
            return lines
        sealed = []
        for line in lines.split(b"\n")[:-1]:
            sealed.append(_proof(self._keys.own, self._sent, line) + b" " + line + b"\n")
            self._sent += 1
        return b"".join(sealed)

    async def _line(self) -> bytes:
        """The next line with its end, b"" at the end of the stream."""
        looked_at = 0
        try:
            while (end := self._buffer.find(b"\n", looked_at)) < 0:
                looked_at = len(self._buffer)
                if looked_at > self.most:
                    raise WireError("line too long")
                if self._budget is not None and looked_at:
                    self._budget.hold(self, looked_at)
                piece = await self._reader.read(READ_BYTES)
                if not piece and self._buffer:
                    raise WireError("incomplete line")
                if not piece:
                    return b""
                self._buffer += piece
        finally:
            if self._budget is not None:
                self._budget.release(self)
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        if len(line) > self.most:
            raise WireError("line too long")
        return line


async def send_heartbeats(channel: NodeConnection) -> None:
    """Send heartbeats until the task is cancelled or the peer stops reading."""
    while not channel.writer.is_closing():
        await asyncio.sleep(BEAT_SECONDS)
        await channel.send_lines(ALIVE, SILENT_SECONDS)


def _proof(key: bytes, number: int, text: bytes) -> bytes:
    """Of line `number` of one direction."""
    return hmac.new(key, b"%d " % number + text, hashlib.sha256).hexdigest()[:DIGITS].encode()
