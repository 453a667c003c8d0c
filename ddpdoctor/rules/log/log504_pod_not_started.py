"""LOG504: pods of Kubernetes that never ran."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.signatures import finding_of

__all__ = ["RAN", "keep_failing"]

WAITS = (
    r"\bFailedScheduling\b",
    r"\bFailedMount\b",
    r"\btasks in gang unschedulable\b",
    r"\bFailedAttachVolume\b",
    r"\bFailedCreatePodSandBox\b",
    r"\bFailed to pull image\b",
    r"\bErrImagePull\b",
    r"\bImagePullBackOff\b",
    r"\bCreateContainer(Config)?Error\b",
    r"\bRunContainerError\b",
)
RAN = (r"\bStarted container\b", r"^[a-z0-9][a-z0-9.-]*-[a-z0-9.-]+ +(\d+)/\d+ +(Running|Completed|Succeeded) ")
"""What events and `kubectl get pods` say of a pod that came to run."""
YET = (r"\bis waiting to start: (?:PodInitializing|ContainerCreating)",)
"""What `kubectl logs` says of a pod that has not started yet."""
_POD = re.compile(r"\b(?:pods?/|in pod (?=\S+_)|in pod \"(?=\S+\"))([a-z0-9][a-z0-9.-]*)")
INITS = (
    r"Back-off restarting failed container (?:[\w.]+-)*init",
    r"\bInit:(?:CrashLoopBackOff|Error|OOMKilled)\b",
)
"""An init container that fails again and again: the pod's own containers never start."""
MASTER = (
    ". This one waits until the name of the job's master resolves: the master is not there, or its Service or the pod's DNS is "
    "not (NET003)"
)
_STARTED = re.compile(r"Started container (?!(?:[\w.]+-)*init)")
_ROW = re.compile(r"^([a-z0-9][a-z0-9.-]*) +\d+/\d+ ")


@cause("LOG504", "pod-not-started", Severity.ERROR, signatures=(*WAITS, *INITS, *YET, *RAN))
def pod_not_started(log: Log) -> Iterator[Finding]:
    """A pod of the job never ran.

    ## Why it matters
    "0/12 nodes are available: 12 Insufficient nvidia.com/gpu", "ImagePullBackOff" or "FailedMount" stands in the events of one
    pod; all that the others print is "Rendezvous'ing worker group" and, ten minutes later, RendezvousTimeoutError.

    ## Fix
    kubectl describe pod POD: the last event says what it waits for. Start all pods of a job together or not at all (gang
    scheduling: minAvailable of its PodGroup).
    """
    ran = {_pod(line) for line in matching_lines(log, RAN)}
    lines = [line for line in matching_lines(log, WAITS) if _pod(line) not in ran]
    if lines:
        pods = ", ".join(sorted({pod for line in lines if (pod := _pod(line)) is not None}))
        yield finding_of(log, lines, f"{pods or 'A pod'} never ran", blames_speaker=True)
    yet = [line for line in matching_lines(log, YET) if _pod(line) not in ran]
    if yet and not lines:
        pods = ", ".join(sorted({pod for line in yet if (pod := _pod(line)) is not None}))
        name = pods if pods and "," not in pods else "POD"
        title = f"{pods or 'A pod'} has not started yet"
        undetermined = f"Undetermined for what it waits: kubectl describe pod {name} says it"
        yield replace(finding_of(log, yet, title, undetermined, blames_speaker=True), severity=Severity.WARNING)
    started = {line.source: line.number for line in matching_lines(log, RAN) if _STARTED.search(line.text)}
    inits = [
        line
        for line in matching_lines(log, INITS)
        if _pod(line) not in ran and line.number > started.get(line.source, 0)
    ]
    if inits:
        pods = ", ".join(sorted({pod for line in inits if (pod := _pod(line)) is not None}))
        why = MASTER if any("init-pytorch" in line.text for line in inits) else ""
        title = f"{pods or 'A pod'} never ran, as its init container fails again and again{why}"
        yield finding_of(log, inits, title, blames_speaker=True)


def keep_failing(log: Log) -> Iterator[Finding]:
    """Pods whose container ends soon after each start; what it prints is in its own log."""
    of_init = matching_lines(log, INITS)
    running = {_pod(line) for line in matching_lines(log, RAN[1:])}
    told = [line for name in ("back_off", "pod_row") for line, _ in context_lines(log, name)]
    lines = [
        line
        for line in told
        if line not in of_init and _pod(line) not in running and ("Back-off" in line.text or "CrashLoop" in line.text)
    ]
    if lines:
        pods = ", ".join(sorted({pod for line in lines if (pod := _pod(line)) is not None}))
        name = pods if pods and "," not in pods else "POD"
        title = f"{pods or 'A pod'}: its container ends soon after each start; kubectl logs {name} --previous says why"
        yield finding_of(log, lines, title, blames_speaker=True)


def _pod(line: LogLine) -> str | None:
    found = _POD.search(line.text) or _ROW.match(line.text)
    return found[1] if found else line.who.host
