"""`python -m ddpdoctor.probe.local`: ranks on this machine only, under one supervisor; prints facts as JSON.

The workers are forks of one process that imported torch once. They use a store that this process hosts on loopback, and
Gloo is bound to loopback, so that name resolution and routes cannot affect the result.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from ddpdoctor.probe.worker_start import TEMPLATE, StartedWorker, adopt, begin
from ddpdoctor.system.lifetime import die_with

__all__ = ["main"]


def main(words: Sequence[str] | None = None) -> int:
    """Probe, print, and clean up."""
    parser = argparse.ArgumentParser(prog="ddpdoctor.probe.local")
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--timeout", type=float, default=60.0)
    options = parser.parse_args(words)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    parent = os.getppid()
    try:
        template = begin(TEMPLATE, options.nproc)
        die_with(parent)
        probe = _probe(template, options)
    except SystemExit:
        return 130
    sys.stdout.write(json.dumps({"probe": probe}))
    return 0


def _probe(begun: StartedWorker, options: argparse.Namespace) -> object:
    """The probe's facts as JSON values. Its imports run now, in parallel to the template's import of torch."""
    from ddpdoctor.facts.codec import encode
    from ddpdoctor.network.tcpstore.server import Server
    from ddpdoctor.probe.local_probe import LocalProbe
    from ddpdoctor.probe.rank_env import RankEnv, short_host

    server = Server("127.0.0.1", 0)
    common = {"launcher": "local", "world_size": options.nproc, "local_world_size": options.nproc, "node_rank": 0}
    common |= {"master_addr": "127.0.0.1", "master_port": server.port, "uses_agent_store": False}
    common |= {"prefix": "ddpdoctor/local/", "host": short_host()}
    workers = adopt(begun, [RankEnv(rank=rank, local_rank=rank, **common) for rank in range(options.nproc)])
    try:
        return encode(LocalProbe(workers, server.port, options.backend, options.timeout).run())
    finally:
        for worker in workers:
            worker.kill_fork()
        for worker in workers:
            worker.kill()
        server.close()


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
