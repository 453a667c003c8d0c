"""The lab itself: hosts are apart from each other and from the machine, faults bite, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.hosts import Host, Lab, hosts
from lab.mpi import hydra, openmpi
from lab.slurm import slurm

pytestmark = pytest.mark.root

LISTEN = """
import socket, sys
server = socket.create_server(("", int(sys.argv[1])), backlog=20)
print("listening", flush=True)
while True:
    peer = server.accept()[0]
    got = 0
    while data := peer.recv(65536):
        got += len(data)
    peer.sendall(str(got).encode())
    peer.close()
"""
SEND = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 1.5) as link:
        link.sendall(b"x" * int(sys.argv[3]))
        link.shutdown(socket.SHUT_WR)
        print("arrived:", link.recv(100).decode())
except OSError as error:
    print(type(error).__name__, error.errno)
"""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with hosts(3) as lab:
        yield lab


def _listen(host: Host, port: int = 29500) -> None:
    host.start([sys.executable, "-c", LISTEN, str(port)]).wait_for("listening", 20)


def _send(source: Host, destination: Host, port: int = 29500, size: int = 1) -> str:
    return source.run([sys.executable, "-c", SEND, destination.name, str(port), str(size)], timeout=30).stdout.strip()


def test_each_host_has_its_own_name_address_and_files(lab: Lab) -> None:
    for index, host in enumerate(lab.hosts):
        said = host.run(
            ["sh", "-c", "uname -n; cat /etc/hostname; ip -o -4 addr show dev eth0; getent hosts node2"], timeout=10
        ).stdout
        assert said.splitlines()[:2] == [f"node{index}"] * 2
        assert f"10.77.0.{index + 1}/24" in said
        assert "10.77.0.3" in said.splitlines()[-1]


def test_a_name_that_no_host_has_does_not_resolve_through_the_machine(lab: Lab) -> None:
    started = time.monotonic()
    assert lab.host(0).run(["getent", "hosts", "example.com"], timeout=10).returncode == 2
    assert time.monotonic() - started < 3


def test_a_host_can_be_given_other_names(lab: Lab) -> None:
    lab.host(1).file("hosts", "127.0.0.1 localhost\n127.0.1.1 node1\n")
    assert lab.host(1).run(["getent", "hosts", "node1"], timeout=10).stdout.split()[0] == "127.0.1.1"
    assert lab.host(0).run(["getent", "hosts", "node1"], timeout=10).stdout.split()[0] == "10.77.0.2"


def test_another_subnet_and_other_names() -> None:
    with hosts(2, subnet="192.168.77.0/28", names=["alpha", "beta"]) as lab:
        _listen(lab.host(1))
        assert lab.host(1).address == "192.168.77.2"
        assert _send(lab.host(0), lab.host(1)) == "arrived: 1"


def test_two_labs_side_by_side_do_not_meet() -> None:
    with hosts(1) as one, hosts(2) as other:
        _listen(one.host(0))
        assert _send(other.host(1), other.host(0)).startswith("ConnectionRefusedError")


def test_a_dropped_port_swallows_and_a_rejected_one_refuses(lab: Lab) -> None:
    _listen(lab.host(0))
    assert _send(lab.host(1), lab.host(0)) == "arrived: 1"
    lab.host(0).drop(port=29500, peer=lab.host(1))
    assert _send(lab.host(1), lab.host(0)).startswith("TimeoutError")
    assert _send(lab.host(2), lab.host(0)) == "arrived: 1"
    lab.host(0).heal()
    lab.host(0).reject(port=29500)
    assert _send(lab.host(1), lab.host(0)).startswith("ConnectionRefusedError")
    lab.host(0).heal()
    lab.host(0).reject(port=29500, how="icmp")
    assert _send(lab.host(1), lab.host(0)) == "OSError 113"
    lab.host(0).heal()
    assert _send(lab.host(1), lab.host(0)) == "arrived: 1"


def test_a_cut_parts_two_hosts_and_no_others(lab: Lab) -> None:
    for host in lab.hosts:
        _listen(host)
    lab.cut(lab.host(0), lab.host(1))
    assert _send(lab.host(0), lab.host(1)).startswith("TimeoutError")
    assert _send(lab.host(1), lab.host(0)).startswith("TimeoutError")
    assert _send(lab.host(0), lab.host(2)) == "arrived: 1"


def test_a_one_way_cut_swallows_one_direction_only(lab: Lab) -> None:
    lab.cut(lab.host(0), lab.host(1), one_way=True)
    count = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as box:
    box.bind(("", 5000)); box.settimeout(1); print("bound", flush=True)
    try: print("got", box.recv(10).decode())
    except TimeoutError: print("nothing")
"""
    send = "import socket, sys; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'ping', (sys.argv[1], 5000))"
    heard = []
    for source, destination in ((0, 1), (1, 0)):
        box = lab.host(destination).start([sys.executable, "-c", count])
        box.wait_for("bound", 20)
        lab.host(source).run([sys.executable, "-c", send, f"node{destination}"], timeout=20)
        box.wait(20)
        heard.append(box.out.splitlines()[-1])
    assert heard == ["nothing", "got ping"]


def test_large_packets_vanish_in_a_switch_of_small_mtu(lab: Lab) -> None:
    for host in lab.hosts:
        host.mtu(9000)
    _listen(lab.host(0))
    assert _send(lab.host(1), lab.host(0), size=100) == "arrived: 100"
    assert _send(lab.host(1), lab.host(0), size=200_000).startswith("TimeoutError")
    lab.switch_mtu(9000)
    assert _send(lab.host(1), lab.host(0), size=200_000) == "arrived: 200000"


def test_a_slow_link_is_slow(lab: Lab) -> None:
    _listen(lab.host(0))
    lab.host(1).slow(4)
    started = time.monotonic()
    assert _send(lab.host(1), lab.host(0), size=400_000) == "arrived: 400000"
    assert time.monotonic() - started > 0.5


def test_routes_and_cables(lab: Lab) -> None:
    lab.host(1).route("add", "unreachable", "10.9.0.0/16")
    assert "unreachable 10.9.0.0/16" in lab.host(1).tool("ip", "route")
    _listen(lab.host(0))
    lab.host(1).unplug()
    assert _send(lab.host(1), lab.host(0)) == "OSError 101"
    lab.host(1).plug()
    assert _send(lab.host(1), lab.host(0)) == "arrived: 1"


def test_a_command_is_killed_with_all_that_it_started(lab: Lab) -> None:
    deep = lab.host(0).start(["sh", "-c", "RANK=7 setsid sh -c 'sleep 600 & sleep 600' & echo up; sleep 600"])
    deep.wait_for("up", 10)
    _until(lambda: len(deep.pids()) == 5)
    assert len(deep.pids(RANK="7")) == 3
    everything = deep.pids()
    deep.kill()
    assert not [pid for pid in everything if Path(f"/proc/{pid}/exe").exists()]
    assert deep.code is not None


def test_a_signal_reaches_the_command_and_shows_in_its_code(lab: Lab) -> None:
    process = lab.host(0).start(["sleep", "600"])
    _until(lambda: bool(process.pids()))
    process.signal(signal.SIGTERM)
    assert process.wait(10) == -signal.SIGTERM
    assert lab.host(0).run(["sh", "-c", "exit 5"], timeout=10).returncode == 5


def test_a_late_command_is_killed_and_what_it_said_is_kept(lab: Lab) -> None:
    with pytest.raises(subprocess.TimeoutExpired) as late:
        lab.host(0).run(["sh", "-c", "echo began; sleep 600"], timeout=1)
    assert late.value.output == b"began\n"


HOLD_A_LAB = """
import signal, sys, time
sys.path.insert(0, {tests!r})
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
from lab.hosts import hosts
with hosts(2) as lab:
    lab.host(0).start(["sh", "-c", "setsid sleep 600 & sleep 600"])
    lab.host(1).start(["sleep", "600"])
    print(*(host.pid for host in lab.hosts), lab.pid, flush=True)
    {end}
"""


@pytest.mark.parametrize(
    "end", ["normally", *(pytest.param(end, marks=pytest.mark.slow) for end in ("with an error", "SIGINT")), "SIGKILL"]
)
def test_nothing_is_left_however_a_lab_ends(end: str) -> None:
    last = {"normally": "pass", "with an error": "raise SystemExit(9)"}.get(end, "time.sleep(600)")
    code = textwrap.dedent(HOLD_A_LAB).format(tests=str(Path(__file__).parent.parent), end=last)
    mounts, links = _mounts(), _links()
    run = f"ddpdoctor-lab-test-{os.getpid()}-{time.monotonic_ns()}"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "RUN": run}
    ) as popen:
        try:
            assert popen.stdout is not None
            assert len(popen.stdout.readline().split()) == 3
            if last == "time.sleep(600)":
                assert len(_marked(run)) > 8
                popen.send_signal(getattr(signal, end))
            popen.wait(30)
        finally:
            popen.kill()
    _until(lambda: not _marked(run))
    assert _mounts() == mounts
    assert _links() == links


def _marked(run: str) -> list[int]:
    """The processes that carry RUN=run; the namespaces and mounts of a lab live in them and nowhere else."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"RUN={run}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it ended in between, or is none of ours
    return found


def _mounts() -> list[str]:
    return sorted(line for line in Path("/proc/self/mountinfo").read_text().splitlines())


def _links() -> list[str]:
    return sorted(os.listdir("/sys/class/net"))


def _until(holds: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not become true"
        time.sleep(0.02)


@pytest.mark.slow
def test_slurm_with_virtual_nodes_on_loopback() -> None:
    with slurm(nodes=2) as cluster:
        done = cluster.srun(
            "-N2", "--ntasks-per-node=2", "sh", "-c", "echo $SLURM_PROCID $SLURM_NODEID $SLURM_LOCALID", timeout=30
        )
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == ["0 0 0", "1 0 1", "2 1 0", "3 1 1"]
        batch = cluster.sbatch(
            "echo body $SLURM_PROCID; srun hostname; exit 3", "-N2", "--ntasks-per-node=1", timeout=60
        )
        assert batch.returncode == 3
        assert batch.stdout.split() == ["body", "0", "node0", "node0"]


@pytest.mark.slow
def test_slurm_with_hosts_of_their_own_and_gpus() -> None:
    with slurm(nodes=2, gpus=2, own_hosts=True) as cluster:
        line = ("--ntasks-per-node=1", "--gpus-per-node=2", "sh", "-c", "echo $(uname -n) $CUDA_VISIBLE_DEVICES")
        done = cluster.srun("-N2", *line, timeout=30)
        assert sorted(done.stdout.splitlines()) == ["node0 0,1", "node1 0,1"], done.stderr


def test_slurm_is_gone_with_its_jobs() -> None:
    with slurm(nodes=2) as cluster:
        cluster.start("-N2", "sleep", "600")
        _until(lambda: len(cluster.pids(SLURM_STEP_ID="0")) >= 2, 20)
        pids = cluster.pids()
        folder = cluster.folder
    assert not [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]
    assert not folder.exists()


@pytest.mark.parametrize(("launch", "variable"), [(openmpi, "OMPI_COMM_WORLD_RANK"), (hydra, "PMI_RANK")])
def test_mpi_starts_ranks(launch: Callable[..., subprocess.CompletedProcess[str]], variable: str) -> None:
    with hosts(1) as lab:
        done = launch(lab.host(0), 3, ["sh", "-c", f"echo ${variable} $ASKED"], timeout=30, env={"ASKED": "yes"})
        assert sorted(done.stdout.splitlines()) == ["0 yes", "1 yes", "2 yes"], done.stderr


@pytest.mark.parametrize("launch", [openmpi, pytest.param(hydra, marks=pytest.mark.slow)])
def test_mpi_leaves_no_rank_behind(launch: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    with hosts(1) as lab:
        with pytest.raises(subprocess.TimeoutExpired):
            launch(lab.host(0), 2, ["sh", "-c", "trap '' TERM; sleep 600"], timeout=2)
        assert lab.processes[-1].pids() == []
