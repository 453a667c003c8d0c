"""After the verdict: a node that goes before the ranks have met is known at once, and one that is slow is not blamed."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from multinode.sessions import TOKEN, free_port, node

from ddpdoctor.facts.nodes import Form, Node
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.multinode import client, liveness
from ddpdoctor.multinode.members import Member
from ddpdoctor.multinode.results import LostNode, NodeEnd, NotJoined, ReceivedVerdict, SessionResult
from ddpdoctor.multinode.session import MemberSession
from ddpdoctor.network.connect import listen

NODES = 3


class Watching:
    """A node whose meeting goes on after the verdict; `lost` are those that it is told of."""

    def __init__(self, told: Node) -> None:
        self.lost: list[LostNode] = []
        self.settled = asyncio.Event()
        main = listen(told.master_port or 0) if told.owns else None
        self.session = MemberSession(Member(told.host, told), TOKEN, 10.0, frozenset({"127.0.0.1"}), main)
        self.session.watches = True
        self.session.places = {f"host{rank}": {"first_rank": 2 * rank, "node_rank": rank} for rank in range(NODES)}
        self.session.lost = self.lost.append
        self.task = asyncio.create_task(self.session.run(self._judge, self._settle))

    def _judge(self, gathered: SessionResult) -> asyncio.Future[dict[str, Any]]:
        verdict: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        verdict.set_result({"ddpdoctor": 1, "kind": "verdict", "findings": []})
        return verdict

    def _settle(self, met: ReceivedVerdict | NotJoined | None) -> None:
        assert not isinstance(met, NotJoined)
        self.settled.set()

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def _met(port: int) -> list[Watching]:
    nodes = [Watching(node(rank, port, NODES, nproc=2)) for rank in range(NODES)]
    await asyncio.gather(*(asyncio.wait_for(each.settled.wait(), 20) for each in nodes))
    return nodes


async def _until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


async def _until_lost(*nodes: Watching) -> None:
    await _until(lambda: all(each.lost for each in nodes))


@pytest.mark.parametrize("gone", range(NODES))
def test_a_node_that_goes_after_the_verdict_is_told_to_all_others(gone: int) -> None:
    async def meet() -> None:
        port = free_port()
        nodes = await _met(port)
        with socket.create_server(("127.0.0.1", port)):
            pass  # the job's port is free meanwhile
        others = [each for rank, each in enumerate(nodes) if rank != gone]
        await nodes[gone].end()
        await _until_lost(*others)
        assert [each.lost[0] for each in others] == [LostNode(f"host{gone}", gone, 2 * gone, 2)] * len(others)
        for each in others:
            await each.end()

    asyncio.run(meet())


def test_nobody_is_blamed_while_all_stay_however_slow_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    knocked: list[str] = []

    async def alive(address: str, port: int, *rest: object, **more: object) -> ConnectOutcome:
        knocked.append(address)
        return ConnectOutcome.REFUSED

    async def meet() -> None:
        nodes = await _met(free_port())
        monkeypatch.setattr(liveness, "connect", alive)

        def look() -> list[str]:
            nodes[0].session.host.connections["host1"].last_message_at = (
                time.monotonic() - 60.0
            )  # stopped, as it looks from here
            return knocked

        await _until(look)
        assert not any(each.lost for each in nodes)
        for each in nodes:
            await each.end()

    asyncio.run(meet())


def test_a_node_that_says_nothing_although_its_machine_answers_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def quiet(writer: object) -> None:
        await asyncio.sleep(60)

    async def meet() -> None:
        monkeypatch.setattr(client, "send_heartbeats", quiet)
        monkeypatch.setattr(liveness, "SURE_SECONDS", 0.1)
        monkeypatch.setattr(liveness, "SURE_OF_SLOW_SECONDS", 0.1)
        nodes = await _met(free_port())
        nodes[0].session.host.connections["host1"].last_message_at -= 60.0
        await _until_lost(nodes[0], nodes[2])
        assert nodes[2].lost[0] == LostNode("host1", 1, 2, 2, NodeEnd.STOPPED)
        for each in nodes:
            await each.end()

    asyncio.run(meet())


def test_a_machine_at_which_nothing_answers_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dead(*rest: object, **more: object) -> ConnectOutcome:
        return ConnectOutcome.NO_ANSWER

    async def meet() -> None:
        nodes = await _met(free_port())
        monkeypatch.setattr(liveness, "connect", dead)

        def look() -> bool:
            nodes[0].session.host.connections["host1"].last_message_at = time.monotonic() - 60.0
            return bool(nodes[0].lost)

        await _until(look)
        await _until_lost(nodes[2])
        assert nodes[2].lost == [LostNode("host1", 1, 2, 2, NodeEnd.SILENT)]
        for each in nodes:
            await each.end()

    asyncio.run(meet())


def test_ranks_that_meet_themselves_are_named_by_their_own_number() -> None:
    rank = Member("a", Node("b", Form.ENV, node_rank=1, rank=5, nproc=4))
    assert liveness.ranks_of(rank, {"is_first": True}) == LostNode("b", 1, 5, 1)


@pytest.mark.parametrize("told", [None, {}, {"host": 1}, {"host": "a", "node_rank": 0, "first_rank": -1, "count": 1}])
def test_what_is_no_node_is_not_believed(told: object) -> None:
    assert liveness.read_lost_node(told) is None


@pytest.mark.parametrize(
    ("silent", "slowest", "ends"),
    [
        (1.5, 0.6, [None, None]),
        (2.5, 0.6, [None, NodeEnd.STOPPED]),
        (2.5, 1.4, [None, None]),
        (3.5, 1.4, [None, NodeEnd.STOPPED]),
    ],
)
def test_who_was_slow_before_is_given_more_time(
    silent: float, slowest: float, ends: list[NodeEnd | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def up(*rest: object, **more: object) -> ConnectOutcome:
        return ConnectOutcome.REFUSED

    async def look() -> list[NodeEnd | None]:
        check, last_message_at = liveness.LivenessCheck(), time.monotonic() - silent
        return [await check.look(("127.0.0.1", 1), last_message_at, slowest) for _ in range(2)]

    for name in ("SURE_SECONDS", "SURE_OF_SLOW_SECONDS"):
        monkeypatch.setattr(liveness, name, 0.0)
    monkeypatch.setattr(liveness, "connect", up)
    assert asyncio.run(look()) == ends


def test_silence_that_a_lossy_link_may_explain_is_no_lost_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*rest: object, **more: object) -> ConnectOutcome:
        return ConnectOutcome.NO_ANSWER

    async def look(silent: float) -> NodeEnd | None:
        return await liveness.LivenessCheck().look(("127.0.0.1", 1), time.monotonic() - silent, 0.6)

    monkeypatch.setattr(liveness, "connect", nothing)
    assert asyncio.run(look(2.5)) is None
    assert asyncio.run(look(3.5)) is NodeEnd.SILENT
