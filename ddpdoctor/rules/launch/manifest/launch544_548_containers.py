"""LAUNCH544, LAUNCH548: launches in containers that Docker Compose or a Dockerfile describes."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from ddpdoctor.facts.addresses import is_loopback
from ddpdoctor.facts.launch.words import Mark, is_known
from ddpdoctor.facts.submission import Submission, Task
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.submitted import agents_of, at_mark, mark_of, option_mark

__all__: list[str] = []

_LAUNCH = re.compile(r"torchrun|accelerate|deepspeed|torch\.distributed|mpirun|mpiexec")


@cause("LAUNCH544", "master-not-a-service", Severity.ERROR)
def master_not_a_service(submission: Submission) -> Iterator[Finding]:
    """The master address in a Docker Compose file is not one of its services.

    ## Why it matters
    Compose's DNS resolves services, container names and aliases. For any other name the ranks fail with `Name or
    service not known`, or wait until a timeout.

    ## Fix
    Use the name of the service in which rank 0 runs.

    ## Example
        error[LAUNCH544]: no service is called master

        # before
        MASTER_ADDR: master

        # after
        MASTER_ADDR: rank0
    """
    names = submission.names
    if names is None:
        return
    told = set()
    for task, master, mark in _masters(submission):
        if master in names or is_loopback(master) or "." in master or _is_address(master):
            continue
        if (mark.line, master) in told:
            continue
        told.add((mark.line, master))
        services = ", ".join(sorted(names)[:4])
        text = f"no service is called {master:.30}"
        yield at_mark(submission, mark, text, seen=master, expected=services, label=f"use {task.host:.20} or another")


def _masters(submission: Submission) -> Iterator[tuple[Task, str, Mark]]:
    """The master of every launcher and rank of jobs with several hosts, and where it is written."""
    for step, task, agent in agents_of(submission):
        if len(step.hosts) > 1 and agent.plan.host:
            settings = agent.plan.settings
            word = settings["rdzv_endpoint"].word or settings["master_addr"].word
            yield task, agent.plan.host, mark_of(task, word)
    for step in submission.steps:
        for task in step.tasks if not step.job.agents and len(step.hosts) > 1 else ():
            master = task.line.environ.variables.get("MASTER_ADDR")
            if is_known(master) and master:
                yield task, master, task.set_at.get("MASTER_ADDR") or option_mark(submission, task)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


@cause("LAUNCH548", "exec-form-not-expanded", Severity.ERROR)
def exec_form_not_expanded(submission: Submission) -> Iterator[Finding]:
    """A Dockerfile's CMD or ENTRYPOINT is a list of words, in which no shell expands variables.

    ## Why it matters
    The launcher gets the words as written: torchrun fails with `ValueError: Unsupported nproc_per_node value: $NGPUS`.

    ## Fix
    Use the shell form of the instruction, without brackets.

    For example: `CMD torchrun --nproc-per-node=$NGPUS train.py`. Or name the shell: `CMD ["sh", "-c", "exec torchrun
    …"]`.

    ## Example
        ValueError: Unsupported nproc_per_node value: $NGPUS

        # before
        CMD ["torchrun", "--nproc-per-node=$NGPUS", "train.py"]

        # after
        CMD torchrun --nproc-per-node=$NGPUS train.py

    ## Source
    docs.docker.com/reference/dockerfile, "Shell and exec form".
    """
    for each in submission.word_lists:
        if each.names and any(_LAUNCH.search(word) for word in each.words[:4]):
            text = f"{each.instruction} [\u2026] leaves ${each.names[0]:.30} as it is"
            label = "no shell expands it"
            yield at_mark(submission, each.at, text, seen=each.names[0], expected="the shell form", label=label)
