"""A node that lies, or any number of strangers, cannot make a session grow: what they send is limited in sum."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from sessions import TOKEN, free_port, node

from ddpdoctor.facts.codec import encode
from ddpdoctor.multinode.messages import MAX_HELLO_BYTES, MAX_LINE_BYTES, MOST_VALUES, WireError, decode_line

MOST_MIB = 64
PROGRAM = """
import asyncio, resource, sys
sys.path.insert(0, sys.argv[1])
import sessions
from sessions import attend, node
port, rank = int(sys.argv[2]), int(sys.argv[3])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak()
print("ready", flush=True)
met = asyncio.run(attend(node(rank, port), token=sys.argv[4], seconds=float(sys.argv[5])))
print(peak() - before, len(getattr(met, "members", ())), flush=True)
"""
EMPTY = b"[" + b"[]," * 80_000 + b"[]]"
"""Many objects in few bytes."""
FEWER = b"[" + b"[]," * 2_500 + b"[]]"
"""As many as are accepted."""


@contextmanager
def session(port: int, rank: int, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A node's session in a process of its own, which prints by how many MiB it grew, and how many nodes joined."""
    folder = str(Path(__file__).parent)
    command = [sys.executable, "-c", PROGRAM, folder, str(port), str(rank), TOKEN, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def outcome(process: subprocess.Popen[str]) -> tuple[int, int]:
    """The growth in MiB, and how many nodes joined."""
    assert process.stdout is not None
    grown, joined = process.stdout.readline().split()
    return int(grown), int(joined)


def connected(port: int, opened: ExitStack) -> socket.socket:
    for _ in range(200):
        try:
            return opened.enter_context(socket.create_connection(("127.0.0.1", port), 5))
        except ConnectionRefusedError:
            opened.enter_context(socket.socket()).settimeout(0.05)
            with socket.socket() as pause:
                pause.settimeout(0.05)
                try:
                    pause.connect(("127.0.0.1", 9))
                except OSError:
                    continue
    raise AssertionError("the session does not listen")


def send(link: socket.socket, data: bytes) -> None:
    """As much as the other side takes."""
    link.settimeout(0.5)
    try:
        link.sendall(data)
    except OSError:
        return  # refused, as it should be


def hello(number: int, port: int, extra: bytes) -> bytes:
    """A hello of a node that nobody awaits, with `extra` JSON that is kept with it."""
    told = {"ddpdoctor": 1, "kind": "hello", "token": TOKEN, "key": f"liar{number}", "node": encode(node(number, port))}
    head = json.dumps({**told, "errors": [], "echo_port": 0, "clock": None}).encode()
    return head[:-1] + b', "line": {"a": ' + extra + b"}}\n"


ATTACKS = {
    "many half lines": lambda port, number: b'{"a": "' + b"x" * (MAX_HELLO_BYTES - 9),
    "many members with many values": lambda port, number: hello(number, port, EMPTY),
    "many members with fewer values": lambda port, number: hello(number, port, FEWER),
    "many members with long lines": lambda port, number: hello(number, port, b'"' + b"x" * 200_000 + b'"'),
    "members that send on": lambda port, number: (
        hello(number, port, b"0") + (b'{"kind": "links", "links": ' + FEWER + b"}\n") * 8
    ),
    "members with half lines": lambda port, number: (
        hello(number, port, b"0") + b'{"a": "' + b"x" * (MAX_HELLO_BYTES - 9)
    ),
}


USUAL = ("many half lines", "members that send on")


@pytest.mark.parametrize(
    "attack", [each if each in USUAL else pytest.param(each, marks=pytest.mark.slow) for each in ATTACKS]
)
def test_strangers_cannot_make_the_host_grow(attack: str) -> None:
    port = free_port()
    with session(port, 0, 6.0) as process, ExitStack() as opened:
        for number in range(2, 402):
            send(connected(port, opened), ATTACKS[attack](port, number)) if process.poll() is None else None
        grown, joined = outcome(process)
    assert grown < MOST_MIB
    assert joined < 32


def test_a_host_that_lies_cannot_make_a_node_grow() -> None:
    port = free_port()
    welcome = {"kind": "welcome", "key": "liar", "host": "liar", "seconds": 3.0, "owns": True, "has_main": True}

    servers: list[asyncio.Server] = []

    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        servers.pop().close()
        await reader.readline()
        writer.write(json.dumps(welcome).encode() + b"\n")
        for _ in range(4):
            writer.write(b'{"kind": "place", "a": [' + b"[]," * (MOST_VALUES // 3) + b"[]]}\n")
            writer.write(b'{"kind": "place", "a": "' + b"x" * (MAX_LINE_BYTES - 99) + b'"}\n')
            try:
                await asyncio.wait_for(writer.drain(), 2)
            except (OSError, asyncio.TimeoutError):
                break
        writer.close()

    async def meet() -> tuple[int, int]:
        servers.append(await asyncio.start_server(lie, "127.0.0.1", port, limit=1 << 20))
        with session(port, 1, 3.0) as process:
            return await asyncio.get_running_loop().run_in_executor(None, outcome, process)

    assert asyncio.run(meet())[0] < MOST_MIB


def test_a_line_with_too_many_values_is_refused_before_it_is_parsed() -> None:
    assert decode_line(b'{"a": [' + b"[]," * 1000 + b"[]]}")
    with pytest.raises(WireError, match="too many values"):
        decode_line(b'{"a": [' + b"[]," * MOST_VALUES + b"[]]}")
