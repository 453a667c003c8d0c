"""`ddpdoctor rehearse -- LAUNCH…`: the user's own script for a few steps, on CPU and under observation."""

from __future__ import annotations

import ast
import os
import socket
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.app.excerpts import with_excerpts
from ddpdoctor.app.line_elsewhere import unprobed
from ddpdoctor.app.output_file import CannotWriteError
from ddpdoctor.app.progress import reporting
from ddpdoctor.app.rehearsed_sources import with_read_sources
from ddpdoctor.app.request import UsageError, seconds_left
from ddpdoctor.app.rule_selection import rules_for
from ddpdoctor.engine import examine
from ddpdoctor.examined import CheckedSection, ExaminedInput, SectionState
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.facts.rehearsal import RankEnd, Rehearsal
from ddpdoctor.findings import Severity, time_of
from ddpdoctor.launch.rehearsal_ranks import RehearsedWorld, world_of
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.rehearsal.supervisor import RehearsalPlan, RehearsalRun, rehearse
from ddpdoctor.rules.views import rehearsal_rules
from ddpdoctor.sequences.summary import Circumstances, files_named, summary
from ddpdoctor.system.regular_file import read_regular, text_of_regular
from ddpdoctor.wording import counted

if TYPE_CHECKING:
    from ddpdoctor.app.request import Request
    from ddpdoctor.facts.launch.record import LaunchLine
    from ddpdoctor.findings import Report

__all__ = ["REHEARSAL_SECONDS", "RehearsalOptions", "rehearse_launch"]

AREAS = ("script", "probe")
REHEARSAL_SECONDS = 120.0
"""The default `--timeout` of `rehearse`."""
MOST_UNREACHED = 6
"""Calls and branches that did not run and that the screen names."""
LARGEST_SOURCE = 4 << 20
ENDING_SECONDS = 8.0
"""Seconds of `--timeout` that are left for the end of the processes and for judging."""


@dataclass(frozen=True)
class RehearsalOptions:
    """The options of `rehearse`. `steps` None: 3, and more while steps are short; `ranks` None: those of the line, at most 8."""

    steps: int | None = None
    seconds: float = 60.0
    ranks: int | None = None
    epoch_steps: int | None = None
    has_scratch: bool = True
    has_network: bool = False
    reads_sources: bool = True
    """Whether the files that ran are read as well, as `lint` does."""


def rehearse_launch(request: Request, options: RehearsalOptions) -> tuple[Report, Facts]:
    """The report about one rehearsal, and its facts.

    Raises:
        UsageError: no launch command, or one that starts nothing that can be rehearsed here.
        CannotWriteError: there is no room for the scratch folder.
    """
    started = time.monotonic()
    rules = rehearsal_rules(rules_for(request, AREAS))
    if request.facts is not None:
        from ddpdoctor.app.facts_source import facts_for

        facts, failures = facts_for(request, ("rehearsal",))
        return examine(facts, rules, command="rehearse", started=started, failures=failures), facts
    if request.launch is None:
        raise UsageError("nothing to rehearse; expected a launch command: ddpdoctor rehearse -- torchrun …")
    with reporting(request.listener) as progress:
        progress.phase("reading the launch command")
        known, python, world = _resolved(request, options)
        run = _run(request, options, _line(known), python, world, progress.phase)
    rehearsal = _facts(run, world)
    facts = Facts(
        schema=SCHEMA,
        collected_at=time_of(started),
        hostname=socket.gethostname().partition(".")[0],
        rehearsal=rehearsal,
    )
    report = examine(facts, rules, command="rehearse", started=started)
    is_explained = report.worst is Severity.ERROR
    if options.reads_sources:
        report = with_read_sources(report, rehearsal.files, known, request)
    if not is_explained or rehearsal.obstacle is not None:
        report = replace(report, failures=(*report.failures, *_failures(run, rehearsal)))
    report = replace(
        report,
        inputs=(_input(rehearsal, world),),
        sections=_sections(rehearsal, report),
        subject=_subject(rehearsal, world),
    )
    return with_excerpts(report, None), facts


def _input(rehearsal: Rehearsal, world: RehearsedWorld) -> ExaminedInput:
    """The script, with what of it was not compared."""
    name = world.script or world.module
    left_out = tuple(f"{name}: {each}" for each in rehearsal.not_compared)
    return ExaminedInput(name, "script", ranks=tuple(r.rank for r in rehearsal.ranks), left_out=left_out)


def _resolved(request: Request, options: RehearsalOptions) -> tuple[Facts, str, RehearsedWorld]:
    """The facts with the launch line, the interpreter that runs its script, and the world that is rehearsed."""
    from ddpdoctor.app.line_startup import with_startup
    from ddpdoctor.app.lint_lines import facts_of

    facts = with_startup(facts_of(request, [], None), request)
    if facts.launch is None or len(facts.launch.lines) != 1:
        raise UsageError("rehearse takes one launch command")
    line = _line(facts)
    gap = unprobed(facts)
    if gap is not None:
        raise UsageError(gap.reason.replace("ddpdoctor check", "ddpdoctor rehearse"))
    world = world_of(line, options.ranks)
    if world.reason:
        raise UsageError(f"cannot rehearse: {world.reason}")
    if world.script and not os.path.exists(os.path.join(line.cwd or os.getcwd(), world.script)):
        raise UsageError(f"{world.script}: no such file")
    python = facts.startup.python if facts.startup is not None else None
    if python is None:
        gap = next(iter(facts.startup.gaps), None) if facts.startup is not None else None
        why = "was not found" if gap is None else f"is unknown: {gap.reason}"
        raise UsageError(f"cannot rehearse: the interpreter that would run the script {why}")
    return facts, python, world


def _line(known: Facts) -> LaunchLine:
    assert known.launch is not None
    return known.launch.lines[0]


def _run(
    request: Request, options: RehearsalOptions, line: LaunchLine, python: str, world: RehearsedWorld, progress: object
) -> RehearsalRun:
    folder = line.cwd or os.getcwd()
    left = seconds_left(request, REHEARSAL_SECONDS) - ENDING_SECONDS
    plan = RehearsalPlan(
        python=python,
        argv=(world.script or world.module, *world.arguments),
        extra=world.extra,
        cwd=folder,
        environs=world.environs,
        gpus=world.gpus,
        script=world.script,
        module=world.module,
        steps=options.steps or 3,
        is_strict=options.steps is not None,
        seconds=max(1.0, min(options.seconds, left)),
        epoch_steps=options.epoch_steps,
        cuts_network=not options.has_network,
        has_scratch=options.has_scratch,
        modules=_imports(os.path.join(folder, world.script)) if world.script else (),
        expected=None if world.is_own_starter else len(world.environs),
        environ=world.variables,
    )
    try:
        return rehearse(plan, progress)  # type: ignore[arg-type]
    except OSError as error:
        place = Path(error.filename or tempfile.gettempdir())
        raise CannotWriteError(place, error.strerror or str(error)[:200]) from error


def _imports(path: str) -> tuple[str, ...]:
    """The packages that the script imports at its top, and what optimizers import: imported once for all ranks."""
    try:
        text = read_regular(path, LARGEST_SOURCE).decode("utf-8")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ()
    names = [a.name.partition(".")[0] for n in tree.body if isinstance(n, ast.Import) for a in n.names]
    names += [(n.module or "").partition(".")[0] for n in tree.body if isinstance(n, ast.ImportFrom)]
    return (*dict.fromkeys(names), *(("torch._dynamo",) if "optim" in text or ".step(" in text else ()))


def _facts(run: RehearsalRun, world: RehearsedWorld) -> Rehearsal:
    comparison = run.comparison
    for track in comparison.tracks.values():
        if track.index is not None and not world.is_own_starter:
            track.node, track.local_rank = divmod(track.index, world.per_node)
        else:
            track.node = 0
    seen = Circumstances(
        nodes=world.nodes,
        asked=world.asked,
        torch=run.torch,
        seconds=run.seconds,
        isolation=run.isolation,
        stacks=run.stacks,
        is_out_of_time=run.is_out_of_time,
        folder=os.getcwd(),
    )
    return summary(comparison, _texts(files_named(comparison)), seen)


def _texts(paths: Iterable[str]) -> dict[str, str]:
    """The texts of the user's files; one that cannot be read is left out."""
    texts = {}
    for path in paths:
        try:
            if os.path.getsize(path) <= LARGEST_SOURCE:
                texts[path] = text_of_regular(path, LARGEST_SOURCE)
        except OSError:
            continue  # made by the script in its own view of the folder, or removed
    return texts


def _failures(run: RehearsalRun, rehearsal: Rehearsal) -> tuple[str, ...]:
    """What ended the rehearsal before it had seen what was asked for, unless the script's own fault did."""
    if run.start_error:
        last = [line for line in run.start_error.strip().splitlines() if line.strip()][-1:]
        return (f"the interpreter of the launch line could not start the rehearsal: {''.join(last)}",)
    if rehearsal.obstacle is not None:
        obstacle = rehearsal.obstacle_place
        beyond = f" beyond {obstacle}" if obstacle is not None else ""
        return (f"could not rehearse{beyond}: {rehearsal.obstacle} {rehearsal.obstacle_reason}",)
    if rehearsal.difference is not None:
        return ()
    if not rehearsal.ranks and rehearsal.others:
        return ()
    if not rehearsal.ranks:
        return ("the script started no rank: it did not join a process group",)
    if run.is_out_of_time:
        busy = sorted(
            {str(rank.place) for rank in rehearsal.ranks if rank.end is RankEnd.RUNNING and rank.place is not None}
        )
        return (
            f"the time limit ended it after {rehearsal.steps} steps{f' (at {busy[0]})' if busy else ''}; more time: --seconds N",
        )
    waiting = [r for r in rehearsal.ranks if r.end in (RankEnd.WAITING, RankEnd.RUNNING)]
    is_explained = any(
        r.end in (RankEnd.RAISED, RankEnd.KILLED, RankEnd.ENDED) for r in (*rehearsal.ranks, *rehearsal.others)
    )
    if waiting and not is_explained:
        where = waiting[0].call.place if waiting[0].call is not None else waiting[0].place
        return (f"rank {waiting[0].rank} waits at {where}, and no cause was found",)
    if rehearsal.empty_reason and not any(r.end in (RankEnd.RAISED, RankEnd.KILLED) for r in rehearsal.ranks):
        return (rehearsal.empty_reason,)
    if run.left:
        return (f"processes are still running: {', '.join(map(str, run.left))}",)
    return ()


def _subject(rehearsal: Rehearsal, world: RehearsedWorld) -> str:
    """`train.py, 4 ranks on 2 nodes (of 16), 3 steps`."""
    count = len(rehearsal.ranks)
    nodes = f" on {world.nodes} simulated nodes" if world.nodes > 1 else ""
    fewer = f" instead of {rehearsal.asked}" if rehearsal.asked is not None else ""
    steps = max((rank.steps for rank in rehearsal.ranks), default=0)
    made = f", {counted(steps, 'step')}" if steps else ""
    left = _left_out(rehearsal)
    missing = f"; not reached: {', '.join(left)}" if left else ""
    name = world.script or world.module
    return f"{name} rehearsed on CPU: {counted(count, 'rank')}{nodes}{fewer}{made}{missing}"


def _left_out(rehearsal: Rehearsal) -> list[str]:
    """What the ranks did not come to, in words: a rehearsal says nothing about it."""
    calls = [each for each in rehearsal.unreached if not each.is_branch]
    branches = [each for each in rehearsal.unreached if each.is_branch]
    found = list(rehearsal.not_reached)
    found += [f"{counted(len(calls), 'collective call')}"] if calls else []
    found += [counted(len(branches), "branch")] if branches else []
    return found


def _sections(rehearsal: Rehearsal, report: Report) -> tuple[CheckedSection, ...]:
    """What was rehearsed, what was replaced, and what the script did not come to."""
    is_whole = bool(rehearsal.ranks) and all(r.end in (RankEnd.FINISHED, RankEnd.ENDED) for r in rehearsal.ranks)
    worst = report.worst
    state = SectionState.UNKNOWN
    if worst is not None and worst is not Severity.NOTE:
        state = SectionState(worst.value)
    elif is_whole and not report.failures:
        state = SectionState.OK
    calls = sum(rank.calls for rank in rehearsal.ranks)
    ends = [r.end for r in rehearsal.ranks]
    how = "finished" if ends and all(e is RankEnd.FINISHED for e in ends) else "stopped before the end of the script"
    steps = max((r.steps for r in rehearsal.ranks), default=0)
    ran = f"{counted(len(ends), 'rank')}, {counted(steps, 'step')}, {counted(calls, 'call')}, {how}"
    code = next((f.code for f in report.findings if f.worst is not Severity.NOTE), "")
    sections = [CheckedSection("script", "script", state, ran, code)]
    if rehearsal.compared:
        sections.append(CheckedSection("compared", "compared", SectionState.NOTE, ", ".join(rehearsal.compared)))
    sections.append(CheckedSection("replaced", "replaced", SectionState.NOTE, "; ".join(_replaced(rehearsal))))
    if rehearsal.not_reached:
        text = f"{', '.join(rehearsal.not_reached)} (shorter epochs: --epoch-steps 2)"
        sections.append(CheckedSection("reached", "not reached", SectionState.SKIPPED, text))
    if rehearsal.unreached and rehearsal.difference is None:  # ranks that are ended there report no further lines
        shown = [f"{each.place} {each.what}" for each in rehearsal.unreached]
        more = f" and {len(shown) - MOST_UNREACHED} more" if len(shown) > MOST_UNREACHED else ""
        text = f"{', '.join(shown[:MOST_UNREACHED])}{more}"
        sections.append(CheckedSection("unreached", "never ran", SectionState.SKIPPED, text))
    sections.append(_isolation(rehearsal))
    return tuple(sections)


def _replaced(rehearsal: Rehearsal) -> list[str]:
    found = []
    if "nccl" in rehearsal.backend:
        found.append("nccl by gloo")
    found.append("CUDA devices by the CPU")
    return [*found, *rehearsal.standins]


def _isolation(rehearsal: Rehearsal) -> CheckedSection:
    """Whether network and files were cut off."""
    seen = rehearsal.isolation
    network = "loopback only" if seen.get("network") == "loopback" else "not cut off"
    files = (
        "writes to the working folder are discarded"
        if seen.get("files") == "overlay"
        else "the script writes to the real folder"
    )
    reason = seen.get("reason") or seen.get("files_reason") or seen.get("network_reason")
    is_safe = seen.get("files") == "overlay"
    text = f"network: {network}; {files}{f' ({reason})' if reason else ''}"
    return CheckedSection("isolation", "isolation", SectionState.NOTE if is_safe else SectionState.WARNING, text)
