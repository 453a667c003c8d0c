"""Files of other schedulers that hold launch commands: SkyPilot tasks, Docker Compose files and Dockerfiles."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import UNKNOWN, Mark
from ddpdoctor.facts.submission import Submission, WordList
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.evaluator.compose import hosts_of_compose, names_of, run_of_compose, services_of
from ddpdoctor.launch.evaluator.imagined_run import ImaginedRun
from ddpdoctor.launch.evaluator.jobs import ImaginedJob, jobs_of_run
from ddpdoctor.launch.evaluator.skypilot import run_of_skypilot, task_of
from ddpdoctor.launch.evaluator.submissions import submission_of
from ddpdoctor.launch.lookup import NO_FILES, FileLookup
from ddpdoctor.launch.manifests.compose_checks import refused_services
from ddpdoctor.launch.manifests.schema import refused_of
from ddpdoctor.launch.manifests.task_fields import COMPOSE, SKYPILOT
from ddpdoctor.launch.manifests.yaml_nodes import At, documents, text_of
from ddpdoctor.launch.shell.reader import lines_of_shell
from ddpdoctor.launch.shell.text import ShellSource
from ddpdoctor.light_dataclass import dataclass

__all__ = ["TaskFile", "dockerfile_task", "yaml_task"]

_SKYPILOT = ("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "SKYPILOT_NUM_NODES", "SKYPILOT_NUM_GPUS_PER_NODE")
_INSTRUCTION = re.compile(r"(?im)^[ \t]*(CMD|ENTRYPOINT)[ \t]+((?:[^\\\n]|\\\n|\\.)*)")
_EXPANDED = re.compile(r"\$\{?([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class TaskFile:
    """What such a file holds: the word for its kind, its launch lines, its jobs, and what was not understood."""

    kind: str
    lines: tuple[LaunchLine, ...]
    jobs: tuple[ImaginedJob, ...]
    submission: Submission
    left_out: tuple[str, ...] = ()


def yaml_task(text: str, file: str, version: Version, files: FileLookup = NO_FILES) -> TaskFile | None:
    """A SkyPilot task or a Compose file; None for any other YAML.

    Args:
        files: the files beside it.
    """
    roots, _ = documents(file, text)
    task = task_of(roots)
    if task is not None:
        lines = tuple(_lines_of_scalar(task.run, text, file, dict.fromkeys(_SKYPILOT, UNKNOWN), version))
        sky = _made("SkyPilot task", run_of_skypilot(task, text, file, version), text, file, lines, version)
        found = tuple(refused_of(task.root, "task", SKYPILOT))
        return replace(sky, submission=replace(sky.submission, refused=found))
    services = services_of(roots)
    if not services:
        return None
    written: list[LaunchLine] = []
    for service in services:
        command = service.at.get("command")
        if text_of(command) is not None and command is not None:
            written += _lines_of_scalar(command, text, file, {}, version)
    made = _made(
        "Compose file", run_of_compose(services, text, file, version, files), text, file, tuple(written), version
    )
    names = names_of(roots, services)
    is_alone = all(not each.is_on_host for each in services)
    hosts = hosts_of_compose(services)
    refused = (*refused_of(roots[0], "compose", COMPOSE), *refused_services(roots[0]))
    submission = replace(made.submission, names=names if is_alone else None, compose_hosts=hosts, refused=refused)
    return replace(made, submission=submission)


def _lines_of_scalar(at: At, text: str, file: str, environ: dict[str, str], version: Version) -> Iterator[LaunchLine]:
    content = text_of(at) or ""
    yield from lines_of_shell(ShellSource(content, file, environ, version, place=at.places(text)))


def _made(
    kind: str, run: ImaginedRun, text: str, file: str, lines: tuple[LaunchLine, ...], version: Version
) -> TaskFile:
    jobs = jobs_of_run(run, Launch(), file, text, version)
    submission = submission_of(file, text, run, jobs, lines)
    return TaskFile(kind, lines, jobs, submission, tuple(dict.fromkeys(run.left_out)))


def dockerfile_task(text: str, file: str, version: Version) -> TaskFile:
    """A Dockerfile: the launch line that its last CMD or ENTRYPOINT has, in the form for a shell or as a list of words."""
    lines: list[LaunchLine] = []
    lists = []
    last = {found[1].upper(): found for found in _INSTRUCTION.finditer(text)}
    for found in sorted(last.values(), key=lambda found: found.start()):
        words = _words(found[2])
        first = text.count("\n", 0, found.start(2)) + 1
        column = found.start(2) - (text.rfind("\n", 0, found.start(2)) + 1) + 1
        if words is not None:
            names = tuple(dict.fromkeys(name for word in words for name in _EXPANDED.findall(word)))
            is_shell = words[0].rpartition("/")[2] in ("sh", "bash", "dash", "ash") and "-c" in words[1:3]
            lists.append(WordList(found[1].upper(), tuple(words), () if is_shell else names, Mark(first, column)))
            continue
        rows = [0, *(each.end() for each in re.finditer("\n", found[2]))]

        def place(at: int, rows: list[int] = rows, first: int = first, column: int = column) -> Mark:
            row = max(number for number, start in enumerate(rows) if start <= at)
            return Mark(first + row, at - rows[row] + (column if row == 0 else 1), at)

        lines += lines_of_shell(ShellSource(found[2], file, {}, version, place=place))
    return TaskFile("Dockerfile", tuple(lines), (), Submission(file, word_lists=tuple(lists)))


def _words(text: str) -> list[str] | None:
    """The words of the exec form; None for the shell form."""
    if not text.lstrip().startswith("["):
        return None
    try:
        words = json.loads(text.replace("\\\n", " "))
    except ValueError:
        return None
    return words if words and all(isinstance(word, str) for word in words) else None
