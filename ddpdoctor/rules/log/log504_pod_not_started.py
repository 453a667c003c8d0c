"""LOG504: Kubernetes pods that never ran."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.logs.pod_waits import waits_in
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.signatures import finding_of, retitled

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
    r"Termination reason: StartError",
    r"failed to create containerd task",
    r"\bforbidden: exceeded quota: ",
    r"couldn't assign flavors to pod set",
)
RAN = (r"\bStarted container\b", r"^[a-z0-9][a-z0-9.-]*-[a-z0-9.-]+ +(\d+)/\d+ +(Running|Completed|Succeeded) ")
"""What events and `kubectl get pods` show about a pod that ran."""
YET = (r"\bis waiting to start: (?:PodInitializing|ContainerCreating)",)
"""What `kubectl logs` prints for a pod that has not started yet."""
_POD = re.compile(r"\b(?:pods?/|in pod (?=\S+_)|in pod \"(?=\S+\"))([a-z0-9][a-z0-9.-]*)")
INITS = (
    r"Back-off restarting failed container (?:[\w.]+-)*init",
    r"\bInit:(?:CrashLoopBackOff|Error|OOMKilled)\b",
)
"""An init container that fails repeatedly: the pod's own containers never start."""
OF_MASTER = (
    "Start the master pod, and check its Service and the pod's DNS (`kubectl get svc,endpoints`): the init container waits until "
    "the master's name resolves (NET003)"
)
MOST_USEFUL = 5
"""The highest rank of a second reason that is worth a sentence."""
_STARTED = re.compile(r"Started container (?!(?:[\w.]+-)*init)")
_ROW = re.compile(r"^([a-z0-9][a-z0-9.-]*) +\d+/\d+ ")


@cause("LOG504", "pod-not-started", Severity.ERROR, signatures=(*WAITS, *INITS, *YET, *RAN))
def pod_not_started(log: Log) -> Iterator[Finding]:
    """A pod of the job never ran.

    ## Why it matters
    The events of one pod show `0/12 nodes are available: 12 Insufficient nvidia.com/gpu`, `ImagePullBackOff`, or `FailedMount`.
    The other pods only print `Rendezvous'ing worker group` and, 10 minutes later, `RendezvousTimeoutError`.

    ## Fix
    Run `kubectl describe pod POD`: the last event shows what it waits for, which decides the fix: free GPUs, a toleration, a
    label, a volume, a quota, or the image. Start all pods of a job together or none (gang scheduling, minAvailable of its
    PodGroup).

    ## Example

        Warning  FailedScheduling  0/12 nodes are available: 12 Insufficient nvidia.com/gpu.

        # before
        resources: {limits: {nvidia.com/gpu: 16}}
        # after: at most the GPUs of one node
        resources: {limits: {nvidia.com/gpu: 8}}
    """
    ran = {_pod(line) for line in matching_lines(log, RAN)}
    lines = [line for line in matching_lines(log, WAITS) if _pod(line) not in ran]
    if lines:
        pods = ", ".join(sorted({pod for line in lines if (pod := _pod(line)) is not None}))
        yield _with_reason(log, lines, f"{pods or 'a pod'} never ran")
    yet = [line for line in matching_lines(log, YET) if _pod(line) not in ran]
    if yet and not lines:
        pods = ", ".join(sorted({pod for line in yet if (pod := _pod(line)) is not None}))
        name = pods if pods and "," not in pods else "POD"
        title = f"{pods or 'a pod'} has not started yet"
        undetermined = f"Unknown what it waits for: run `kubectl describe pod {name}` to decide"
        yield replace(_of_pods(log, yet, title, undetermined), severity=Severity.WARNING)
    started = {line.source: line.number for line in matching_lines(log, RAN) if _STARTED.search(line.text)}
    inits = [
        line
        for line in matching_lines(log, INITS)
        if _pod(line) not in ran and line.number > started.get(line.source, 0)
    ]
    if inits:
        pods = ", ".join(sorted({pod for line in inits if (pod := _pod(line)) is not None}))
        title = f"{pods or 'a pod'} never ran: its init container fails repeatedly"
        is_of_master = any("init-pytorch" in line.text for line in inits)
        yield replace(_of_pods(log, inits, title), fix=OF_MASTER if is_of_master else "")


def _with_reason(log: Log, lines: list[LogLine], title: str) -> Finding:
    """The finding with the reason that decides why the pods wait, and what to do about it and about the next one."""
    waits = waits_in(line.text for line in lines)
    if not waits:
        return _of_pods(log, lines, title)
    deciding = [line for line in lines if waits[0] in waits_in([line.text])]
    others = [f"Then: {wait.fix}" for wait in waits[1:2] if wait.rank <= MOST_USEFUL]
    found = _of_pods(log, [*deciding, *(line for line in lines if line not in deciding)], f"{title}: {waits[0].why}")
    return replace(found, fix=". ".join((waits[0].fix, *others)))


def _of_pods(log: Log, lines: list[LogLine], title: str, undetermined: str = "") -> Finding:
    """The finding under a title that already names the pods."""
    found = replace(finding_of(log, lines, title, blames_speaker=True), said_by="")
    pods = {_pod(line) for line in lines}
    if len(pods) == 1 and found.where.host is None:
        found = replace(found, where=replace(found.where, host=pods.pop()))
    return retitled(found, title, undetermined)


def keep_failing(log: Log) -> Iterator[Finding]:
    """Pods whose container ends soon after each start; its own log has the reason."""
    of_init = matching_lines(log, INITS)
    running = {_pod(line) for line in matching_lines(log, RAN[1:])}
    rows = [line for name in ("back_off", "pod_row") for line, _ in context_lines(log, name)]
    lines = [
        line
        for line in rows
        if line not in of_init and _pod(line) not in running and ("Back-off" in line.text or "CrashLoop" in line.text)
    ]
    if lines:
        pods = ", ".join(sorted({pod for line in lines if (pod := _pod(line)) is not None}))
        name = pods if pods and "," not in pods else "POD"
        title = f"{pods or 'a pod'}: its container ends soon after each start"
        fix = f"Run `kubectl logs {name} --previous`, which shows what the container printed before it ended"
        yield replace(_of_pods(log, lines, title), fix=fix)


def _pod(line: LogLine) -> str | None:
    found = _POD.search(line.text) or _ROW.match(line.text)
    return found[1] if found else line.who.host
