"""Meetings on the loopback: all find each other, and nothing that comes to the port disturbs them."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import struct
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import FULL

sys.path.insert(0, str(Path(__file__).parent))
from sessions import TOKEN, attend, free_port, meet, node

import ddpdoctor.multinode.client as guest_side
import ddpdoctor.multinode.host as host_side
from ddpdoctor.facts.reachability import Lookup
from ddpdoctor.multinode import host_discovery, session, udp_discovery
from ddpdoctor.multinode.members import Member
from ddpdoctor.multinode.messages import MAX_HELLO_BYTES, PROTOCOL, encode_line
from ddpdoctor.multinode.results import NotJoined, ReceivedVerdict, SessionResult
from ddpdoctor.multinode.udp_discovery import announce_leaving, leave_message


def test_the_host_gathers_all_and_everybody_is_told_its_verdict() -> None:
    port = free_port()
    host, *others = meet(*(attend(node(rank, port, 3)) for rank in range(3)))
    assert isinstance(host, SessionResult)
    assert [member.node.node_rank for member in host.members] == [0, 1, 2]
    assert host.is_main
    assert not host.missing
    assert (host.absent, host.absent_count) == ((), 0)
    assert len(host.links) == 6
    assert all(link.works and link.latency_seconds for link in host.links)
    assert all(isinstance(each, ReceivedVerdict) and each.verdict["count"] == 3 for each in others)


def test_the_port_is_free_when_it_is_over() -> None:
    port = free_port()
    meet(*(attend(node(rank, port)) for rank in range(2)))
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("0.0.0.0", port))


def test_who_never_comes_is_known_when_the_time_is_over() -> None:
    port, started = free_port(), time.monotonic()
    host, other = meet(*(attend(node(rank, port, 3), seconds=1.0) for rank in range(2)))
    assert isinstance(host, SessionResult)
    assert host.missing == (2,)
    assert isinstance(other, ReceivedVerdict)
    assert time.monotonic() - started < 10


def test_a_late_node_is_waited_for() -> None:
    port = free_port()

    async def late() -> object:
        await asyncio.sleep(0.7)
        return await attend(node(0, port))

    host, other = meet(late(), attend(node(1, port)))
    assert isinstance(host, SessionResult)
    assert len(host.members) == 2
    assert isinstance(other, ReceivedVerdict)


def test_a_head_that_never_comes_leaves_a_node_alone() -> None:
    (met,) = meet(attend(node(1, free_port()), seconds=1.0))
    alone = met.members[0] if isinstance(met, SessionResult) else met
    assert isinstance(met, (NotJoined, SessionResult))
    assert alone is not None


def test_ports_that_differ_are_seen_through_the_side_door() -> None:
    port = free_port()
    host, other = meet(attend(node(0, port)), attend(node(1, free_port())))
    assert isinstance(host, SessionResult)
    assert {member.node.master_port for member in host.members} != {port}
    assert isinstance(other, ReceivedVerdict)


def test_a_node_with_an_error_of_its_own_tells_all_at_once() -> None:
    port, started = free_port(), time.monotonic()
    wrong = {"code": "ENV026", "message": "no such interface"}
    host, _ = meet(attend(node(0, port)), attend(node(1, port), errors=(wrong,)))
    assert isinstance(host, SessionResult)
    assert [member.errors for member in host.members] == [(), (wrong,)]
    assert not host.links
    assert time.monotonic() - started < 10


def test_who_had_not_joined_is_known_although_an_error_ended_the_wait() -> None:
    port, wrong = free_port(), {"code": "NET017", "message": "the name of this host is a loopback address"}
    (host,) = meet(attend(node(0, port, 3), errors=(wrong,), seconds=30.0))
    assert isinstance(host, SessionResult)
    assert (host.missing, host.lacking) == ((), 0), "nobody was waited for in full"
    assert (host.absent, host.absent_count) == ((1, 2), 2)


def test_a_node_of_another_job_is_turned_away_and_the_job_goes_on() -> None:
    port = free_port()
    host, _, stranger = meet(
        attend(node(0, port, 2)),
        _after(0.6, attend(node(1, port, 2))),
        attend(node(1, port, 2, script="b.py"), token="other", key="stranger", seconds=6.0),
    )
    assert isinstance(host, SessionResult)
    assert [each.script for each in host.strangers] == ["b.py"]
    assert isinstance(stranger, NotJoined)
    assert stranger.other_job is not None


def test_nodes_whose_doctors_speak_other_protocols_both_learn_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SURE_SECONDS", 0.2)
    monkeypatch.setattr(session, "GRACE_SECONDS", 0.2)
    port = free_port()

    async def older() -> dict[str, Any]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode_line({**Member("older", node(1, port)).hello(TOKEN), "ddpdoctor": 0}))
        told = json.loads(await reader.readline())
        writer.close()
        return dict(told)

    host, told = meet(attend(node(0, port)), _after(0.3, older()))
    assert isinstance(host, SessionResult)
    assert [(each.host, each.protocol, each.is_node) for each in host.strangers] == [("host1", 0, False)]
    assert (told["kind"], told["ddpdoctor"], told["host"]) == ("other-version", 1, "host0")


def test_a_host_is_told_why_a_node_gives_up_that_it_never_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udp_discovery, "_broadcasts", lambda: ["127.255.255.255"])
    wrong = {"code": "NET004", "severity": "error", "message": "nothing comes back"}

    async def lost() -> None:
        await announce_leaving(leave_message(Member("lost", node(1, port)), TOKEN, [wrong]), ())

    port, started = free_port(), time.monotonic()
    host, _ = meet(attend(node(0, port), seconds=30.0), _after(0.5, lost()))
    assert isinstance(host, SessionResult)
    assert [(member.node.host, member.errors) for member in host.gone] == [("host1", (wrong,))]
    assert (host.missing, host.lacking) == ((), 0)
    assert time.monotonic() - started < 15


def test_a_node_that_came_and_went_is_remembered() -> None:
    port = free_port()

    async def brief() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode_line(Member("brief", node(1, port, 3)).hello(TOKEN)))
        await reader.readline()
        writer.close()

    host, _ = meet(attend(node(0, port, 3), seconds=2.0), _after(0.3, brief()))
    assert isinstance(host, SessionResult)
    assert [each.host for each in host.left] == ["host1"]


def test_a_guest_that_was_stopped_is_told_apart_from_a_network_that_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_side, "SILENT_SECONDS", 0.5)
    port = free_port()

    async def stopped() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode_line(Member("stopped", node(1, port)).hello(TOKEN)))
        while await reader.read(1 << 16):
            pass  # it reads for ever and says nothing more
        writer.close()

    host, _ = meet(attend(node(0, port)), _after(0.3, stopped()))
    assert isinstance(host, SessionResult)
    assert host.silent == (1,)
    assert not host.links


def test_a_guest_leaves_a_host_that_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_side, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(session, "SURE_SECONDS", 0.2)
    port = free_port()

    async def stopped() -> None:
        async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.append(writer)
            if await reader.readline() and writer is came[0]:
                writer.write(encode_line({"kind": "welcome", "key": "host", "host": "host0", "seconds": 60.0}))
            left.append(await reader.read(1))

        came: list[asyncio.StreamWriter] = []
        left: list[bytes] = []
        server = await asyncio.start_server(welcome, "127.0.0.1", port)
        while not left:
            await asyncio.sleep(0.05)
        server.close()
        for writer in came:
            writer.close()

    alone, _ = meet(attend(node(1, port), seconds=60.0), stopped())
    assert isinstance(alone, NotJoined)
    assert alone.lost_host == "host0"


async def _after(seconds: float, join: object) -> object:
    await asyncio.sleep(seconds)
    return await join  # type: ignore[misc]


GARBAGE = {
    "nothing": b"",
    "random bytes": os.urandom(300),
    "a web browser": b"GET / HTTP/1.1\r\nHost: node0\r\n\r\n",
    "incomplete line": b'{"ddpdoctor": 1',
    "a line without end": b'{"a": "' + b"x" * (MAX_HELLO_BYTES + 9),
    "no object": b"[1, 2]\n",
    "deep": b"{" + b'"a":{' * 5000 + b"\n",
    "no hello": json.dumps({"ddpdoctor": PROTOCOL, "token": "job", "kind": "hello", "key": 5}).encode() + b"\n",
    "another version": json.dumps({"ddpdoctor": 99, "token": "job", "kind": "hello"}).encode() + b"\n",
    "an unknown kind": json.dumps({"ddpdoctor": PROTOCOL, "token": "job", "kind": "exec"}).encode() + b"\n",
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_whatever_comes_to_the_port_the_nodes_still_meet() -> None:
    port = free_port()

    async def disturb() -> None:
        await asyncio.sleep(0.3)
        writers = []
        for text in GARBAGE.values():
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(text)
            writers.append(writer)
        await asyncio.sleep(0.2)
        for writer in writers:
            writer.close()

    host, other, _ = meet(attend(node(0, port)), _after(1.0, attend(node(1, port))), disturb())
    assert isinstance(host, SessionResult)
    assert len(host.members) == 2
    assert isinstance(other, ReceivedVerdict)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # connections that nobody accepted any more
def test_connections_that_say_nothing_are_survived_by_the_thousand() -> None:
    port, count = free_port(), 10_000 if FULL else 1_500

    async def flood() -> None:
        await asyncio.sleep(0.3)
        held = []
        for _ in range(count):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
            held.append(one)
            if len(held) % 100 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(1.5)
        for one in held:
            one.close()

    host, other, _ = meet(attend(node(0, port), seconds=30), _after(1.0, attend(node(1, port), seconds=30)), flood())
    assert isinstance(host, SessionResult)
    assert len(host.members) == 2
    assert isinstance(other, ReceivedVerdict)
    gc.collect()  # their sockets are closed here, and not in whatever test comes next


def test_the_query_of_a_store_is_answered_so_that_nobody_takes_the_port_for_a_strangers() -> None:
    port = free_port()

    async def ping() -> bytes:
        await asyncio.sleep(0.3)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(struct.pack("<BI", 0, 0x3C85F7CE) + b"\x0d" + b"nonc")
        answer = await reader.read(4)
        writer.close()
        return answer

    _, _, answer = meet(attend(node(0, port)), _after(0.8, attend(node(1, port))), ping())
    assert answer == b"nonc"


@pytest.mark.parametrize("count", [12])
def test_many_nodes_meet(count: int) -> None:
    port = free_port()
    host, *others = meet(*(attend(node(rank, port, count), seconds=60) for rank in range(count)))
    assert isinstance(host, SessionResult)
    assert len(host.members) == count
    assert len(host.links) == count * (count - 1)
    assert all(isinstance(each, ReceivedVerdict) for each in others)


@pytest.mark.slow
def test_a_resolver_that_is_slow_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    port, ask = free_port(), socket.getaddrinfo

    def slowly(host: str, *more: object, **options: object) -> object:
        if host == "slow.example":
            time.sleep(6.0)
            host = "127.0.0.1"
        return ask(host, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", slowly)
    member = replace(node(1, port), master_addr="slow.example")
    host, other = meet(attend(node(0, port), seconds=25.0), attend(member, seconds=25.0))
    assert isinstance(host, SessionResult)
    assert [each.node.came for each in host.members] == ["main", "main"]
    assert isinstance(other, ReceivedVerdict)


def test_what_a_slow_resolver_says_between_two_looks_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(name: str, seconds: float) -> Lookup:
        await asyncio.sleep(0.05)
        return Lookup(name, ("192.0.2.7",))

    async def look() -> list[tuple[tuple[str, ...], bool]]:
        nobody: Any = None
        found = host_discovery.HostDiscovery(nobody, nobody, frozenset(), lambda: None)
        seen = []
        for _ in range(3):
            await found._resolve("node0")
            seen.append((found.addresses, found._is_resolving))
            await asyncio.sleep(0.1)
        return seen

    monkeypatch.setattr(host_discovery, "look_up", slow)
    monkeypatch.setattr(host_discovery, "RESOLVE_SECONDS", 0.01)
    monkeypatch.setattr(host_discovery, "KNOWN_SECONDS", 0.01)
    assert asyncio.run(look()) == [((), True), (("192.0.2.7",), False), (("192.0.2.7",), False)]
