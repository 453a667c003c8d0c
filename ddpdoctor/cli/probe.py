"""`ddpdoctor probe`: start the ranks of this node and probe them together with those of the other nodes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from typing import Annotated

import typer

from ddpdoctor.cli.options import Common, UsageError, seconds

__all__ = ["probe"]

CPU_RANKS = 2
DEFAULT_PORT = 29500
DEFAULT_SECONDS = 120.0
ENDING_SECONDS = 20.0
"""How long the ranks may take to report after their own time limit."""


def probe(
    common: Common,
    nproc_per_node: Annotated[
        str, typer.Option("--nproc-per-node", "--nproc_per_node", metavar="N|gpu|cpu|auto", help="Ranks on this node.")
    ] = "auto",
    nnodes: Annotated[int, typer.Option("--nnodes", min=1, help="Nodes of the job.")] = 1,
    node_rank: Annotated[int, typer.Option("--node-rank", "--node_rank", min=0, help="This node's number.")] = 0,
    master_addr: Annotated[
        str, typer.Option("--master-addr", "--master_addr", metavar="HOST", help="An address of node 0.")
    ] = "127.0.0.1",
    master_port: Annotated[
        int | None, typer.Option("--master-port", "--master_port", min=1, max=65535, help="A free port on node 0.")
    ] = None,
    backend: Annotated[
        str, typer.Option("--backend", metavar="auto|nccl|gloo", help="Default: nccl with GPUs.")
    ] = "auto",
    join_timeout: Annotated[
        float,
        typer.Option("--join-timeout", metavar="SECONDS", parser=seconds, help="How long to wait for the other nodes."),
    ] = 30.0,
) -> int:
    """Start ranks on this node (the same line on every node, with its --node-rank) and probe them."""
    if backend not in ("auto", "nccl", "gloo"):
        raise UsageError(f"--backend {backend!r:.60}: expected auto, nccl or gloo")
    if node_rank >= nnodes:
        raise UsageError(f"--node-rank {node_rank} with --nnodes {nnodes}: expected 0 to {nnodes - 1}")
    if nnodes > 1 and (master_addr.startswith("127.") or master_addr == "localhost"):
        raise UsageError(
            f"--master-addr {master_addr} with --nnodes {nnodes}: expected an address that every node reaches"
        )
    nproc = _count(nproc_per_node)
    port = master_port or (DEFAULT_PORT if nnodes > 1 else _free_port())
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC_", "PET_"))}
    environ |= {
        "WORLD_SIZE": str(nnodes * nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "GROUP_RANK": str(node_rank),
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(port),
    }
    words = [*_words(common), "--backend", backend, "--join-timeout", str(join_timeout)]
    ranks = [_start(words, environ, node_rank * nproc + local, local) for local in range(nproc)]
    return _wait(ranks, common.timeout or DEFAULT_SECONDS)


def _count(word: str) -> int:
    """How many ranks this node gets: torchrun's words, and `auto`: one for each visible GPU, two without any."""
    if word.isdigit() and int(word) > 0:
        return int(word)
    if word == "cpu":
        return os.cpu_count() or CPU_RANKS
    if word not in ("auto", "gpu"):
        raise UsageError(f"--nproc-per-node {word!r:.60}: expected a number of at least 1, gpu, cpu or auto")
    from ddpdoctor.collectors import collect
    from ddpdoctor.collectors.machine import this_machine
    from ddpdoctor.facts.visibility import visible

    facts = collect(this_machine(10.0), ("environ", "gpu"))
    variables = facts.environ.variables if facts.environ else {}
    gpus = visible(variables, facts.gpu).count if facts.gpu else 0
    if word == "gpu" and not gpus:
        raise UsageError("--nproc-per-node gpu: no GPU is visible here; expected at least one")
    return gpus or CPU_RANKS


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _words(common: Common) -> list[str]:
    """The common options, as the ranks' own command line takes them."""
    given = {
        "--format": common.format.value,
        "--fail-on": common.fail_on.value,
        "--output": common.output,
        "--select": common.select,
        "--ignore": common.ignore,
        "--timeout": common.timeout,
    }
    flags = [("--quiet", common.quiet), ("--no-color", common.no_color)]
    words = [str(word) for option, value in given.items() if value is not None for word in (option, value)]
    return words + [flag for flag, is_set in flags if is_set]


def _start(words: list[str], environ: dict[str, str], rank: int, local_rank: int) -> subprocess.Popen[bytes]:
    width = str(shutil.get_terminal_size((100, 24)).columns)
    own = {**environ, "RANK": str(rank), "LOCAL_RANK": str(local_rank), "COLUMNS": width}
    return subprocess.Popen([sys.executable, "-m", "ddpdoctor.probe", *words], env=own, stdin=subprocess.DEVNULL)


def _wait(ranks: list[subprocess.Popen[bytes]], limit: float) -> int:
    """The worst exit code of the ranks. Whatever happens, none of them is left behind."""
    try:
        codes = [rank.wait(limit + ENDING_SECONDS) for rank in ranks]
    except subprocess.TimeoutExpired:
        print("ddpdoctor: a rank did not end in time and was killed", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        for rank in ranks:
            rank.send_signal(signal.SIGINT)
        _reap(ranks)
        raise
    finally:
        for rank in ranks:
            rank.kill()
    return max(1 if code < 0 else code for code in codes)


def _reap(ranks: list[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        try:
            rank.wait(3.0)
        except subprocess.TimeoutExpired:
            continue  # it is killed next
