"""ENV020 on a single line: every node uses its own host name as the master address."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.pod import Operator
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import SpanEdit, Word, escape
from ddpdoctor.findings import Finding
from ddpdoctor.launch.task_counts import nodes
from ddpdoctor.rules.launch.pointing import point
from ddpdoctor.rules.launch.rendezvous.launch025_to_027_031_to_033_046_rendezvous_settings import FIRST_HOST

__all__ = ["own_masters"]

_OWN = r"(\$\(\s*hostname\b[^)]*\)|`\s*hostname\b[^`]*`|\$\{?(?:HOSTNAME|SLURMD_NODENAME|POD_IP|POD_NAME)\b\}?)"
_IN_SINGLE = re.compile(_OWN)
_IN_DOUBLE = re.compile(r"\\" + _OWN)
_COPIES = (Operator.JOBSET, Operator.JOB, Operator.STATEFULSET, Operator.PYTORCHJOB, Operator.TRAINJOB)


def own_masters(launch: Launch) -> Iterator[Finding]:
    """One finding for each line that all nodes run, or for the first line of several nodes."""
    several = launch.nodes
    for line in launch.lines if len(several) < 2 else ():
        word, match = _own(line)
        if word is None or match is None or not _runs_on_many(line):
            continue
        edits = None
        if line.layer(LauncherKind.SRUN) is not None:
            at = word.start + match.start()
            edits = [SpanEdit(at, word.start + match.end(), escape(FIRST_HOST, word.context))]
        yield _own_master(launch, line, word, match, edits)
    own = [(line, word, match) for line in several for word, match in (_own(line),) if match is not None]
    if len(several) > 1 and len(own) == len(several):
        yield _own_master(launch, *own[0], None)


def _own_master(
    launch: Launch, line: LaunchLine, word: Word | None, match: re.Match[str], edits: list[SpanEdit] | None
) -> Finding:
    text = f"{match[0]:.36} makes every node its own master"
    expected = "one address for all nodes"
    return point(launch, line, word, text, expected, edits, label=f"use {expected}")


def _own(line: LaunchLine) -> tuple[Word | None, re.Match[str] | None]:
    """The word of the master address that each node expands for itself."""
    plan = line.plan
    if plan is not None and (not plan.is_multinode or plan.is_standalone):
        return None, None
    words = [v.word for layer in line.layers for v in layer.variables if v.name == "MASTER_ADDR"]
    if line.agent is not None:
        given = line.agent.given("rdzv_endpoint") or line.agent.given("master_addr")
        words = [] if given is None else [given.value_word]
        words += [assignment for word in words if (assignment := _set_inside(line, word)) is not None]
    for word in words:
        pattern = _IN_DOUBLE if word.context == '"' else _IN_SINGLE
        inside = bool(word.context) or (line.task_starter is None and (line.node is not None or line.pod is not None))
        match = pattern.search(word.raw) if inside else None
        if match is not None:
            return word, match
    return None, None


def _set_inside(line: LaunchLine, word: Word) -> Word | None:
    """The assignment, in the text for the shell of each task, of the variable that a word contains."""
    shell = next((layer.own[-1] for layer in line.layers if layer.is_shell_text), None)
    name = re.search(r"\$\{?(\w+)", word.raw)
    if shell is None or name is None or shell.context or re.search(r"\b(if|case)\b|\|\||\[ ", shell.raw):
        return None
    assigned = re.search(rf"\b{name[1]}=[^;&|\n]*", shell.raw)
    if assigned is None:
        return None
    return Word("", assigned[0], shell.start + assigned.start(), shell.start + assigned.end(), shell.raw[:1])


def _runs_on_many(line: LaunchLine) -> bool:
    """A scheduler or Kubernetes starts this line on several nodes."""
    if line.pod is not None:
        return line.pod.operator in _COPIES and (line.pod.pods or 0) > 1 and line.pod.role != "Master"
    if line.task_starter is None:
        return False
    return (nodes(line) or 0) > 1 or (line.plan is not None and line.plan.is_multinode)
