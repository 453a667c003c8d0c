"""`ddpdoctor hang`: the running ranks of this node: which rank waits where, and which one does not."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.app.facts_source import facts_for
from ddpdoctor.app.progress import reporting
from ddpdoctor.app.request import UsageError, seconds_left
from ddpdoctor.app.rule_selection import rules_for
from ddpdoctor.collectors.hang.pyspy import find_pyspy
from ddpdoctor.collectors.hang.running_job import HangRequest, collect_hang
from ddpdoctor.engine import examine
from ddpdoctor.examined import ExaminedInput
from ddpdoctor.facts.hang import Hang
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.findings import Skipped, time_of
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.rules.views import hang_rules
from ddpdoctor.system.machine import this_machine
from ddpdoctor.system.timeouts import CallTimeout, call_with_timeout

if TYPE_CHECKING:
    from ddpdoctor.app.request import Request
    from ddpdoctor.findings import Report
    from ddpdoctor.system.machine import Machine

__all__ = ["HangOptions", "examine_running_job"]

AREAS = ("host", "log", "probe", "script")
"""The areas whose causes can be seen in running ranks."""
NO_STACKS = (
    "the Python stacks of the ranks were not read; to see where each one waits: pip install py-spy && ddpdoctor hang"
)
RAS_SECONDS = 10.0
IDLE_SHARE = 0.05
MOST_HOSTS = 4


@dataclass(frozen=True)
class HangOptions:
    """What is examined: the ranks with these `pids` and their children; without PIDs all ranks of this node."""

    pids: Sequence[int]
    watch_seconds: float
    has_stacks: bool
    has_ras: bool


def examine_running_job(request: Request, options: HangOptions) -> tuple[Report, Facts]:
    """The report about the running ranks, or those in saved facts, and the facts.

    Raises:
        UsageError: no process has one of the PIDs.
    """
    started = time.monotonic()
    rules = hang_rules(rules_for(request, AREAS))
    if request.facts is not None:
        facts, failures = facts_for(request, ("hang",))
    else:
        facts, failures = _look(request, options, started)
    report = examine(facts, rules, command="hang", started=started, failures=failures)
    inputs = _inputs(options.pids, facts.hang)
    if request.facts is not None:
        inputs = (_saved_input(str(request.facts), facts, failures),)
    report = replace(report, inputs=inputs, subject=_subject(facts))
    return _without_unseen(report, facts), facts


def _subject(facts: Facts) -> str:
    """`3 ranks on gpu-07`."""
    processes = facts.hang.processes if facts.hang is not None else ()
    if not processes:
        return ""
    hosts = list(dict.fromkeys(process.host or facts.hostname for process in processes))
    where = ", ".join(hosts[:MOST_HOSTS]) + (f" and {len(hosts) - MOST_HOSTS} more" if len(hosts) > MOST_HOSTS else "")
    return f"{len(processes)} rank{'' if len(processes) == 1 else 's'} on {where}"


def _saved_input(path: str, facts: Facts, failures: Sequence[str]) -> ExaminedInput:
    """The file of saved facts, with the number of ranks in it."""
    if failures or facts.hang is None:
        reason = failures[0] if failures else "facts without ranks: they were not collected while the job was stuck"
        return ExaminedInput(path, "facts", is_understood=False, reason=reason.removeprefix(f"read {path}: "))
    hang = facts.hang
    ranks = {each.rank for group in (hang.dumps, hang.stacks, hang.processes) for each in group}
    return ExaminedInput(path, "facts", ranks=tuple(sorted(rank for rank in ranks if rank is not None)))


def _look(request: Request, options: HangOptions, started: float) -> tuple[Facts, tuple[str, ...]]:
    """The facts of the ranks that run on this node, and what failed while they were gathered."""
    machine = this_machine(seconds_left(request))
    for pid in options.pids:
        if not os.path.exists(f"/proc/{pid}"):
            raise UsageError(f"PID {pid}: no such process")
    has_pyspy = options.has_stacks and find_pyspy(machine.environ) is not None
    with reporting(request.listener) as progress:
        stacks = ", then reading their stacks (py-spy --nonblocking)" if has_pyspy else ""
        progress.phase(f"watching the ranks for {options.watch_seconds:g} s{stacks}")
        hang, failures = _ranks(machine, options)
    facts = Facts(
        schema=SCHEMA,
        collected_at=time_of(started),
        hostname=socket.gethostname().partition(".")[0],
        hang=hang,
    )
    if not options.has_ras:
        return facts, failures
    request.listener.warning("querying NCCL's RAS, which has crashed jobs")
    facts, problems = _with_ras(facts, hang, machine)
    return facts, (*failures, *problems)


def _ranks(machine: Machine, options: HangOptions) -> tuple[Hang, tuple[str, ...]]:
    wanted = HangRequest(tuple(options.pids), options.watch_seconds, options.has_stacks, dumps=True)
    try:
        hang = call_with_timeout(lambda: collect_hang(machine, wanted), machine.deadline.left)
    except CallTimeout as late:
        return Hang(), (f"the ranks were not examined: {late}",)
    return hang, () if hang.processes or hang.not_ranks else (_why_none(options.pids, hang),)


def _inputs(pids: Sequence[int], hang: Hang | None) -> tuple[ExaminedInput, ...]:
    """The processes that the user named, and which of them are not ranks."""
    if hang is None:
        return ()
    ranks = (
        tuple(sorted(process.rank for process in hang.processes if process.rank is not None)) if len(pids) == 1 else ()
    )
    reasons = {rank.pid: rank.reason for rank in hang.not_ranks}
    return tuple(
        ExaminedInput(
            f"pid {pid}",
            "process",
            is_understood=pid not in reasons,
            ranks=ranks,
            reason=reasons.get(pid),
            is_named=True,
        )
        for pid in pids
    )


def _why_none(pids: Sequence[int], hang: Hang) -> str:
    if pids:
        return f"pid {', '.join(map(str, pids))}: ended before it was examined"
    hidden = [gap.reason for gap in hang.gaps if gap.path == "hang.processes"]
    if hidden:
        return f"no rank found among the readable processes: {hidden[0]}, or the user who started the job"
    return (
        "no rank found: no process of this node has RANK and WORLD_SIZE in its environment; give the PIDs of the ranks"
    )


def _with_ras(facts: Facts, hang: Hang, machine: Machine) -> tuple[Facts, tuple[str, ...]]:
    """The facts with the answer of NCCL's RAS, or the reason why there is none."""
    from ddpdoctor.collectors.hang.ras_client import ask
    from ddpdoctor.dumps.ras import ras_of

    variables = next((process.variables for process in hang.processes), machine.environ)
    try:
        ras = ras_of(*ask(variables, RAS_SECONDS))
    except (OSError, ValueError) as error:
        return facts, (f"NCCL's RAS did not answer: {error}",)
    return replace(facts, hang=replace(hang, ras=ras)), ()


def _without_unseen(report: Report, facts: Facts) -> Report:
    """The report, without a "passed" for what only stacks or dumps can show: these rules are skipped, and what to run is
    the reason. Ranks that all wait make it incomplete.
    """
    hang = facts.hang
    if hang is None or not hang.processes or hang.dumps or hang.stacks or hang.ras:
        return report
    if any(process.frames for process in hang.processes):
        return report
    reason = next((gap.reason for gap in hang.gaps if gap.path == "hang.stacks"), NO_STACKS)
    unseen = tuple(Skipped(code, reason, unanswered=_are_idle(hang)) for code in report.passed)
    return replace(report, passed=(), skipped=(*report.skipped, *unseen))


def _are_idle(hang: Hang) -> bool:
    """Whether several ranks hardly use their CPU, so that each may be waiting for another."""
    shares = [process.cpu_share for process in hang.processes]
    return len(shares) > 1 and all(share is not None and share < IDLE_SHARE for share in shares)
