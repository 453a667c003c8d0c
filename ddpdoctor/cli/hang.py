"""`ddpdoctor hang`: a job that stands still now: which rank waits where, and which one is somewhere else."""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.app.request import Common, UsageError, seconds_left
from ddpdoctor.cli.options import seconds_option

if TYPE_CHECKING:
    from ddpdoctor.facts.hang import Hang
    from ddpdoctor.facts.record import Facts
    from ddpdoctor.system.machine import Machine

__all__ = ["hang"]

AREAS = ("host", "log", "probe", "script")
"""The areas of the causes that running ranks show."""
ALIKE = "the ranks stand still, and /proc alone does not tell them apart; py-spy shows where each one waits: pip install py-spy"
WATCH_SECONDS = 2.0
RAS_SECONDS = 10.0
IDLE_SHARE = 0.05


def hang(
    common: Common,
    pids: Annotated[
        list[int] | None,
        typer.Argument(metavar="[PID]…", help="Ranks, or what started them; without: all ranks of this node.", min=1),
    ] = None,
    watch: Annotated[
        float,
        typer.Option("--watch", metavar="SECONDS", parser=seconds_option, help="How long to watch whether they move."),
    ] = WATCH_SECONDS,
    no_stacks: Annotated[bool, typer.Option("--no-stacks", help="Do not ask py-spy for stacks.")] = False,
    ras: Annotated[
        bool,
        typer.Option("--ras", help="Also ask NCCL's RAS, which has crashed jobs: when you give the job up anyway."),
    ] = False,
) -> int:
    """Find out why a running job stands still: nothing is stopped, signalled or ended."""
    from ddpdoctor.app.rule_selection import rules_for
    from ddpdoctor.cli.output import emit, has_colour, width
    from ddpdoctor.cli.tables.hang import draw
    from ddpdoctor.collectors.hang.pyspy import find_pyspy
    from ddpdoctor.collectors.hang.running_job import HangRequest, collect_hang
    from ddpdoctor.engine import examine
    from ddpdoctor.facts.hang import Hang
    from ddpdoctor.facts.record import SCHEMA, Facts
    from ddpdoctor.rules.views import hang_rules
    from ddpdoctor.system.machine import this_machine
    from ddpdoctor.system.timeouts import NoAnswer, answer

    started = time.time()
    machine = this_machine(seconds_left(common))
    failures: tuple[str, ...] = ()
    rules = hang_rules(rules_for(common, AREAS))
    if common.facts is not None:
        from ddpdoctor.app.facts_source import load_facts

        facts = load_facts(common.facts)
    else:
        _check(pids or [])
        if not no_stacks and not common.quiet and find_pyspy(machine.environ) is not None:
            print("ddpdoctor: reading stacks with py-spy --nonblocking: the ranks are not stopped", file=sys.stderr)
        wanted = HangRequest(tuple(pids or ()), watch, not no_stacks, dumps=True)
        try:
            found = answer(lambda: collect_hang(machine, wanted), machine.deadline.left)
        except NoAnswer as late:
            found, failures = Hang(), (f"look at the ranks: {late}",)
        else:
            failures = () if found.processes else (_nothing(pids or [], found),)
        facts = Facts(
            schema=SCHEMA,
            collected_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
            hostname=socket.gethostname().partition(".")[0],
            hang=found,
        )
        if ras:
            facts, problem = _with_ras(facts, machine)
            failures = (*failures, *problem)
    report = examine(facts, rules, command="hang", started=started, failures=failures)
    if not report.findings and not common.quiet and _are_alike(facts):
        print(f"ddpdoctor: {ALIKE}", file=sys.stderr)
    return emit(report, common, draw(facts, width=width(), colour=has_colour(common)))


def _are_alike(facts: Facts) -> bool:
    """Whether several ranks hardly use their CPU and no stack says what they wait for."""
    processes = facts.hang.processes if facts.hang is not None else ()
    is_idle = all(each.cpu_share is not None and each.cpu_share < IDLE_SHARE for each in processes)
    return len(processes) > 1 and is_idle and not any(each.frames for each in processes)


def _check(pids: list[int]) -> None:
    for pid in pids:
        if not os.path.exists(f"/proc/{pid}"):
            raise UsageError(f"{pid}: no process has this id")


def _nothing(pids: list[int], found: Hang) -> str:
    if pids:
        return f"look at {', '.join(map(str, pids))}: no rank there"
    hidden = [gap.reason for gap in found.gaps if gap.path == "hang.processes"]
    if hidden:
        return f"find a rank among the processes that may be read: {hidden[0]}, or the user who started the job"
    return "find a rank: no process of this node has RANK and WORLD_SIZE in its environment; give the PIDs of the ranks"


def _with_ras(facts: Facts, machine: Machine) -> tuple[Facts, tuple[str, ...]]:
    from ddpdoctor.collectors.hang.ras_client import ask
    from ddpdoctor.dumps.ras import ras_of

    print("ddpdoctor: asking NCCL's RAS, which has crashed jobs", file=sys.stderr)
    assert facts.hang is not None
    variables = next((p.variables for p in facts.hang.processes), machine.environ)
    try:
        address, answer = ask(variables, RAS_SECONDS)
        found = ras_of(address, answer)
    except (OSError, ValueError) as error:
        return facts, (f"ask NCCL's RAS: {error}",)
    return replace(facts, hang=replace(facts.hang, ras=found)), ()
