"""`ddpdoctor probe`: start the ranks of this node and probe them together with those of the other nodes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.app.output_file import check_target
from ddpdoctor.app.request import UsageError
from ddpdoctor.collectors.probe import NodeRanks
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.system.process import ended_within, start
from ddpdoctor.system.regular_file import read_regular
from ddpdoctor.system.selfexec import command
from ddpdoctor.wording import counted

if TYPE_CHECKING:
    from ddpdoctor.app.progress import ProgressListener
    from ddpdoctor.app.request import Request

__all__ = ["ProbeOptions", "probe_ranks"]

CPU_RANKS = 2
DEFAULT_PORT = 29500
DEFAULT_SECONDS = 120.0
ENDING_SECONDS = 20.0
"""Seconds that the ranks may take to report after their own time limit."""

STOPPED_SECONDS = 3.0
"""Seconds that all ranks of this node may be stopped before the other nodes are notified."""

RANKS_PER_CPU = 4
LEAST_BOUND = 64
"""Most ranks of a node, or four per CPU if that is more: a mistyped number must not fill its memory."""
MOST_DIGITS = 9

LOOK_SECONDS = 0.02
LEAVING_SECONDS = 3.0
"""For a rank after Ctrl-C."""
REPORTER = b"ddpdoctor.cli.probe_report"
LOCAL = "127.0.0.1"
BACKENDS = ("auto", "nccl", "gloo")
RENDEZVOUS_BACKENDS = ("static", "c10d")


@dataclass(frozen=True)
class ProbeOptions:
    """The options of `probe` as given; `columns` is the width of the terminal, which the ranks' reports use."""

    nproc_per_node: str
    nnodes: str
    node_rank: int
    master_addr: str | None
    master_port: int | None
    rdzv_endpoint: str | None
    rdzv_id: str
    rdzv_backend: str
    backend: str
    save_baseline: str | None
    baseline: str | None
    join_seconds: float
    columns: int
    is_quick: bool = False


def probe_ranks(request: Request, options: ProbeOptions) -> int:
    """Start the ranks of this node and wait until they have reported; their worst exit code.

    Raises:
        UsageError: an option has an invalid value, or options contradict each other.
    """
    if request.facts is not None:
        raise UsageError("--facts with probe: ranks are probed on this machine; saved facts are not allowed")
    node = _node(options)
    words = [*_words(request), "--launched", "--backend", options.backend, "--join-timeout", str(options.join_seconds)]
    words += ["--quick"] if options.is_quick else []
    if options.node_rank == 0:
        _check_files(options)
    for option, file in (("--save-baseline", options.save_baseline), ("--baseline", options.baseline)):
        words += [option, file] if file else []
    _say_what_is_awaited(request, node)
    ranks = _start(words, node, options.columns)
    return _wait(ranks, node, words, request.timeout or DEFAULT_SECONDS, request.listener)


def _check_files(options: ProbeOptions) -> None:
    """Refuse files that cannot be read or written before ranks are started."""
    if options.save_baseline:
        check_target("--save-baseline", Path(options.save_baseline))
    if not options.baseline:
        return
    try:
        read_regular(options.baseline, 1)
    except OSError as error:
        raise UsageError(f"--baseline {options.baseline:.200}: {(error.strerror or 'not readable').lower()}") from None


def _node(options: ProbeOptions) -> NodeRanks:
    """The ranks of this node, and the address of the job's store."""
    if options.backend not in BACKENDS:
        raise UsageError(f"--backend {options.backend!r:.60}: expected auto, nccl or gloo")
    if options.rdzv_backend not in RENDEZVOUS_BACKENDS:
        raise UsageError(f"--rdzv-backend {options.rdzv_backend!r:.60}: expected static or c10d")
    count, rank = _nodes(options.nnodes), options.node_rank
    if rank >= count:
        raise UsageError(f"--node-rank {rank} with --nnodes {count}: expected 0 to {count - 1}")
    host, port = _master(options.master_addr, options.master_port, options.rdzv_endpoint, count)
    nproc = _count(options.nproc_per_node)
    return NodeRanks(nproc, count * nproc, host, port, rank * nproc, rank, count, options.rdzv_id)


def _nodes(word: str) -> int:
    """The number of nodes; torchrun's MIN:MAX only where both are the same, since it is unknown how many will join."""
    least, _, most = word.partition(":")
    if not least.isdecimal() or int(least) < 1 or (most or least) != least:
        raise UsageError(f"--nnodes {word!r:.60}: expected one number of at least 1")
    return int(least)


def _master(addr: str | None, port: int | None, endpoint: str | None, nnodes: int) -> tuple[str, int]:
    """The address of the store: from the options, otherwise this machine and a free port."""
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
    """The number of ranks of this node: torchrun's values, and `auto`: one per visible GPU, two without GPUs."""
    if word.isdecimal() and word.strip("0"):
        most = max(LEAST_BOUND, RANKS_PER_CPU * (os.cpu_count() or 1))
        if len(word) > MOST_DIGITS or int(word) > most:
            raise UsageError(f"--nproc-per-node {word:.60}: expected 1 to {most}, each of which imports torch")
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


def _words(request: Request) -> list[str]:
    """The shared options, as the ranks' own command line takes them."""
    given = {
        "--format": request.format.value,
        "--fail-on": request.fail_on.value,
        "--output": request.output,
        "--select": request.select,
        "--ignore": request.ignore,
        "--timeout": request.timeout,
    }
    flags = [("--quiet", request.quiet), ("--verbose", request.verbose), ("--no-color", request.no_color)]
    words = [str(word) for option, value in given.items() if value is not None for word in (option, value)]
    return words + [flag for flag, is_set in flags if is_set]


def _start(words: Sequence[str], node: NodeRanks, columns: int) -> list[subprocess.Popen[bytes]]:
    line = [*command("ddpdoctor.probe"), *words]
    return [
        start(line, environ | {"COLUMNS": str(columns)}, is_foreground=True) for environ in node.environs(os.environ)
    ]


def _wait(
    ranks: Sequence[subprocess.Popen[bytes]],
    node: NodeRanks,
    words: Sequence[str],
    limit: float,
    listener: ProgressListener,
) -> int:
    """The worst exit code of the ranks, all of which end with this function."""
    from ddpdoctor.app.stopped_ranks import is_stopped, tell_stopped

    started, looks = time.monotonic(), 0
    end = started + limit + ENDING_SECONDS
    try:
        while not all(map(_has_ended, ranks)):
            if any(map(_is_reporting, ranks)):
                listener.end()
            # Iterations are counted, not seconds, because Ctrl-Z stops this process as well.
            looks = looks + 1 if all(_has_ended(rank) or is_stopped(rank.pid) for rank in ranks) else 0
            if looks * LOOK_SECONDS > STOPPED_SECONDS:
                return tell_stopped(ranks, node, words, time.monotonic() - started)
            if time.monotonic() > end:
                listener.error("a rank did not end in time and was killed")
                return 3
            time.sleep(LOOK_SECONDS)
        codes = [rank.wait() for rank in ranks]
    except KeyboardInterrupt:
        for rank in ranks:
            rank.send_signal(signal.SIGINT)
        for rank in ranks:
            ended_within(rank, LEAVING_SECONDS)  # one that stays is killed next
        raise
    finally:
        listener.end()
        for rank in ranks:
            rank.kill()
    return max(1 if code < 0 else code for code in codes)


def _say_what_is_awaited(request: Request, node: NodeRanks) -> None:
    """On node 0 with a row that stays until its report begins; on the others, whose ranks print one line, without."""
    text = f"probing {counted(node.nproc, 'rank')}"
    if node.node_rank == 0:
        others = "" if node.nnodes == 1 else f" with those of {counted(node.nnodes - 1, 'other node')}"
        request.listener.phase(text + others)
    elif not request.quiet:
        request.listener.notice(f"{text}; node 0 at {node.master_addr}:{node.master_port} reports")


def _is_reporting(rank: subprocess.Popen[bytes]) -> bool:
    """Whether the process that writes the rank's report has been started."""
    try:
        with open(f"/proc/{rank.pid}/task/{rank.pid}/children") as file:
            children = file.read().split()
        return any(REPORTER in _command_line(child) for child in children)
    except OSError:
        return False  # the rank has ended, or this kernel does not list children


def _command_line(pid: str) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


def _has_ended(rank: subprocess.Popen[bytes]) -> bool:
    """Does not reap it: the other ranks examine it in /proc as long as one of them runs."""
    return os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
