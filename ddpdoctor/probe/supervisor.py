"""One rank's supervisor: standard library only, so that it can report any failure of the worker.

It starts the worker immediately (its import of torch overlaps everything else), joins the other supervisors in the store
that the job itself would use, starts the workers together, and monitors them. Problems become observations; after a short
grace period one verdict is made from them, and every rank reports the same.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.facts.probe import Kind, Observation, Probe
from ddpdoctor.network.connect import OUT_OF_FILES
from ddpdoctor.network.file_limits import file_limit, raise_file_limit
from ddpdoctor.probe.arguments import parse
from ddpdoctor.probe.baseline import save
from ddpdoctor.probe.early_signal import early
from ddpdoctor.probe.lazy_retry import is_worth_a_try, retry
from ddpdoctor.probe.local_supervisors import LocalSupervisors
from ddpdoctor.probe.rank_env import (
    BadEnvironment,
    NoLauncherError,
    RankEnv,
    read_rank_env,
    read_rank_env_outside,
    short_host,
)
from ddpdoctor.probe.report_output import write_report
from ddpdoctor.probe.session import RankSession
from ddpdoctor.probe.store_rendezvous import Interrupted, report_to_others
from ddpdoctor.probe.worker_start import WORKER, adopt, begin, take_over
from ddpdoctor.system.lifetime import die_with

__all__ = ["main"]


def main(words: Sequence[str] | None = None) -> int:
    """Probe as the rank that the environment names. Returns the exit code."""
    options = parse(words)
    started = time.monotonic()
    if options.launched or options.hand_over:
        die_with(os.getppid())
    try:
        rank_env = read_rank_env(os.environ, options.job)
    except BadEnvironment as error:
        return _without_rank_env(error, options, started)
    try:
        return _as_rank(rank_env, options, started)
    except OSError as error:
        if error.errno not in OUT_OF_FILES:
            raise
        message = f"{rank_env.name} cannot start: its open files limit is {file_limit()}"
        seen = Observation(
            Kind.OUT_OF_FILES, message, (rank_env.rank,), rank_env.rank, rank_env.host, value=str(file_limit())
        )
        return write_report(Probe(observations=(seen,), launcher=rank_env.launcher), rank_env, True, options, started)


def _as_rank(rank_env: RankEnv, options: argparse.Namespace, started: float) -> int:
    worker = take_over(rank_env, *options.worker) if options.worker else adopt(begin(WORKER), [rank_env])[0]
    raise_file_limit()
    supervisors = LocalSupervisors(
        rank_env, os.getppid() if options.job is None else options.job, is_launched=options.launched
    )
    session = RankSession(rank_env, worker, options, supervisors)
    signal.signal(signal.SIGTERM, session.on_signal)
    signal.signal(signal.SIGINT, session.on_signal)
    session.signal = session.signal or next(iter(early), None)
    try:
        probe = session.run()
        supervisors.announce_leaving()
        if (
            session.signal == signal.SIGINT
        ):  # it came while the ranks agreed: their observations are about the interruption
            raise Interrupted
        worker.end()
        if probe.seen(Kind.OUT_OF_FILES):
            session.leave()  # to free file descriptors for the report
        seconds_left = session.end - time.monotonic()
        if is_worth_a_try(probe, seconds_left):
            probe = replace(probe, retried_lazily=retry(session.rank_env, seconds_left))
        if options.save_baseline and rank_env.rank == 0 and not probe.has_failed:
            _save_baseline(probe, options.save_baseline)
        lower = session.peer_monitor.local_peers.lower(rank_env.node_rank)
        is_first = supervisors.is_first(session.gone) and session.gone.issuperset(lower)
        if is_first:
            supervisors.announce_reported()
        code = write_report(probe, rank_env, is_first, options, started)
        if is_first:
            session.peer_monitor.local_peers.end_stopped()
        return code
    except Interrupted:
        if rank_env.local_rank in (0, None) and not options.launched:
            print("ddpdoctor: interrupted", file=sys.stderr)
        return 130
    finally:
        worker.end()
        session.leave()


def _without_rank_env(error: BadEnvironment, options: object, started: float) -> int:
    problem = str(error)
    if isinstance(error, NoLauncherError):
        print(
            f"ddpdoctor.probe: {problem}\n"
            "Start it with the job's launcher:\n"
            "torchrun --nproc-per-node=gpu -m ddpdoctor.probe\n"
            "or let ddpdoctor start the ranks:\n"
            "ddpdoctor probe",
            file=sys.stderr,
        )
        return 2
    host = short_host()
    rank = os.environ.get("RANK", "").strip()
    who = f"rank {rank}" if rank.isdecimal() else "a rank"
    ranks = (int(rank),) if rank.isdecimal() else ()
    seen = Observation(
        Kind.BAD_ENVIRONMENT, f"{who} on {host} cannot start: {problem}", ranks, host=host, value=problem
    )
    try:
        report_to_others(read_rank_env_outside(os.environ), seen)
    except BadEnvironment:
        pass  # the others are unreachable: the address of the store is unknown
    return write_report(Probe(observations=(seen,), launcher="env://"), None, True, options, started)


def _save_baseline(probe: Probe, path: str) -> None:
    try:
        save(probe, path)
    except OSError as error:
        print(f"ddpdoctor.probe: {path}: {error.strerror}", file=sys.stderr)
