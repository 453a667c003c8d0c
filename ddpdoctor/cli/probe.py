"""`ddpdoctor probe`: start the ranks of this node and probe them together with those of the other nodes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.app.request import Common, UsageError
from ddpdoctor.cli.options import seconds_option
from ddpdoctor.system.selfexec import command

if TYPE_CHECKING:
    from ddpdoctor.collectors.probe import NodeRanks

__all__ = ["probe"]

CPU_RANKS = 2
DEFAULT_PORT = 29500
DEFAULT_SECONDS = 120.0
ENDING_SECONDS = 20.0
"""How long the ranks may take to report after their own time limit."""

STOPPED_SECONDS = 3.0
"""How long all ranks of this node may be stopped: a node that has others tells it by them."""

LOOK_SECONDS = 0.02
LOCAL = "127.0.0.1"


def probe(
    common: Common,
    nproc_per_node: Annotated[
        str, typer.Option("--nproc-per-node", "--nproc_per_node", metavar="N|gpu|cpu|auto", help="Ranks on this node.")
    ] = "auto",
    nnodes: Annotated[str, typer.Option("--nnodes", metavar="N", help="Nodes of the job.")] = "1",
    node_rank: Annotated[
        int, typer.Option("--node-rank", "--node_rank", min=0, help="This node's number, from 0.")
    ] = 0,
    master_addr: Annotated[
        str | None, typer.Option("--master-addr", "--master_addr", metavar="HOST", help="An address of node 0.")
    ] = None,
    master_port: Annotated[
        int | None, typer.Option("--master-port", "--master_port", min=1, max=65535, help="A free port on node 0.")
    ] = None,
    rdzv_endpoint: Annotated[
        str | None,
        typer.Option(
            "--rdzv-endpoint", "--rdzv_endpoint", metavar="HOST[:PORT]", help="Node 0's address, in torchrun's words."
        ),
    ] = None,
    rdzv_id: Annotated[
        str, typer.Option("--rdzv-id", "--rdzv_id", metavar="ID", help="Keeps jobs at one port apart.")
    ] = "ddpdoctor",
    rdzv_backend: Annotated[
        str, typer.Option("--rdzv-backend", "--rdzv_backend", metavar="static|c10d", help="Taken; node 0 hosts.")
    ] = "static",
    standalone: Annotated[bool, typer.Option("--standalone", help="This node alone.")] = False,
    backend: Annotated[
        str, typer.Option("--backend", metavar="auto|nccl|gloo", help="Default: nccl with GPUs.")
    ] = "auto",
    save_baseline: Annotated[
        str | None, typer.Option("--save-baseline", metavar="FILE", help="Keep what node 0 measures, to compare with.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="FILE", help="Compare with a kept one (node 0 reads it).")
    ] = None,
    join_timeout: Annotated[
        float,
        typer.Option(
            "--join-timeout", metavar="SECONDS", parser=seconds_option, help="How long to wait for the other nodes."
        ),
    ] = 30.0,
) -> int:
    """Start ranks on this node (the same line on every node, with its --node-rank) and probe them."""
    from ddpdoctor.collectors.probe import NodeRanks

    if backend not in ("auto", "nccl", "gloo"):
        raise UsageError(f"--backend {backend!r:.60}: expected auto, nccl or gloo")
    if rdzv_backend not in ("static", "c10d"):
        raise UsageError(f"--rdzv-backend {rdzv_backend!r:.60}: expected static or c10d")
    count = 1 if standalone else _nodes(nnodes)
    if node_rank >= count:
        raise UsageError(f"--node-rank {node_rank} with --nnodes {count}: expected 0 to {count - 1}")
    host, port = _master(master_addr, master_port, rdzv_endpoint, count)
    nproc = _count(nproc_per_node)
    node = NodeRanks(nproc, count * nproc, host, port, node_rank * nproc, node_rank, count, rdzv_id)
    words = [*_words(common), "--launched", "--backend", backend, "--join-timeout", str(join_timeout)]
    if baseline and node_rank == 0 and not os.access(baseline, os.R_OK):
        raise UsageError(f"--baseline {baseline:.200}: the file cannot be read")
    for option, file in (("--save-baseline", save_baseline), ("--baseline", baseline)):
        words += [option, file] if file else []
    return _wait(_start(words, node), node, words, common.timeout or DEFAULT_SECONDS)


def _nodes(word: str) -> int:
    """The number of nodes; torchrun's MIN:MAX only where both are the same, since nobody says how many will come."""
    least, _, most = word.partition(":")
    if not least.isdecimal() or int(least) < 1 or (most or least) != least:
        raise UsageError(f"--nnodes {word!r:.60}: expected one number of at least 1")
    return int(least)


def _master(addr: str | None, port: int | None, endpoint: str | None, nnodes: int) -> tuple[str, int]:
    """Where the ranks meet: what the options say, this machine and a free port when they say nothing."""
    if endpoint:
        host, _, number = endpoint.rpartition(":") if _has_port(endpoint) else (endpoint, "", "")
        addr, port = addr or host.strip("[]"), port or (int(number) if number else None)
    if addr is None and nnodes > 1:
        raise UsageError(
            f"--nnodes {nnodes} without --master-addr: expected an address of node 0 that every node reaches"
        )
    if port is not None and not 0 < port < 65536:
        raise UsageError(f"--rdzv-endpoint {endpoint!r:.80}: expected HOST:PORT with a port from 1 to 65535")
    return addr or LOCAL, port or (DEFAULT_PORT if nnodes > 1 else _free_port())


def _has_port(endpoint: str) -> bool:
    host, colon, number = endpoint.rpartition(":")
    return bool(colon) and number.isdecimal() and (":" not in host or host.endswith("]"))


def _count(word: str) -> int:
    """How many ranks this node gets: torchrun's words, and `auto`: one for each visible GPU, two without any."""
    if word.isdecimal() and int(word) > 0:
        return int(word)
    if word == "cpu":
        return os.cpu_count() or CPU_RANKS
    if word not in ("auto", "gpu"):
        raise UsageError(f"--nproc-per-node {word!r:.60}: expected a number of at least 1, gpu, cpu or auto")
    from ddpdoctor.collectors import collect
    from ddpdoctor.facts.visibility import visible
    from ddpdoctor.system.machine import this_machine

    facts = collect(this_machine(10.0), ("environ", "gpu"))
    variables = facts.environ.variables if facts.environ else {}
    gpus = visible(variables, facts.gpu).count if facts.gpu else 0
    if word == "gpu" and not gpus:
        raise UsageError("--nproc-per-node gpu: no GPU is visible here; expected at least one")
    return gpus or CPU_RANKS


def _free_port() -> int:
    with socket.create_server((LOCAL, 0)) as server:
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


def _start(words: list[str], node: NodeRanks) -> list[subprocess.Popen[bytes]]:
    """The ranks, in the process group of the terminal: Ctrl-C and Ctrl-Z reach them, and they print there."""
    width = {"COLUMNS": str(shutil.get_terminal_size((100, 24)).columns)}
    line = [*command("ddpdoctor.probe"), *words]
    return [
        subprocess.Popen(line, env=environ | width, stdin=subprocess.DEVNULL) for environ in node.environs(os.environ)
    ]


def _wait(ranks: list[subprocess.Popen[bytes]], node: NodeRanks, words: list[str], limit: float) -> int:
    """The worst exit code of the ranks. Whatever happens, none of them is left behind."""
    from ddpdoctor.app.stopped_ranks import is_stopped, tell_stopped

    started, looks = time.monotonic(), 0
    end = started + limit + ENDING_SECONDS
    try:
        while not all(map(_has_ended, ranks)):
            # Looks are counted, for with Ctrl-Z this process stands still as well.
            looks = looks + 1 if all(_has_ended(rank) or is_stopped(rank.pid) for rank in ranks) else 0
            if looks * LOOK_SECONDS > STOPPED_SECONDS:
                return tell_stopped(ranks, node, words, time.monotonic() - started)
            if time.monotonic() > end:
                print("ddpdoctor: a rank did not end in time and was killed", file=sys.stderr)
                return 3
            time.sleep(LOOK_SECONDS)
        codes = [rank.wait() for rank in ranks]
    except KeyboardInterrupt:
        for rank in ranks:
            rank.send_signal(signal.SIGINT)
        _reap(ranks)
        raise
    finally:
        for rank in ranks:
            rank.kill()
    return max(1 if code < 0 else code for code in codes)


def _has_ended(rank: subprocess.Popen[bytes]) -> bool:
    """Asked without burying it: the other ranks look at it in /proc as long as one of them runs."""
    return os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _reap(ranks: list[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        try:
            rank.wait(3.0)
        except subprocess.TimeoutExpired:
            continue  # it is killed next
