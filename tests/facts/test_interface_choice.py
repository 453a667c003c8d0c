"""NCCL's and Gloo's own reading of the interface variables."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.facts.interface_choice import MAX_INTERFACES, choose_for_gloo, choose_for_nccl, matching
from ddpdoctor.facts.net import Address, Interface, Net, is_loopback
from ddpdoctor.facts.reachability import Lookup


def face(name: str, *ips: str, running: bool = True, prefix: int = 24) -> Interface:
    addresses = tuple(Address(ip, prefix, "ipv6" if ":" in ip else "ipv4") for ip in ips)
    return Interface(name, is_running=running, addresses=addresses)


LO = face("lo", "127.0.0.1", "::1")


@pytest.mark.parametrize(
    ("name", "spec", "taken"),
    [
        ("eth10", "eth1", True),
        ("eth10", "=eth1", False),
        ("eth1", "=eth0,eth1", True),
        ("docker0", "^docker,lo", False),
        ("eth0", "^docker,lo", True),
        ("eth0", "^=eth", True),
        ("eth0", "^=eth0", False),
        ("eth0", "ens3,,eth", True),
        ("eth0", "eth0:5000", True),
        ("eth0", "=^eth0", False),
        ("eth0", "", True),
        ("eth0", "^", False),
        ("eth0", ", eth0", False),
    ],
)
def test_a_list_is_read_as_nccl_reads_it(name: str, spec: str, taken: bool) -> None:
    assert matching(name, spec) is taken


@pytest.mark.parametrize(
    ("interfaces", "variables", "chosen"),
    [
        ((LO, face("docker0", "172.17.0.1"), face("eth0", "10.0.0.1")), {}, ["eth0"]),
        ((LO, face("eth0", "10.0.0.1"), face("ib0", "10.1.0.1"), face("ib1", "10.1.1.1")), {}, ["ib0", "ib1"]),
        ((LO, face("docker0", "172.17.0.1"), face("virbr0", "192.168.122.1")), {}, ["docker0"]),
        ((LO, face("virbr0", "192.168.122.1")), {}, ["lo"]),
        ((LO, face("eth0", "10.0.0.1", running=False)), {}, ["lo"]),
        ((LO, face("eth0"), face("eth1", "10.0.0.1")), {}, ["eth1"]),
        ((LO, face("eth0", "fd00::1"), face("eth1", "10.0.0.1")), {}, ["eth1", "eth0"]),
        ((LO, face("eth0", "10.0.0.1", "fd00::1")), {"NCCL_SOCKET_FAMILY": "AF_INET6"}, ["eth0"]),
        ((LO, face("eth0", "10.0.0.1")), {"NCCL_SOCKET_FAMILY": "AF_INET6"}, []),
        ((LO, face("eth0", "10.0.0.1")), {"NCCL_SOCKET_FAMILY": "ipv6"}, ["eth0"]),
        ((LO, face("eth0", "10.0.0.1")), {"NCCL_SOCKET_IFNAME": "^docker0"}, ["lo", "eth0"]),
        ((LO, face("eth0", "10.0.0.1")), {"NCCL_SOCKET_IFNAME": "x"}, ["eth0"]),
        ((LO, face("eth0", "10.0.0.1")), {"NCCL_SOCKET_IFNAME": "ib0"}, []),
        (
            (LO, face("eth0", "10.0.0.1"), face("eth1", "10.9.0.1")),
            {"NCCL_COMM_ID": "10.9.0.7:5000"},
            ["eth1"],
        ),
    ],
)
def test_the_choice_is_nccls(interfaces: tuple[Interface, ...], variables: dict[str, str], chosen: list[str]) -> None:
    assert [c.interface for c in choose_for_nccl(Net(interfaces=interfaces), variables)] == chosen


def test_nccl_takes_no_more_than_its_table_holds() -> None:
    many = tuple(face(f"eth{i}", f"10.0.{i}.1") for i in range(40))
    assert len(choose_for_nccl(Net(interfaces=many), {})) == MAX_INTERFACES


def test_gloo_takes_what_the_hostname_leads_to_else_the_loopback() -> None:
    faces = (LO, face("eth0", "fd00::1", "10.0.0.1"))
    for addresses, ip in ((("10.0.0.1",), "10.0.0.1"), (("10.9.9.9", "10.0.0.1"), "10.0.0.1"), ((), "127.0.0.1")):
        net = Net(hostname="n", interfaces=faces, own_name=Lookup("n", addresses))
        assert [c.ip for c in choose_for_gloo(net, {})] == [ip]
    net = Net(interfaces=faces)
    assert choose_for_gloo(net, {}) == ()
    assert [c.ip for c in choose_for_gloo(net, {"GLOO_SOCKET_IFNAME": "eth0"})] == ["10.0.0.1"]
    assert choose_for_gloo(net, {"GLOO_SOCKET_IFNAME": "eth"}) == ()


def test_own_addresses_are_known_in_every_spelling() -> None:
    net = Net(interfaces=(LO, face("eth0", "10.0.0.1", "fe80::1%eth0")))
    for ip in ("127.0.1.1", "::1", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1"):
        assert net.is_own(ip), ip
    assert not net.is_own("10.0.0.2")
    assert not is_loopback("no address")


@given(st.text(string.printable, max_size=40), st.text(string.printable, max_size=15))
@settings(max_examples=200, deadline=None)
def test_no_value_breaks_the_reading(spec: str, name: str) -> None:
    net = Net(hostname="n", interfaces=(LO, face(name, "10.0.0.1")), own_name=Lookup("n", ("10.0.0.1",)))
    variables = {
        "NCCL_SOCKET_IFNAME": spec,
        "GLOO_SOCKET_IFNAME": spec,
        "NCCL_COMM_ID": spec,
        "NCCL_SOCKET_FAMILY": spec,
    }
    for choice in (*choose_for_nccl(net, variables), *choose_for_gloo(net, variables)):
        assert choice.reason
