"""Ports of this machine: free, taken and by whom; broken files and variables end in gaps."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor.collectors.net import collect
from ddpdoctor.collectors.ports import find_free_port, look_at, try_bind
from ddpdoctor.facts.gaps import Why
from ddpdoctor.system.machine import Machine, Root


def machine(**variables: str) -> Machine:
    return Machine(environ=variables)


LISTENER = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
input()
"""


@pytest.fixture
def listener() -> Iterator[tuple[int, int]]:
    """Another program that listens on a port of the loopback: its pid and the port."""
    with subprocess.Popen(
        [sys.executable, "-c", LISTENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.kill()


def test_a_listener_is_named_with_its_process(listener: tuple[int, int]) -> None:
    pid, number = listener
    port = look_at(machine(), number, True)
    held = next(s for s in port.sockets if s.state == "LISTEN")
    assert port.is_taken
    assert (held.pid, held.local, held.is_ours) == (pid, "127.0.0.1", False)
    assert held.command is not None
    assert "create_server" in held.command


def test_what_this_process_or_its_agent_listens_on_is_the_jobs_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        for machine_of in (machine(), machine(TORCHELASTIC_RUN_ID="none")):
            assert any(s.is_ours for s in look_at(machine_of, number, True).sockets)


def test_a_socket_in_time_wait_does_not_take_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", number)) as client:
            accepted, _ = server.accept()
            accepted.close()
            assert client.recv(1) == b""
    port = look_at(machine(), number, True)
    assert "TIME_WAIT" in {s.state for s in port.sockets}
    assert port.is_taken is False
    assert port.bind_error is None


def test_a_free_port_can_be_bound_and_is_not_the_one_asked_about() -> None:
    offered = find_free_port(29500)
    assert offered is not None
    assert offered != 29500
    assert try_bind(offered) is None


@pytest.mark.parametrize("given", ["", "0", "65536", "-1", "http", "9" * 5000, "29500 ", "٣"])
def test_any_master_port_ends_in_a_port_or_a_gap(given: str) -> None:
    net = collect(machine(MASTER_PORT=given))
    gap = net.gap("port")
    if given.strip() in ("", "29500"):
        assert net.port is not None
        assert net.port.number == 29500
        assert net.port.is_set is bool(given)
    else:
        assert net.port is None
        assert gap is not None
        assert gap.why is Why.NOT_HERE


def test_broken_files_of_proc_and_sys_are_gaps_and_no_crash(tmp_path: Path) -> None:
    garbage = (
        "proc/net/tcp",
        "proc/net/route",
        "proc/net/ipv6_route",
        "sys/class/net/eth0/flags",
        "sys/class/net/eth0/mtu",
    )
    for name in (*garbage, "sys/class/net/eth0/ifindex", "proc/sys/net/ipv4/ip_local_port_range"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"\xff\xfe zz : \n 1 2 3\n" * 3)
    net = collect(Machine(root=Root(str(tmp_path)), environ={"MASTER_ADDR": "x", "MASTER_PORT": "1"}))
    assert [i.name for i in net.interfaces] == ["eth0"]
    assert net.interfaces[0].mtu is None
    assert net.ephemeral_ports is None
    assert net.backlog_max is None
    gap = net.gap("backlog_max")
    assert gap is not None
    assert gap.why is Why.NOT_HERE
