"""LOG504: pods of Kubernetes that never ran."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.log import Line, Log
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.log.signatures import finding_of, matching

__all__: list[str] = []

WAITS = (
    r"\bFailedScheduling\b",
    r"\bFailedMount\b",
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
_POD = re.compile(r"\bpods?/([a-z0-9][a-z0-9.-]*)")
_ROW = re.compile(r"^([a-z0-9][a-z0-9.-]*) +\d+/\d+ ")


@rule("LOG504", "pod-not-started", Severity.ERROR, signatures=(*WAITS, *RAN))
def pod_not_started(log: Log) -> Iterator[Finding]:
    """A pod of the job never ran.

    ## Why it matters
    "0/12 nodes are available: 12 Insufficient nvidia.com/gpu", "ImagePullBackOff" or "FailedMount" stands in the events of one
    pod; all that the others print is "Rendezvous'ing worker group" and, ten minutes later, RendezvousTimeoutError.

    ## Fix
    kubectl describe pod POD: the last event says what it waits for. Start all pods of a job together or not at all (gang
    scheduling: minAvailable of its PodGroup).
    """
    ran = {_pod(line) for line in matching(log, RAN)}
    lines = [line for line in matching(log, WAITS) if _pod(line) not in ran]
    if lines:
        pods = ", ".join(sorted({pod for line in lines if (pod := _pod(line)) is not None}))
        yield finding_of(log, lines, f"{pods or 'A pod'} never ran", blames_speaker=True)


def _pod(line: Line) -> str | None:
    found = _POD.search(line.text) or _ROW.match(line.text)
    return found[1] if found else line.who.host
