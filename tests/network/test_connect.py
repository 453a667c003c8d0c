"""Connections and lookups: what came back is one of a few outcomes, and nothing takes longer than it may."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable

import pytest

from ddpdoctor.facts.reachability import FARTHEST_FIRST, ConnectOutcome
from ddpdoctor.network import aio, connect, file_limits
from ddpdoctor.network.resolve import look_up
from ddpdoctor.network.tcp_reach import check_reachability
from ddpdoctor.network.tcpstore.client import StoreError
from ddpdoctor.network.tcpstore.client import connect as connect_store
from ddpdoctor.network.tcpstore.server import Server
from ddpdoctor.system.machine import Root


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (errno.ECONNREFUSED, ConnectOutcome.REFUSED),
        (errno.ECONNRESET, ConnectOutcome.RESET),
        (errno.ETIMEDOUT, ConnectOutcome.NO_ANSWER),
        (errno.ENETUNREACH, ConnectOutcome.NO_ROUTE),
        (errno.EHOSTUNREACH, ConnectOutcome.NO_HOST),
        (errno.EPERM, ConnectOutcome.PROHIBITED),
        (errno.EADDRNOTAVAIL, ConnectOutcome.FAILED),
    ],
)
def test_an_errno_is_an_outcome(number: int, outcome: ConnectOutcome) -> None:
    assert connect.outcome_of(OSError(number, "")) is outcome


def test_a_timeout_without_an_errno_is_no_answer() -> None:
    assert connect.outcome_of(TimeoutError("timed out")) is ConnectOutcome.NO_ANSWER


def test_every_outcome_has_its_place_in_the_order() -> None:
    assert sorted(FARTHEST_FIRST) == sorted(ConnectOutcome)


@pytest.mark.parametrize(
    ("source", "seconds", "outcome"),
    [
        (None, 0.01, ConnectOutcome.NO_ROUTE),
        ("10.0.0.1", 0.01, ConnectOutcome.PROHIBITED),
        ("10.0.0.1", 3.0, ConnectOutcome.NO_HOST),
    ],
)
def test_who_sent_no_route_to_host(
    source: str | None, seconds: float, outcome: ConnectOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "source_address", lambda address: source)
    assert connect.refined(ConnectOutcome.NO_HOST, "10.0.0.2", seconds) is outcome


def test_a_port_listens_on_ipv4_where_ipv6_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutIpv6(socket.socket):
        def bind(self, address: object) -> None:
            if self.family == socket.AF_INET6:
                raise OSError(errno.EADDRNOTAVAIL, "")
            super().bind(address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", WithoutIpv6)
    with connect.listen(0) as listening:
        assert listening.family == socket.AF_INET


def test_both_ways_to_connect_have_the_same_outcome() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        connect.connect("127.0.0.1", port, 1.0)
    assert asyncio.run(aio.connect("127.0.0.1", port, 1.0, 1 << 16)) is ConnectOutcome.REFUSED


def test_a_name_is_looked_up_within_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*arguments: object, **options: object) -> list[object]:
        time.sleep(2.0)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    started = time.monotonic()
    ways: tuple[Callable[[], object], ...] = (
        lambda: look_up("slow.example", 0.05),
        lambda: asyncio.run(aio.look_up("slow.example", 0.05)),
    )
    assert all(getattr(way(), "is_late", False) for way in ways)
    with pytest.raises(StoreError) as error:
        connect_store("slow.example", 1, "", 0.05)
    assert error.value.outcome is ConnectOutcome.UNRESOLVED
    assert time.monotonic() - started < 1.5


def test_reachability_tells_a_store_from_others() -> None:
    store = Server("127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as closed:
        ports = [store.port, silent.getsockname()[1]]
        free = closed.getsockname()[1]
        closed.close()
        found = [check_reachability(Root(), ["127.0.0.1"], port, 0.5)[0].outcome for port in (*ports, free)]
    store.close()
    assert found == [ConnectOutcome.STORE, ConnectOutcome.SILENT, ConnectOutcome.REFUSED]


def test_the_file_limit_is_raised_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 4096)]
    monkeypatch.setattr(file_limits.resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(file_limits.resource, "setrlimit", lambda which, pair: limits.append(pair))
    assert file_limits.raise_file_limit(2048) == 2048
    assert file_limits.raise_file_limit() == 4096
    assert limits[1:] == [(2048, 4096), (4096, 4096)]
