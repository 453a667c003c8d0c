"""The way to a master on another machine, tried for real: hosts in network namespaces, one fault after the other."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest
from lab.hosts import Host, Lab, hosts

from ddpdoctor.engine import judge
from ddpdoctor.facts.codec import decode
from ddpdoctor.facts.interface_choice import choose_for_gloo
from ddpdoctor.facts.record import Facts
from ddpdoctor.rules import load

pytestmark = pytest.mark.root

SEE = """
import json, time
from ddpdoctor.collectors import collect
from ddpdoctor.system.machine import this_machine
from ddpdoctor.facts.codec import encode
began = time.monotonic()
facts = encode(collect(this_machine(), ("environ", "net")))
print(json.dumps([facts, time.monotonic() - began]))
"""
LISTEN = "import socket, time; s = socket.create_server(('0.0.0.0', 29500)); print('ready', flush=True); "
SECONDS = 5.0
"""Four of the collector's own, and one for a busy machine."""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with hosts(2) as made:
        yield made


def see(host: Host, master: str, **more: str) -> Facts:
    """What `host`, a rank of a job of two, sees of the master."""
    variables = {"MASTER_ADDR": master, "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "2", **more}
    done = host.run([sys.executable, "-c", SEE], env=variables, timeout=40)
    assert done.returncode == 0, done.stderr
    facts, seconds = json.loads(done.stdout)
    assert seconds < SECONDS
    return decode(Facts, facts)


def serve(host: Host, code: str) -> None:
    host.start([sys.executable, "-W", "ignore", "-c", code]).wait_for("ready", 30)


def outcome(facts: Facts) -> str:
    assert facts.net is not None
    assert facts.net.best_attempt is not None
    return facts.net.best_attempt.outcome.value


def codes(facts: Facts) -> list[str]:
    judged = judge(facts, load(("net",)))
    assert not judged.crashed
    return [f.code for f in judged.findings]


def test_a_refusal_before_the_job_starts_is_no_finding(lab: Lab) -> None:
    facts = see(lab.host(1), "node0")
    assert (outcome(facts), codes(facts)) == ("refused", [])
    assert facts.net is not None
    assert facts.net.route_to_master == lab.host(1).address


def test_a_dropped_port_of_a_host_that_pings_is_a_firewall(lab: Lab) -> None:
    lab.host(0).drop(port=29500)
    assert codes(see(lab.host(1), "node0")) == ["NET007"]


def test_a_host_that_drops_everything_swallows_packets(lab: Lab) -> None:
    lab.host(0).drop(peer=lab.host(1))
    assert codes(see(lab.host(1), "node0")) == ["NET004"]


def test_an_icmp_reject_is_a_firewall_that_forbids(lab: Lab) -> None:
    lab.host(0).reject(port=29500, how="icmp")
    assert codes(see(lab.host(1), "node0")) == ["NET008"]


def test_an_address_that_nobody_has_is_a_host_that_is_not_there(lab: Lab) -> None:
    assert codes(see(lab.host(1), "10.77.0.99")) == ["NET005"]


def test_no_route_and_a_blackhole_route_are_no_route(lab: Lab) -> None:
    assert codes(see(lab.host(1), "10.78.0.1")) == ["NET006"]
    lab.host(1).route("add", "blackhole", "10.79.0.0/16")
    assert codes(see(lab.host(1), "10.79.0.1")) == ["NET006"]


def test_a_name_that_nobody_knows_is_unresolvable(lab: Lab) -> None:
    assert codes(see(lab.host(1), "no-such-host")) == ["NET002"]
    assert codes(see(lab.host(1), "a" * 10_000)) == []  # no name at all: ENV016 says so


@pytest.mark.parametrize(
    "manner",
    [
        "",
        pytest.param("c, _ = s.accept(); c.send(b'SSH-2.0-OpenSSH')", marks=pytest.mark.slow),
        "c, _ = s.accept(); c.recv(99); c.close()",
    ],
    ids=["silent", "banner", "hangs up"],
)
def test_a_stranger_on_the_masters_port_is_told_from_a_store(lab: Lab, manner: str) -> None:
    serve(lab.host(0), f"{LISTEN}{manner}\ntime.sleep(60)")
    assert codes(see(lab.host(1), "node0")) == ["NET001"]


@pytest.mark.torch
def test_a_real_store_is_recognised(lab: Lab) -> None:
    serve(
        lab.host(0),
        "import datetime, time, torch.distributed as d\n"
        "s = d.TCPStore('0.0.0.0', 29500, 2, True, datetime.timedelta(seconds=60), wait_for_workers=False)\n"
        "print('ready', flush=True); time.sleep(60)",
    )
    facts = see(lab.host(1), "node0")
    assert (outcome(facts), codes(facts)) == ("store", [])


def test_a_listener_on_the_master_is_named_there_and_one_elsewhere_does_not_matter(lab: Lab) -> None:
    serve(lab.host(1), f"{LISTEN}time.sleep(60)")
    assert codes(see(lab.host(0), "node0", RANK="0")) == []
    assert codes(see(lab.host(1), "node0")) == []
    facts = see(lab.host(1), "node1", RANK="0")
    assert codes(facts) == ["NET001"]
    assert facts.net is not None
    assert facts.net.port is not None
    (held,) = facts.net.port.sockets
    assert (held.state, held.user) == ("LISTEN", "root")


def test_what_the_own_hostname_leads_to_is_judged(lab: Lab) -> None:
    host = lab.host(1)
    host.file("hosts", "127.0.0.1 localhost\n127.0.1.1 node1\n10.77.0.1 node0\n")
    assert codes(see(host, "node0")) == ["NET017"]
    host.file("hosts", "127.0.0.1 localhost\n10.77.0.77 node1\n10.77.0.1 node0\n")
    assert codes(see(host, "node0")) == ["NET046"]
    host.file("hosts", "127.0.0.1 localhost\n10.77.0.1 node0\n")
    assert codes(see(host, "node0")) == ["NET014"]


GLOO = """
import sys, torch.distributed as d
store = d.HashStore()
d.init_process_group("gloo", rank=0, world_size=1, store=store)
print("ready")
for line in open("/proc/net/tcp").readlines()[1:] + open("/proc/net/tcp6").readlines()[1:]:
    words = line.split()
    if words[3] == "0A":
        print("listens", words[1].partition(":")[0])
"""
LISTENERS = {"10.77.0.2": "02004D0A", "127.0.1.1": "0101007F", "127.0.0.1": "0100007F"}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("names", "variables", "published"),
    [
        ("10.77.0.2 node1", {}, "10.77.0.2"),
        ("127.0.1.1 node1", {}, "127.0.1.1"),
        pytest.param("10.77.0.99 node1", {}, "127.0.0.1", marks=pytest.mark.slow),
        pytest.param("", {}, "127.0.0.1", marks=pytest.mark.slow),
        ("127.0.1.1 node1", {"GLOO_SOCKET_IFNAME": "eth0"}, "10.77.0.2"),
    ],
    ids=["routable", "debian", "elsewhere", "unresolvable", "variable"],
)
def test_gloo_listens_where_the_facts_say(lab: Lab, names: str, variables: dict[str, str], published: str) -> None:
    host = lab.host(1)
    host.file("hosts", f"127.0.0.1 localhost\n{names}\n")
    done = host.run([sys.executable, "-W", "ignore", "-c", GLOO], env=variables, timeout=60)
    assert done.returncode == 0, done.stderr
    net = see(host, "127.0.0.1", **variables).net
    assert net is not None
    assert [choice.ip for choice in choose_for_gloo(net, variables)] == [published]
    assert f"listens {LISTENERS[published]}" in done.stdout


def test_a_resolver_that_never_answers_costs_no_more_than_the_deadline(lab: Lab) -> None:
    host = lab.host(1)
    lab.host(0).drop(peer=host)
    host.file("nsswitch.conf", "hosts: files dns\n")
    host.file("resolv.conf", f"nameserver {lab.host(0).address}\n")
    host.file("hosts", "127.0.0.1 localhost\n")
    facts = see(host, "some-name", LOCAL_WORLD_SIZE="1")
    assert "NET002" in codes(facts)
    assert facts.net is not None
    assert facts.net.master_name is not None
    assert facts.net.master_name.is_late
    assert [lookup.is_late for lookup in facts.net.reverse] == [True]
