"""Calls on the local network: the host answers those of its own job for whom a place is empty, and nobody else."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from sessions import node

from ddpdoctor.multinode import udp_discovery
from ddpdoctor.multinode.client import MemberClient
from ddpdoctor.multinode.host import SessionHost
from ddpdoctor.multinode.host_discovery import HostDiscovery
from ddpdoctor.multinode.members import Member, departed_member
from ddpdoctor.multinode.messages import encode_line
from ddpdoctor.multinode.udp_discovery import (
    discover,
    discovery_request,
    is_awaited,
    leave_message,
    listen_for_requests,
)
from ddpdoctor.multinode.udp_responder import UdpResponder

TOKEN = f"job of {os.getpid()}"
HOST = Member("host", node(0, 29500, 3))


def called(rank: int, port: int = 29500, token: str = TOKEN, key: str = "other", **more: Any) -> dict[str, Any]:
    return discovery_request(Member(key, node(rank, port, 3, **more)), token)


def test_a_node_whose_place_is_empty_is_awaited() -> None:
    assert is_awaited(called(1), HOST, [HOST], TOKEN)


@pytest.mark.parametrize(
    "told",
    [
        called(0),
        called(3),
        called(1, port=29501),
        called(1, token="another job"),
        called(1, key="host"),
        called(1, script_hash="other"),
        {**called(1), "ddpdoctor": 99},
        {**called(1), "kind": "here"},
        {},
    ],
)
def test_whoever_else_calls_is_not_answered(told: dict[str, Any]) -> None:
    assert not is_awaited(told, HOST, [HOST], TOKEN)


@given(
    st.dictionaries(st.sampled_from(list(called(1))), st.none() | st.integers() | st.text() | st.lists(st.integers()))
)
def test_nonsense_is_not_answered(told: dict[str, Any]) -> None:
    assert not is_awaited(told, HOST, [HOST], TOKEN)


def test_a_farewell_fits_into_a_datagram_however_much_is_wrong() -> None:
    wrong = {
        "code": "NET004",
        "severity": "error",
        "message": "x" * 5000,
        "where": {"peer": "10.0.0.1"},
        "fix": "y" * 5000,
    }
    said = leave_message(Member("other", node(1, 29500, 3)), TOKEN, [wrong] * 50)
    assert len(encode_line(said)) <= udp_discovery.MOST_BYTES
    assert is_awaited(said, HOST, [HOST], TOKEN)
    gone = departed_member(said, HOST.node)
    assert (gone.node.host, gone.node.node_rank) == ("host1", 1)
    assert {each["code"] for each in gone.errors} == {"NET004"}


@given(
    st.dictionaries(
        st.sampled_from(["key", "host", "number", "errors"]),
        st.none() | st.integers() | st.text() | st.lists(st.integers()),
    )
)
def test_nonsense_is_no_farewell_that_harms(told: dict[str, Any]) -> None:
    assert not departed_member(told, HOST.node).errors


def test_a_job_that_is_complete_answers_nobody() -> None:
    members = [HOST, *(Member(f"key{rank}", node(rank, 29500, 3)) for rank in (1, 2))]
    assert not is_awaited(called(1), HOST, members, TOKEN)


@pytest.mark.parametrize(("broadcasts", "others"), [(["127.255.255.255"], ()), ([], ("127.0.0.1",))])
@pytest.mark.parametrize("member_of", [None, "10.0.0.1"])
def test_a_call_is_answered_with_the_side_door(
    broadcasts: list[str], others: tuple[str, ...], member_of: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(udp_discovery, "_broadcasts", lambda: broadcasts)
    monkeypatch.setattr(udp_discovery, "ANSWER_SECONDS", 5.0 if others or not member_of else 0.1)

    async def both() -> tuple[str, int | None] | None:
        changed = asyncio.Event()
        host = SessionHost(HOST, TOKEN, changed, 256, lambda: 1.0, lambda: member_of)
        client = MemberClient(TOKEN, lambda seconds: None, lambda verdict: None, print, host_address=member_of)
        discovery = HostDiscovery(host, client, frozenset(), changed.set, side_port=28914)
        ear = await listen_for_requests(UdpResponder(host, discovery, changed.set).answer)
        assert ear is not None
        try:
            return await discover(called(1), others)
        finally:
            ear.close()
            await host.close()

    found = asyncio.run(both())
    if member_of is None:
        assert found == ("127.0.0.1", 28914)
    else:  # guests do not all answer at once
        assert found == ((member_of, None) if others else None)


def test_names_that_nobody_knows_are_left_out() -> None:
    assert asyncio.run(udp_discovery.addresses_of(["127.0.0.2", "no.such.invalid", "::1"])) == ("127.0.0.2",)
