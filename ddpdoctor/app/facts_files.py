"""`--facts FILE`: saved facts and files of other tools, alone or mixed, also in archives."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ddpdoctor.app.archived_inputs import unpacked_inputs
from ddpdoctor.app.facts_source import ANSWER_SECONDS, UnreadableError, load_facts
from ddpdoctor.app.request import Request, UsageError, seconds_left
from ddpdoctor.app.rule_selection import rules_for
from ddpdoctor.app.tool_files import AREAS, examine_tool_files, report_of
from ddpdoctor.collectors.archives import is_archive
from ddpdoctor.collectors.log.input_kind import kind_of
from ddpdoctor.collectors.log.inputs import STDIN, inputs_of
from ddpdoctor.collectors.tool_files import head_of, tool_text
from ddpdoctor.engine import examine, united
from ddpdoctor.examined import ExaminedInput
from ddpdoctor.facts.log import InputKind
from ddpdoctor.facts.record import Facts
from ddpdoctor.findings import Report
from ddpdoctor.rules import Rule
from ddpdoctor.tool_output.readers import records_of

__all__ = ["DEFAULT_SECONDS", "is_of_tools", "of_files", "part_of_files", "report_about_files", "texts_in"]

DEFAULT_SECONDS = 120.0


def of_files(request: Request) -> Report | None:
    """The report about the files of `--facts`; None if they are what `preflight` judges: the saved facts of one machine.

    Raises:
        UsageError: several files beside a launch line.
    """
    files = () if request.facts is None else (str(request.facts), *map(str, request.more_facts))
    if not files or (len(files) == 1 and not is_of_tools(files[0], seconds_left(request, DEFAULT_SECONDS))):
        return None
    if request.launch is not None:
        raise UsageError("--facts with several files, or with the output of other tools, takes no launch command")
    started = time.monotonic()
    with unpacked_inputs(files) as archived:
        report = report_about_files(archived.paths, request, started)
        return archived.as_given(report)


def is_of_tools(path: str, seconds: float = ANSWER_SECONDS) -> bool:
    """Whether a path is an archive, or a file that another tool printed; it is waited for so many seconds."""
    if path == STDIN or is_archive(path):
        return path != STDIN
    if os.path.isdir(path):
        return False
    text, _ = tool_text(path, deadline=time.monotonic() + seconds)
    return text is not None and bool(records_of(text))


def report_about_files(paths: Sequence[str], request: Request, started: float) -> Report:
    """The report about machines whose facts, or outputs of tools, these files hold."""
    rules = rules_for(request, (*AREAS, "launch"))
    deadline = time.monotonic() + seconds_left(request, DEFAULT_SECONDS)
    texts, saved, others = texts_in(paths, deadline)
    tools = examine_tool_files(texts, [rule for rule in rules if "launch" not in rule.needs], [*paths])
    reports = [examine(facts, rules, command="check", started=started) for _, facts in saved]
    if tools.inputs or not reports:
        reports.append(report_of(tools, "check", started))
    report = united(reports) if len(reports) > 1 else reports[0]
    of_facts = [ExaminedInput(path, "facts", is_named=path in paths) for path, _ in saved]
    inputs = _named_if_none_understood([*of_facts, *tools.inputs.values(), *others])
    return replace(report, inputs=inputs, subject=report.subject or tools.subject)


def _named_if_none_understood(inputs: Iterable[ExaminedInput]) -> tuple[ExaminedInput, ...]:
    """The inputs. The user named a folder or an archive: if nothing in it was understood, nothing passed."""
    found = tuple(inputs)
    return found if any(each.is_understood for each in found) else tuple(replace(each, is_named=True) for each in found)


def part_of_files(
    command: str, sections: Sequence[str], request: Request, rules: Sequence[Rule], started: float
) -> tuple[Report, tuple[Facts, ...]]:
    """The report of one part about the file of `--facts`, which another tool printed, or about an archive of such files.

    Args:
        command: the part, such as `gpus`.
        sections: the sections of the facts that its table shows.
        request: the request.
        rules: the rules of the part.
        started: when the command started.

    Returns:
        The report, and the facts of each machine of which a file shows one of the sections.
    """
    deadline = time.monotonic() + seconds_left(request, DEFAULT_SECONDS)
    with unpacked_inputs([str(request.facts)]) as archived:
        texts, saved, others = texts_in(archived.paths, deadline)
        tools = examine_tool_files(texts, rules, [*archived.paths])
        reports = [examine(facts, rules, command=command, started=started) for _, facts in saved]
        if tools.inputs or not reports:
            reports.append(report_of(tools, command, started))
        report = united(reports) if len(reports) > 1 else reports[0]
        inputs = (*(ExaminedInput(path, "facts") for path, _ in saved), *tools.inputs.values(), *others)
        report = archived.as_given(replace(report, inputs=_named_if_none_understood(inputs)))
    machines = [facts for _, facts in saved] + [machine.facts for machine in tools.machines]
    own = sections[1:] or sections
    shown = [facts for facts in machines if any(getattr(facts, name) is not None for name in own)]
    return report, tuple(shown)


def texts_in(
    paths: Iterable[str], deadline: float = math.inf
) -> tuple[list[tuple[str, str]], list[tuple[str, Facts]], list[ExaminedInput]]:
    """The outputs of tools below these paths, the saved facts, and the files that are neither."""
    texts: list[tuple[str, str]] = []
    saved: list[tuple[str, Facts]] = []
    others: list[ExaminedInput] = []
    limit = min(deadline, time.monotonic() + ANSWER_SECONDS)
    for each in inputs_of(paths):
        kind = kind_of(head_of(each.name, min(limit, deadline)), each.name)
        text, problem = (
            (None, None)
            if kind is InputKind.FACTS
            else tool_text(each.name, deadline=limit if each.may_block else deadline)
        )
        if kind is InputKind.FACTS:
            problem = _add_facts(each.name, saved)
        elif text is not None and records_of(text):
            texts.append((each.name, text))
        else:
            problem = problem or "neither facts from `ddpdoctor collect` nor the output of a tool that ddpdoctor reads"
        if problem is not None:
            others.append(ExaminedInput(each.name, "unknown", False, reason=problem, is_named=each.is_named))
    return texts, saved, others


def _add_facts(name: str, saved: list[tuple[str, Facts]]) -> str | None:
    """Load saved facts; why they could not be read, if so."""
    try:
        saved.append((name, load_facts(Path(name))))
    except UnreadableError as error:
        return str(error).removeprefix(f"{name}: ")
    return None
