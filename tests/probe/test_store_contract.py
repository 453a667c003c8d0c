"""Our client speaks to torch's store, torch's client to ours: pinned to the torch that is installed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.network.tcpstore.client import Store, StoreError, connect
from ddpdoctor.network.tcpstore.server import Server

pytestmark = pytest.mark.torch
dist = pytest.importorskip("torch.distributed")


@pytest.fixture(params=["libuv", "plain", "ours"])
def address(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    if request.param == "ours":
        server = Server("127.0.0.1", 0)
        yield "127.0.0.1", server.port
        server.close()
        return
    seconds = timedelta(seconds=20)
    options: dict[str, Any] = {"use_libuv": request.param == "libuv"}
    theirs = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=seconds, wait_for_workers=False, **options)
    yield "127.0.0.1", theirs.port
    del theirs


@pytest.fixture
def store(address: tuple[str, int]) -> Iterator[Store]:
    store = connect(*address, "prefix/", 5.0)
    yield store
    store.close()


def test_every_request_of_ours(store: Store) -> None:
    assert store.ping()
    assert store.get("nothing") == b""
    store.set("a", b"1")
    assert store.get("a") == b"1"
    assert store.check("a")
    assert not store.check("b")
    assert [store.add("n", 1), store.add("n", 5), store.add("n", 0)] == [1, 6, 6]
    store.append("log", b"x")
    store.append("log", b"y" * 100_000)
    assert store.get("log") == b"x" + b"y" * 100_000
    assert store.claim("c", b"first") == b"first"
    assert store.claim("c", b"second") == b"first"
    assert store.delete("a")
    assert not store.check("a")


def test_waiting_ends_when_the_key_comes_or_is_called_off(store: Store, address: tuple[str, int]) -> None:
    other = connect(*address, "prefix/", 5.0)
    store.wait_begin("late")
    other.set("late", b"1")
    assert store.wait_end()
    store.wait_begin("never")
    assert not store.wait_end(cancel=True)
    assert store.ping(), "the connection is in step after a wait that was called off"
    other.close()


def _torch_client(port: int, rank: int, answers: Any) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=20), wait_for_workers=False)
    dist.init_process_group("gloo", store=dist.PrefixStore("g", store), rank=rank, world_size=2)
    import torch

    tensor = torch.ones(4) * (rank + 1)
    dist.all_reduce(tensor)
    store.set("k", "v")
    store.multi_set(["m1", "m2"], ["1", "2"])
    told = [
        tensor.tolist(),
        store.get("k"),
        store.add("sum", 2) > 0,
        store.check(["k", "m1"]),
        store.multi_get(["m1", "m2"]),
        store.compare_set("cas", "", "x"),
        store.num_keys() > 0,
        store.delete_key("absent"),
    ]
    store.append("log", "z")
    store.wait(["log"])
    dist.barrier()
    answers.put(told)


def test_torch_forms_a_group_over_our_server() -> None:
    server = Server("127.0.0.1", 0)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    ranks = [context.Process(target=_torch_client, args=(server.port, rank, answers)) for rank in range(2)]
    for each in ranks:
        each.start()
    told = [answers.get(timeout=60) for _ in ranks]
    for each in ranks:
        each.join(20)
    server.close()
    assert told == [[[3.0] * 4, b"v", True, True, [b"1", b"2"], b"x", True, False]] * 2


def test_a_stranger_is_told_from_a_store() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as stranger, pytest.raises(StoreError) as error:
        connect("127.0.0.1", stranger.getsockname()[1], "", 0.6)
    assert error.value.outcome is ConnectOutcome.SILENT


def test_a_closed_port_is_refused_and_a_wrong_name_unresolvable() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(StoreError) as error:
        connect("127.0.0.1", port, "", 1.0)
    assert error.value.outcome is ConnectOutcome.REFUSED
    with pytest.raises(StoreError) as error:
        connect("no-such-host.invalid", port, "", 3.0)
    assert error.value.outcome is ConnectOutcome.UNRESOLVED


def test_the_server_drops_what_is_no_request_and_serves_on() -> None:
    import socket

    server = Server("127.0.0.1", 0)
    for bad in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\0\0", b"\0" + b"\xff" * 40):
        with socket.create_connection(("127.0.0.1", server.port), 5) as link:
            link.sendall(bad)
            link.settimeout(5)
            try:
                assert link.recv(10) == b""
            except ConnectionResetError:
                continue
    store = connect("127.0.0.1", server.port, "", 5.0)
    assert store.ping()
    store.close()
    server.close()
