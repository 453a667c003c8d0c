"""ENV020 where a line shows it by itself: every node puts in its own hostname as the master's address."""

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
    """One finding for each line that all nodes run, or for the first of the lines of several nodes."""
    several = launch.nodes
    for line in launch.lines if len(several) < 2 else ():
        word, match = _own(line)
        if word is None or match is None or not _runs_on_many(line):
            continue
        edits = None
        if line.layer(LauncherKind.SRUN) is not None:
            at = word.start + match.start()
            edits = [SpanEdit(at, word.start + match.end(), escape(FIRST_HOST, word.context))]
        yield point(launch, line, word, _told(match), "one address for all nodes", edits)
    own = [(line, *_own(line)) for line in several]
    found = [(line, word, match) for line, word, match in own if match is not None]
    if len(several) > 1 and len(found) == len(several):
        line, word, match = found[0]
        yield point(launch, line, word, _told(match), "one address for all nodes", None)


def _told(match: re.Match[str]) -> str:
    return f"{match[0]} is each node's own name, so that every node is its own master: expected the name of node rank 0"


def _own(line: LaunchLine) -> tuple[Word | None, re.Match[str] | None]:
    """The word of the master's address that each node expands for itself."""
    plan = line.plan
    if plan is not None and (not plan.is_multinode or plan.is_standalone):
        return None, None
    words = [v.word for layer in line.layers for v in layer.variables if v.name == "MASTER_ADDR"]
    if line.agent is not None:
        given = line.agent.given("rdzv_endpoint") or line.agent.given("master_addr")
        words = [] if given is None else [given.value_word]
        words += [each for word in words if (each := _set_inside(line, word)) is not None]
    for word in words:
        pattern = _IN_DOUBLE if word.context == '"' else _IN_SINGLE
        inside = bool(word.context) or (line.task_starter is None and (line.node is not None or line.pod is not None))
        match = pattern.search(word.raw) if inside else None
        if match is not None:
            return word, match
    return None, None


def _set_inside(line: LaunchLine, word: Word) -> Word | None:
    """The assignment, in the text for the shell of each task, of the variable that stands in a word."""
    shell = next((layer.own[-1] for layer in line.layers if layer.is_shell_text), None)
    name = re.search(r"\$\{?(\w+)", word.raw)
    if shell is None or name is None or shell.context or re.search(r"\b(if|case)\b|\|\||\[ ", shell.raw):
        return None
    found = re.search(rf"\b{name[1]}=[^;&|\n]*", shell.raw)
    if found is None:
        return None
    return Word("", found[0], shell.start + found.start(), shell.start + found.end(), shell.raw[:1])


def _runs_on_many(line: LaunchLine) -> bool:
    """A scheduler or Kubernetes starts this very line on several nodes."""
    if line.pod is not None:
        return line.pod.operator in _COPIES and (line.pod.pods or 0) > 1 and line.pod.role != "Master"
    if line.task_starter is None:
        return False
    return (nodes(line) or 0) > 1 or (line.plan is not None and line.plan.is_multinode)
