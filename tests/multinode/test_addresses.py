"""The ports of a session are open where the other nodes are told to connect, and loopback jobs are not open to the network."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from sessions import TOKEN, free_port, node

from ddpdoctor.collectors.multinode import claim
from ddpdoctor.multinode.authentication import Authentication
from ddpdoctor.multinode.host import SessionHost
from ddpdoctor.multinode.members import Member
from ddpdoctor.network.connect import has_address, listen_as_master, source_address
from ddpdoctor.network.tcpstore.server import Server


def is_open(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 2).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize(
    ("told", "opened", "closed"),
    [
        (("127.0.0.2",), ("127.0.0.2",), ("127.0.0.1", "::1")),
        (("127.0.0.2", "127.0.0.3", "::1"), ("127.0.0.2", "127.0.0.3", "::1"), ("127.0.0.1",)),
        ((), ("127.0.0.1", "127.0.0.9", "::1"), ()),
        (("192.0.2.7",), ("127.0.0.1", "::1"), ()),
    ],
    ids=["one address", "several", "no address is known", "an address that this machine has not"],
)
def test_link_tests_are_served_where_the_other_nodes_connect(
    told: tuple[str, ...], opened: tuple[str, ...], closed: tuple[str, ...]
) -> None:
    async def look() -> None:
        me = Member("me", node(0, 1))
        host = SessionHost(me, TOKEN, asyncio.Event(), 256, lambda: 1.0, lambda: None)
        port = host.open_echo(told)
        assert [address for address in opened if not is_open(address, port)] == []
        assert [address for address in closed if is_open(address, port)] == []
        host.close_ports()
        assert not any(is_open(address, port) for address in opened)
        await host.close()

    asyncio.run(look())


@pytest.mark.parametrize(
    ("host", "is_closed"),
    [("127.0.0.1", True), ("node0", False), ("10.1.2.3", False), ("0.0.0.0", False), ("::", False), ("", False)],
)
def test_an_address_of_this_machine_keeps_the_port_of_the_job_from_its_other_addresses(
    host: str, is_closed: bool
) -> None:
    port = free_port()
    made, there = claim(port, TOKEN, Authentication(), host)
    assert made is not None
    assert there == {}
    with made:
        assert is_open("127.0.0.1", port)
        assert is_open("127.0.0.2", port) is not is_closed


def test_a_second_ddpdoctor_finds_the_first_at_the_address_of_the_master() -> None:
    async def answer(port: int) -> dict[str, object]:
        me = Member("me", node(0, 1))
        host = SessionHost(me, TOKEN, asyncio.Event(), 256, lambda: 1.0, lambda: None)
        host.open("main", listen_as_master(port, "127.0.0.2"))
        _, there = await asyncio.to_thread(claim, port, TOKEN, Authentication(), "127.0.0.2")
        await host.close()
        return there

    assert asyncio.run(answer(free_port()))["kind"] == "i-am"


@pytest.mark.parametrize(("master", "is_closed"), [("127.0.0.2", True), ("localhost", False), ("10.1.2.3", False)])
def test_the_store_of_the_probe_listens_at_the_address_of_the_master(master: str, is_closed: bool) -> None:
    server = Server(master, 0, as_master=True)
    try:
        assert is_open("127.0.0.2", server.port)
        assert is_open("127.0.0.3", server.port) is not is_closed
    finally:
        server.close()


def test_a_service_address_on_an_interface_is_not_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """kube-proxy in its IPVS mode puts the addresses of services on an interface of every node."""
    address = source_address("192.0.2.1") or "127.0.0.2"
    assert has_address(address)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert has_address("127.0.0.1")
    assert has_address(address) is address.startswith("127.")


def test_a_port_that_another_address_has_is_in_use_although_the_job_is_on_the_loopback() -> None:
    """The store of the job listens at all addresses."""
    with socket.create_server(("127.0.0.2", 0)) as other:
        made, _ = claim(other.getsockname()[1], TOKEN, Authentication(), "127.0.0.1")
    assert made is None
