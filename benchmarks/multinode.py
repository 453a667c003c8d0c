"""How fast nodes join: 1,024 of them, simulated as connections of other processes, against a limit of 3 s; and,
as root, a healthy `check -- torchrun …` on two hosts of the lab against torch's own import plus 1 s.

python benchmarks/multinode.py [--nodes 1024] [--drivers 2] [--no-hosts]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddpdoctor.app.verdict_messages import written
from ddpdoctor.app.verdicts import judge_nodes, rules_of_nodes, shares
from ddpdoctor.facts.nodes import Node, Nodes
from ddpdoctor.multinode.members import Member
from ddpdoctor.multinode.messages import MAX_LINE_BYTES, encode_line, receive_message
from ddpdoctor.multinode.results import SessionResult
from ddpdoctor.multinode.session import MemberSession
from ddpdoctor.network.connect import listen
from ddpdoctor.network.file_limits import raise_file_limit
from ddpdoctor.rules import load

SESSION_SECONDS = 3.0
BEYOND_IMPORT_SECONDS = 1.0
TRAITS = {
    **{f"environ.NCCL_SETTING_{n}": "1" for n in range(12)},
    "versions.torch": "2.13.0",
    "versions.build": "CUDA 12.8",
    "versions.nccl": "2.27.3",
    "gpu.driver": "570.86",
    "gpu.model": "8x NVIDIA H100 80GB HBM3",
    "gpu.count": "8",
    "host.kernel": "6.8.0-45-generic",
}


def node(rank: int, count: int, port: int) -> Member:
    """One node of a homogeneous cluster."""
    told = Node(
        f"gpu{rank:04d}",
        machine=f"machine{rank}",
        node_rank=rank,
        nnodes=count,
        least=count,
        nproc=8,
        owns=rank == 0,
        master_addr="127.0.0.1",
        master_port=port,
        addresses=("127.0.0.1",),
        traits=TRAITS,
    )
    argv = [
        "torchrun",
        f"--nnodes={count}",
        f"--node-rank={rank}",
        "--nproc-per-node=8",
        "--master-addr=gpu0000",
        "train.py",
    ]
    return Member(f"key{rank}", told, line={"argv": argv, "environ": {}, "cwd": "/home/user"}, echo_port=1)


async def drive(ranks: range, count: int, port: int) -> None:
    """Act as these nodes: send hello, answer the request for a network test with working links, and wait for the verdict."""

    async def one(rank: int) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MAX_LINE_BYTES)
                break
            except OSError:
                await asyncio.sleep(0.05)
        writer.write(encode_line(node(rank, count, port).hello("job")))
        while message := await receive_message(reader):
            if message.get("kind") == "test":
                fine = [[each["link"]["target"], 0.0002, None] for each in message["links"]]
                writer.write(encode_line({"kind": "links", "fine": fine, "links": []}))
            if message.get("kind") == "verdict":
                break
        writer.close()

    await asyncio.gather(*(one(rank) for rank in ranks))


def drivers(ranks: range, count: int, port: int) -> None:
    raise_file_limit()
    asyncio.run(drive(ranks, count, port))


def run_session(count: int, processes: int) -> float:
    """Seconds from the first hello to the last verdict received, including the rules."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    raise_file_limit()
    rules = rules_of_nodes(load(("environ", "launch", "host", "net", "gpu", "topo", "versions", "probe")))
    cuts = [1 + (count - 1) * n // processes for n in range(processes + 1)]
    others = [
        multiprocessing.Process(target=drivers, args=(range(a, b), count, port)) for a, b in itertools.pairwise(cuts)
    ]

    def judge(met: SessionResult) -> asyncio.Future[dict[str, Any]]:
        # The host itself really tests its links, and the simulated nodes have no ports.
        links = tuple(link for link in met.links if link.source != 0)
        # All are on this machine's loopback interface, which real nodes cannot use.
        members = tuple(replace(g, node=replace(g.node, master_addr="gpu0000")) for g in met.members)
        nodes = Nodes(nodes=tuple(g.node for g in members), links=links, expected=met.expected)
        outcome = judge_nodes(rules, nodes, members, "2.13.0")
        errors = [f.code for f in outcome.findings]
        assert not errors, errors
        session.places = {key: vars_of(share) for key, share in shares(met.members).items()}
        verdict: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        verdict.set_result({"ddpdoctor": 1, "kind": "verdict", **written(outcome, nodes)})
        return verdict

    session = MemberSession(node(0, count, port), "job", 60.0, frozenset({"127.0.0.1"}), listen(port))
    started = time.perf_counter()
    for each in others:
        each.start()
    asyncio.run(session.run(judge))
    for each in others:
        each.join()
    return time.perf_counter() - started


def vars_of(share: Any) -> dict[str, int]:
    return {name: getattr(share, name) for name in ("first_rank", "node_rank", "nnodes", "world_size")}


def two_hosts(runs: int) -> tuple[float, float]:
    """Medians of `import torch` and of a healthy check on two hosts, alternately; both hosts share this machine each time."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from lab.hosts import hosts

    imports, checks = [], []
    with tempfile.TemporaryDirectory() as folder, hosts(2) as lab:
        script = Path(folder) / "train.py"
        script.write_text("import torch.distributed as dist\ndist.init_process_group()\ndist.destroy_process_group()\n")
        for _ in range(runs):
            started = time.perf_counter()
            for each in [lab.host(k).start([sys.executable, "-c", "import torch"]) for k in range(2)]:
                assert each.wait(120) == 0, each.out
            imports.append(time.perf_counter() - started)
            started = time.perf_counter()
            line = ["torchrun", "--nnodes=2", "--nproc-per-node=1", "--master-addr=node0", "--master-port=29500"]
            nodes = [
                lab.host(k).start(
                    [sys.executable, "-m", "ddpdoctor", "check", "-q", "--", *line, f"--node-rank={k}", str(script)]
                )
                for k in range(2)
            ]
            codes = [each.wait(120) for each in nodes]
            checks.append(time.perf_counter() - started)
            assert codes == [0, 0], [each.out for each in nodes]
    return statistics.median(imports), statistics.median(checks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--drivers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--no-hosts", action="store_true")
    options = parser.parse_args()
    taken = min(run_session(options.nodes, options.drivers) for _ in range(options.runs))
    print(
        f"{options.nodes} nodes join, are compared and receive the verdict: {taken:.2f} s (limit {SESSION_SECONDS} s)"
    )
    is_well = taken <= SESSION_SECONDS or options.nodes > 1024
    if os.geteuid() == 0 and not options.no_hosts:
        torch, check = two_hosts(options.runs)
        limit = torch + BEYOND_IMPORT_SECONDS
        print(f"check -- torchrun on 2 hosts: {check:.2f} s; import torch on both: {torch:.2f} s (limit {limit:.2f} s)")
        is_well = is_well and check <= limit
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
