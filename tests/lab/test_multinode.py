"""`ddpdoctor check -- torchrun …` on several hosts: every node names the same cause, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.hosts import Host, Lab, hosts
from lab.processes import Process

pytestmark = [pytest.mark.root, pytest.mark.torch]

JOIN = 30.0
"""Seconds to join: nodes start late on a busy machine. Cases about nodes that never come have their own."""
SECONDS = 90.0
SCRIPT = "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.destroy_process_group()\n"
LINE = ("torchrun", "--nnodes=2", "--node-rank=1", "--nproc-per-node=1", "--master-addr=node0", "--master-port=29500")
"""The second node's."""
ONLY_MASTER = """add table inet f
add chain inet f i { type filter hook input priority 0; }
add rule inet f i ct state established,related accept
add rule inet f i iif lo accept
add rule inet f i tcp dport 29500 accept
add rule inet f i meta l4proto tcp drop
"""


@dataclass
class Job:
    """Checks that run on the hosts of a lab, each with a report of its own."""

    lab: Lab
    folder: Path
    join: float = JOIN

    def static(self, index: int, nnodes: int = 2, *, rank: int | None = None, **more: Any) -> Process:
        """A node of a static launch; the last of two equal options counts, as for torchrun."""
        options = [f"--nnodes={nnodes}", f"--node-rank={index if rank is None else rank}", "--nproc-per-node=1"]
        address, port = more.pop("address", "node0"), more.pop("port", 29500)
        return self.start(index, "torchrun", *options, f"--master-addr={address}", f"--master-port={port}", **more)

    def c10d(
        self, index: int, nnodes: int = 2, *, endpoint: str = "node0:29400", run: str = "job", **more: Any
    ) -> Process:
        """A node of a c10d launch."""
        options = ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={run}"]
        return self.start(index, "torchrun", f"--nnodes={nnodes}", "--nproc-per-node=1", *options, **more)

    def ranked(self, index: int, world_size: int = 2, *, rank: int | None = None, **more: Any) -> Process:
        """A rank of an env:// launch."""
        own = {"RANK": str(index if rank is None else rank), "WORLD_SIZE": str(world_size)}
        master = {"MASTER_ADDR": more.pop("address", "node0"), "MASTER_PORT": str(more.pop("port", 29500))}
        return self.start(index, "python", env={**own, **master, **more.pop("env", {})}, **more)

    def start(
        self,
        index: int,
        *line: str,
        env: dict[str, str] | None = None,
        script: str = "train.py",
        under: Sequence[str] = (),
    ) -> Process:
        """`ddpdoctor check -- LINE script` on one host, `under` another command; without a `script` the line holds it."""
        path = self.folder / script
        if not path.exists():
            path.write_text(SCRIPT)
        words = [
            *under,
            sys.executable,
            "-m",
            "ddpdoctor",
            "check",
            "--format",
            "json",
            "--output",
            str(self._report(index)),
        ]
        return self.lab.host(index).start(
            [*words, "--join-timeout", str(self.join), "--", *line, *([str(path)] if script else [])],
            env=env,
            cwd=self.folder,
        )

    def finish(self, *processes: Process) -> list[dict[str, Any]]:
        """The report of each."""
        for process in processes:
            process.wait(SECONDS)
        return [json.loads(self._report(index).read_text()) for index in range(len(processes))]

    def _report(self, index: int) -> Path:
        return self.folder / f"report{index}.json"


def causes(report: dict[str, Any]) -> list[str]:
    """The codes of the errors that are causes."""
    return sorted({f["code"] for f in report["findings"] if f["severity"] == "error" and f["role"] == "cause"})


def first(report: dict[str, Any]) -> dict[str, Any]:
    finding: dict[str, Any] = report["findings"][0]
    return finding


@pytest.mark.parametrize(
    "launch",
    [
        pytest.param(Job.static, id="static", marks=pytest.mark.slow),
        pytest.param(Job.c10d, id="c10d"),
        pytest.param(Job.ranked, id="env"),
    ],
)
def test_healthy_nodes_meet_and_their_ranks_are_probed_together(launch: Callable[..., Process], tmp_path: Path) -> None:
    with hosts(2) as lab:
        job = Job(lab, tmp_path)
        nodes = [launch(job, index) for index in range(2)]
        reports = job.finish(*nodes)
        assert [node.code for node in nodes] == [0, 0], [report["findings"] for report in reports]
        for report in reports:
            assert not [f for f in report["findings"] if f["severity"] != "note"]
            assert {"VERSION003", "NET009", "PROBE018"} <= set(report["passed"])
        assert not any("probing the local ranks" in node.err for node in nodes)
        assert "node1" in nodes[0].out
        bound = lab.host(0).run([sys.executable, "-c", "import socket; socket.create_server(('', 29500))"], timeout=20)
        assert bound.returncode == 0, bound.stderr


@pytest.mark.slow
def test_a_stranger_on_another_interface_of_the_host_cannot_connect(tmp_path: Path) -> None:
    connecting = "import socket; socket.create_connection(('{}', 29500), 5)"
    with hosts(3) as lab:
        host, stranger = lab.host(0), lab.host(2)
        host.tool("ip", "link", "add", "eth1", "type", "veth", "peer", "name", "eth1", "netns", str(stranger.pid))
        for index, each in ((1, host), (2, stranger)):
            each.tool("ip", "addr", "add", f"10.99.0.{index}/24", "dev", "eth1")
            each.tool("ip", "link", "set", "eth1", "up")
        job = Job(lab, tmp_path)
        nodes = [job.static(0, address=host.address)]
        until = time.monotonic() + SECONDS
        while "29500" not in host.run(["ss", "-Hltn"], timeout=20).stdout and time.monotonic() < until:
            time.sleep(0.1)
        outcomes = [
            stranger.run([sys.executable, "-c", connecting.format(address)], timeout=20)
            for address in ("10.99.0.1", host.address)
        ]
        nodes.append(job.static(1, address=host.address))
        reports = job.finish(*nodes)
    assert "ConnectionRefusedError" in outcomes[0].stderr
    assert outcomes[1].returncode == 0, outcomes[1].stderr
    assert [node.code for node in nodes] == [0, 0], [report["findings"] for report in reports]


@pytest.mark.slow
@pytest.mark.parametrize("has_secret", [True, False], ids=["with a secret", "without a secret"])
def test_a_node_that_uses_another_address_of_the_host_joins_it(has_secret: bool, tmp_path: Path) -> None:
    """A job meets at any address of its host: a name may mean another interface on each node."""
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123")
    secret.chmod(0o600)
    env = {"DDPDOCTOR_SECRET_FILE": str(secret)} if has_secret else {}
    with hosts(2) as lab:
        for index in range(2):
            lab.host(index).tool("ip", "addr", "add", f"10.88.0.{index + 1}/24", "dev", "eth0")
        job = Job(lab, tmp_path)
        nodes = [job.ranked(0, address="node0", env=env), job.ranked(1, address="10.88.0.1", env=env)]
        reports = job.finish(*nodes)
    assert [node.code for node in nodes] == [0, 0], [report["findings"] for report in reports]
    for report in reports:
        assert not causes(report)
        assert {"NET009", "PROBE018"} <= set(report["passed"])
        assert ("notes" in report) is not has_secret


@pytest.mark.slow
def test_a_node_without_the_secret_and_the_host_both_name_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123")
    secret.chmod(0o600)
    with hosts(2) as lab:
        job = Job(lab, tmp_path, join=20.0)
        nodes = [job.static(0, env={"DDPDOCTOR_SECRET_FILE": str(secret)}), job.static(1)]
        reports = job.finish(*nodes)
    assert [node.code for node in nodes] == [1, 1]
    found = [[f["message"] for f in report["findings"] if f["code"] == "NET520"] for report in reports]
    assert found[0] == ["node1 has no secret; node 0 (node0) has a secret file"]
    assert found[1] == ["node0 has a secret file; node 1 (node1) has no secret"]
    assert first(reports[1])["code"] == "NET520"


def _missing(job: Job) -> list[Process]:
    job.join = 5.0
    return [job.static(0, 3), job.static(1, 3)]


def _nnodes(job: Job) -> list[Process]:
    return [job.static(0, 2), job.static(1, 3)]


def _ports(job: Job) -> list[Process]:
    return [job.static(0), job.static(1, port=29501)]


def _misspelled(job: Job) -> list[Process]:
    return [job.static(0), job.static(1, address="nod0")]


def _one_node_alone(job: Job) -> list[Process]:
    return [job.c10d(0, 2), job.c10d(1, 1)]


def _ids(job: Job) -> list[Process]:
    return [job.c10d(0, run="a"), job.c10d(1, run="b")]


def _nobody_hosts(job: Job) -> list[Process]:
    job.join = 12.0
    job.lab.host(0).tool("ip", "addr", "add", "10.77.0.50/24", "dev", "eth0")
    return [job.c10d(index, endpoint="10.77.0.50:29400") for index in range(2)]


def _dropped(job: Job) -> list[Process]:
    job.lab.host(0).drop(port=29500)
    return [job.static(0), job.static(1)]


def _rejected(job: Job) -> list[Process]:
    job.lab.host(0).reject(port=29500)
    return [job.static(0), job.static(1)]


def _forbidden(job: Job) -> list[Process]:
    job.lab.host(0).reject(port=29500, how="icmp")
    return [job.static(0), job.static(1)]


def _only_master(job: Job) -> list[Process]:
    for index in range(2):
        job.lab.host(index).tool("nft", "-f", "-", stdin=ONLY_MASTER)
    return [job.static(0), job.static(1)]


def _cut(job: Job) -> list[Process]:
    job.lab.cut(job.lab.host(1), job.lab.host(2))
    return [job.static(index, 3) for index in range(3)]


def _mtu(job: Job) -> list[Process]:
    for host in job.lab.hosts[:2]:
        host.mtu(9000)
    job.lab.switch_mtu(1500)
    return [job.static(0), job.static(1)]


def _taken(job: Job) -> list[Process]:
    _listen(job.lab.host(0))
    return [job.static(0), job.static(1)]


def _listen(host: Host) -> None:
    code = (
        "import socket, time; s = socket.create_server(('0.0.0.0', 29500)); print('ready', flush=True); time.sleep(600)"
    )
    host.start([sys.executable, "-c", code]).wait_for("ready", 30)


def _swapped(job: Job) -> list[Process]:
    return [job.static(0, address="node1"), job.static(1, address="node1")]


def _same_rank(job: Job) -> list[Process]:
    return [job.static(0, 3), job.static(1, 3), job.static(2, 3, rank=1)]


def _interface(job: Job) -> list[Process]:
    return [job.static(0), job.static(1, env={"GLOO_SOCKET_IFNAME": "ib0"})]


def _setting(job: Job) -> list[Process]:
    return [job.static(index, 3, env={"NCCL_ALGO": "Tree" if index == 2 else "Ring"}) for index in range(3)]


def _names(host: Host, job: Job, **addresses: str) -> None:
    """What this host takes the others' names for; an empty address: it does not know the name."""
    known = {each.name: addresses.get(each.name, each.address) for each in job.lab.hosts}
    host.file("hosts", "127.0.0.1 localhost\n" + "".join(f"{at} {name}\n" for name, at in known.items() if at))


def _unknown_to_one(job: Job) -> list[Process]:
    _names(job.lab.host(2), job, node0="")
    return [job.static(index, 3) for index in range(3)]


def _leads_elsewhere(job: Job) -> list[Process]:
    _names(job.lab.host(2), job, node0=job.lab.host(1).address)
    return [job.static(index, 3) for index in range(3)]


def _leads_nowhere(job: Job) -> list[Process]:
    _names(job.lab.host(1), job, node0="10.77.0.99")
    return [job.c10d(index) for index in range(2)]


def _own_name_is_loopback(job: Job) -> list[Process]:
    _names(job.lab.host(0), job, node0="127.0.1.1")
    return [job.ranked(index) for index in range(2)]


def _own_master(job: Job) -> list[Process]:
    return [job.static(index, address=f"node{index}") for index in range(2)]


def _world_size(job: Job) -> list[Process]:
    return [job.ranked(0, 3), job.ranked(1, 3), job.ranked(2, 4)]


def _rank_twice(job: Job) -> list[Process]:
    return [job.ranked(0, 3), job.ranked(1, 3), job.ranked(2, 3, rank=1)]


def _rank_too_large(job: Job) -> list[Process]:
    return [job.ranked(0), job.ranked(1, rank=2)]


def _from_one(job: Job) -> list[Process]:
    return [job.ranked(0, rank=1), job.ranked(1, rank=2)]


def _own_master_of_ranks(job: Job) -> list[Process]:
    return [job.ranked(index, address=f"node{index}") for index in range(2)]


def _nothing_comes_back(job: Job) -> list[Process]:
    job.lab.cut(job.lab.host(0), job.lab.host(1), one_way=True)
    return [job.static(0), job.static(1)]


def _rank_ports(job: Job) -> list[Process]:
    return [job.ranked(0), job.ranked(1, port=29501)]


def _checks_all_collectives(job: Job) -> list[Process]:
    return [job.static(index, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if index else {}) for index in range(2)]


ALONE = SCRIPT.replace("'gloo'", "'gloo', rank=0, world_size=1")


def _one_script_is_alone(job: Job) -> list[Process]:
    (job.folder / "copy").mkdir()
    (job.folder / "copy" / "train.py").write_text(ALONE)
    return [job.static(0), job.static(1, script="copy/train.py")]


def _every_rank_is_alone(job: Job) -> list[Process]:
    (job.folder / "train.py").write_text(ALONE)
    return [job.ranked(index) for index in range(2)]


def _no_own_name(job: Job) -> list[Process]:
    for host in job.lab.hosts:
        host.file("hosts", "127.0.0.1 localhost\n")
    return [job.c10d(index, endpoint=f"{job.lab.host(0).address}:29400") for index in range(2)]


def _smaller_world(job: Job) -> list[Process]:
    return [job.ranked(0, 3), job.ranked(1, 3), job.ranked(2, 2)]


def _misspelled_script(job: Job) -> list[Process]:
    return [job.static(0), job.start(1, *LINE, str(job.folder / "trian.py"), script="")]


def _few_addresses(job: Job) -> list[Process]:
    limited = ["sh", "-c", 'ulimit -v 600000; exec "$@"', "sh"]
    return [job.static(index, under=limited) for index in range(2)]


def _below_zero(job: Job) -> list[Process]:
    return [job.ranked(0, 3), job.ranked(1, 3), job.ranked(2, 3, rank=-1)]


def _two_ways(job: Job) -> list[Process]:
    return [job.static(0), job.ranked(1)]


def _anywhere(job: Job) -> list[Process]:
    return [job.ranked(index, address="0.0.0.0") for index in range(2)]


def _two_owners(job: Job) -> list[Process]:
    job.lab.host(1).file("hosts", "127.0.0.1 localhost\n10.77.0.2 node0 node1\n")
    return [job.c10d(index) for index in range(2)]


def _behind_the_script(job: Job) -> list[Process]:
    options = ["--nnodes=2", "--node-rank=1", "--nproc-per-node=1", "--master-addr=node0", "--master-port=29500"]
    return [job.static(0), job.start(1, "torchrun", str(job.folder / "train.py"), *options, script="")]


def _slip_in_the_backend(job: Job) -> list[Process]:
    options = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-id=job", "--rdzv-endpoint=node0:29400"]
    return [job.c10d(0), job.start(1, "torchrun", *options, "--rdzv-backend=c10b")]


def _known_to_the_scheduler(job: Job) -> list[Process]:
    """One node does not know the master's name, and no broadcast passes: another node that it knows helps."""
    _names(job.lab.host(2), job, node0="")
    no_broadcast = "add chain inet lab output { type filter hook output priority 0; }\n"
    no_broadcast += "add rule inet lab output ip daddr 10.77.0.255 drop\n"
    job.lab.host(2).tool("nft", "-f", "-", stdin=f"add table inet lab\n{no_broadcast}")
    allocated = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[0-2]"}
    return [job.static(index, 3, env=allocated) for index in range(3)]


NEWER = """import json, socket
listening = socket.create_server(("", 29500), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
while True:
    with listening.accept()[0] as there:
        there.recv(65536)
        there.sendall(json.dumps({"ddpdoctor": 99, "kind": "other-version"}).encode() + b"\\n")
"""


def _another_ddpdoctor(job: Job) -> list[Process]:
    job.lab.host(0).start([sys.executable, "-c", NEWER]).wait_for("ready", 30)
    return [job.static(0), job.static(1)]


FAULTS = [
    ("a node never comes", 2, _missing, "PROBE001", {"node_rank": 2}),
    ("nnodes differ", 2, _nnodes, "LAUNCH035", {}),
    ("only the master port is open", 2, _only_master, "NET009", {"peer": "node1"}),
    ("one node does not know the master", 3, _unknown_to_one, "NET002", {"host": "node2", "node_rank": 2}),
]
MORE = [
    ("one node's options stand behind its script", 2, _behind_the_script, "LAUNCH001", {"host": "node1"}),
    ("one node's backend has a slip", 2, _slip_in_the_backend, "LAUNCH042", {"host": "node1"}),
    ("a rank below zero", 3, _below_zero, "ENV001", {"host": "node2"}),
    ("one node is started by hand", 2, _two_ways, "LAUNCH034", {}),
    ("each rank's master is anywhere", 2, _anywhere, "ENV017", {}),
    ("two nodes take themselves for the owner", 2, _two_owners, "NET012", {}),
    (
        "one node does not know the master and no broadcast passes",
        3,
        _known_to_the_scheduler,
        "NET002",
        {"host": "node2"},
    ),
    ("one node's script makes a world of one", 2, _one_script_is_alone, "SCRIPT008", {"host": "node1", "node_rank": 1}),
    ("the script makes every rank a world of one", 2, _every_rank_is_alone, "SCRIPT008", {}),
    ("one node checks all collectives", 2, _checks_all_collectives, "ENV030", {}),
    ("hosts that do not know their own names", 2, _no_own_name, "NET014", {"host": "node0"}),
    ("one rank was told a smaller world", 3, _smaller_world, "ENV005", {"host": "node2", "rank": 2}),
    ("another version of ddpdoctor has the port", 2, _another_ddpdoctor, "NET001", {"host": "node0", "node_rank": 0}),
    ("nobody hosts", 2, _nobody_hosts, "NET012", {"host": "node0"}),
    ("the port is dropped", 2, _dropped, "NET007", {"host": "node0", "peer": "node1"}),
    ("one world size differs", 3, _world_size, "ENV005", {"host": "node2", "rank": 2}),
    ("ports differ", 2, _ports, "ENV019", {}),
    ("the master's name leads one node to another", 3, _leads_elsewhere, "ENV020", {"host": "node2", "node_rank": 2}),
    ("the master's name leads one node nowhere", 2, _leads_nowhere, "NET005", {"host": "node1"}),
    ("rank 0 takes its own name for the loopback", 2, _own_name_is_loopback, "NET017", {"host": "node0", "rank": 0}),
    ("each node its own master", 2, _own_master, "ENV020", {}),
    ("each rank its own master", 2, _own_master_of_ranks, "ENV020", {}),
    ("nothing from the master reaches one node", 2, _nothing_comes_back, "NET004", {"host": "node1", "peer": "node0"}),
    ("ids differ", 2, _ids, "LAUNCH039", {}),
    ("the port is rejected", 2, _rejected, "NET008", {"host": "node0", "peer": "node1"}),
    ("the port is forbidden", 2, _forbidden, "NET008", {"host": "node0", "peer": "node1"}),
    ("a pair is cut", 3, _cut, "NET010", {"host": "node1", "peer": "node2"}),
    ("large packets vanish", 2, _mtu, "NET023", {}),
    ("a stranger has the port", 2, _taken, "NET001", {"host": "node0", "node_rank": 0}),
    ("the address is node 1's", 2, _swapped, "ENV018", {"host": "node0", "node_rank": 0}),
    ("one node has a misspelled master", 2, _misspelled, "NET002", {"host": "node1", "node_rank": 1}),
    ("one node has no number of nodes", 2, _one_node_alone, "LAUNCH035", {}),
    ("a node rank twice", 3, _same_rank, "LAUNCH036", {"node_rank": 1}),
    ("an interface that is not there", 2, _interface, "ENV026", {"host": "node1"}),
    ("one setting differs", 3, _setting, "ENV031", {"host": "node2", "node_rank": 2}),
    ("a rank twice", 3, _rank_twice, "ENV004", {"rank": 1}),
    ("a rank too large", 2, _rank_too_large, "ENV001", {"host": "node1", "rank": 2}),
    ("ranks from 1", 2, _from_one, "ENV002", {}),
    ("ports of ranks differ", 2, _rank_ports, "ENV019", {}),
    ("a script's name that leads nowhere", 2, _misspelled_script, "LAUNCH003", {"host": "node1", "node_rank": 1}),
    ("a limit of addresses on both nodes", 2, _few_addresses, "HOST009", {}),
]


@pytest.mark.parametrize(
    ("count", "fault", "code", "where"),
    [
        *(pytest.param(*rest, id=name.replace(" ", "-")) for name, *rest in FAULTS),
        *(pytest.param(*rest, id=name.replace(" ", "-"), marks=pytest.mark.slow) for name, *rest in MORE),
    ],
)
def test_every_node_names_the_cause_and_the_culprit(
    count: int, fault: Callable[[Job], list[Process]], code: str, where: dict[str, Any], tmp_path: Path
) -> None:
    with hosts(count) as lab:
        job = Job(lab, tmp_path)
        nodes = fault(job)
        reports = job.finish(*nodes)
    for report in reports:
        assert causes(report) == [code], report["findings"]
        assert {key: first(report)["where"][key] for key in where} == where, first(report)
    assert [node.code for node in nodes] == [1] * len(nodes)


def test_two_jobs_at_one_port_are_told_apart(tmp_path: Path) -> None:
    with hosts(3) as lab:
        job = Job(lab, tmp_path)
        nodes = [job.static(0), job.static(1), job.static(2, rank=1, script="other.py")]
        ours, _, theirs = job.finish(*nodes)
    assert [node.code for node in nodes] == [0, 0, 1]
    assert not causes(ours)
    # It met this job's nodes, or came when their ranks were probed, or when nobody listened any more.
    assert causes(theirs) in (["LAUNCH041"], ["NET001"], ["PROBE002"])


STORE = (
    "from ddpdoctor.network.tcpstore.server import Server; import time; "
    "Server('', 29500); print('up', flush=True); time.sleep({})"
)


@pytest.mark.parametrize(
    ("seconds", "codes"),
    [
        pytest.param(60.0, {"NET001"}, id="stays"),
        pytest.param(4.0, {"NET001", "PROBE002"}, id="ends", marks=pytest.mark.slow),
    ],
)
def test_a_node_that_finds_the_store_of_a_running_job_does_not_pass(
    tmp_path: Path, seconds: float, codes: set[str]
) -> None:
    with hosts(2) as lab:
        store = lab.host(0).start([sys.executable, "-c", STORE.format(seconds)])
        store.wait_for("up", 20)
        node = Job(lab, tmp_path, join=6.0).static(1)
        assert node.wait(SECONDS) == 1
    assert set(causes(json.loads((tmp_path / "report1.json").read_text()))) <= codes


@pytest.mark.slow
def test_nodes_of_two_jobs_of_one_script_do_not_all_pass(tmp_path: Path) -> None:
    with hosts(3) as lab:
        job = Job(lab, tmp_path, join=10.0)
        nodes = [job.c10d(index) for index in range(3)]
        reports = job.finish(*nodes)
    failed = [causes(report) for report in reports if causes(report)]
    assert len(failed) in (1, 3)
    # All of them met; or two did, and the third came before, while or after their ranks were probed.
    assert all(each in (["LAUNCH040"], ["NET001"], ["PROBE001"]) for each in failed), failed
    assert sorted(node.code or 0 for node in nodes) == [0] * (3 - len(failed)) + [1] * len(failed)


@pytest.mark.slow
@pytest.mark.parametrize("launch", [pytest.param(Job.static, id="static"), pytest.param(Job.c10d, id="c10d")])
def test_two_launches_on_one_machine_meet_at_its_loopback_address(
    launch: Callable[..., Process], tmp_path: Path
) -> None:
    more = {"endpoint": "localhost:29400"} if launch is Job.c10d else {"address": "127.0.0.1"}
    with hosts(1) as lab:
        nodes = []
        for rank in range(2):
            folder = tmp_path / str(rank)
            folder.mkdir()
            own = more if launch is Job.c10d else {**more, "rank": rank}
            nodes.append(launch(Job(lab, folder), 0, **own))
        assert [node.wait(SECONDS) for node in nodes] == [0, 0], [node.err for node in nodes]
    for rank in range(2):
        assert not causes(json.loads((tmp_path / str(rank) / "report0.json").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("launch", [pytest.param(Job.static, id="static"), pytest.param(Job.c10d, id="c10d")])
def test_a_host_that_is_stopped_while_it_waits_is_named(launch: Callable[..., Process], tmp_path: Path) -> None:
    with hosts(2) as lab:
        job = Job(lab, tmp_path)
        host, guest = launch(job, 0, 3), launch(job, 1, 3)
        host.wait_for("2 of 3", 60)
        host.signal(signal.SIGSTOP)
        assert guest.wait(SECONDS) == 1
    report = json.loads((tmp_path / "report1.json").read_text())
    assert causes(report) == ["PROBE002"]
    assert first(report)["where"]["host"] == "node0"
    assert report["seconds"] < JOIN


@pytest.mark.slow
def test_a_host_that_was_stopped_before_anybody_came_is_named(tmp_path: Path) -> None:
    with hosts(2) as lab:
        job = Job(lab, tmp_path)
        host = job.static(0)
        host.wait_for("1 of 2", 60)
        host.signal(signal.SIGSTOP)
        assert job.static(1).wait(SECONDS) == 1
    report = json.loads((tmp_path / "report1.json").read_text())
    assert causes(report) == ["PROBE002"]
    assert first(report)["where"]["host"] == "node0"


@pytest.mark.slow
def test_a_guest_that_is_stopped_for_a_second_is_not_blamed(tmp_path: Path) -> None:
    with hosts(3) as lab:
        job = Job(lab, tmp_path)
        nodes = [job.static(index, 3) for index in range(2)]
        nodes[0].wait_for("2 of 3", 60)
        nodes.append(job.static(2, 3))
        nodes[0].wait_for("3 of 3", 60)
        nodes[1].signal(signal.SIGSTOP)
        time.sleep(1.0)
        nodes[1].signal(signal.SIGCONT)
        reports = job.finish(*nodes)
    assert [node.code for node in nodes] == [0, 0, 0], [report["findings"] for report in reports]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launch", "word", "number"),
    [
        pytest.param(Job.static, "probing", signal.SIGKILL, id="static-killed"),
        pytest.param(Job.c10d, "probing", signal.SIGINT, id="c10d-interrupted"),
        pytest.param(Job.ranked, "waiting for the other", signal.SIGKILL, id="env-killed"),
        pytest.param(Job.static, "probing", signal.SIGSTOP, id="static-frozen"),
    ],
)
@pytest.mark.parametrize("gone", [0, 2])
def test_a_node_that_goes_before_its_ranks_have_met_is_named_by_the_others(
    launch: Callable[..., Process], word: str, number: signal.Signals, gone: int, tmp_path: Path
) -> None:
    with hosts(3) as lab:
        job = Job(lab, tmp_path)
        nodes = [launch(job, index, 3) for index in range(3)]
        nodes[gone].wait_for(word, 60)
        for pid in nodes[gone].pids() if number is signal.SIGSTOP else nodes[gone].pids()[:1]:
            os.kill(pid, number)
        others = [index for index in range(3) if index != gone]
        assert [nodes[index].wait(SECONDS) for index in others] == [1, 1]
    for index in others:
        report = json.loads((tmp_path / f"report{index}.json").read_text())
        # It may have come further than that on a machine that is quick.
        assert causes(report)[0] in ("PROBE005", "PROBE006", "PROBE007", "PROBE501"), report["findings"]
        assert first(report)["where"]["host"] == f"node{gone}"


@pytest.mark.slow
def test_closed_standard_streams_disturb_nothing(tmp_path: Path) -> None:
    with hosts(2) as lab:
        job = Job(lab, tmp_path)
        closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
        nodes = [job.static(index, under=closed) for index in range(2)]
        assert not any(map(causes, job.finish(*nodes)))
    assert [node.code for node in nodes] == [0, 0]
