"""NET007, NET009 as a manifest shows them: a NetworkPolicy closes the job's ports between its own pods."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch.pod import Operator, Pod
from ddpdoctor.facts.launch.record import Launch, Line
from ddpdoctor.findings import Evidence, Finding, Where
from ddpdoctor.rules import on_lines
from ddpdoctor.rules.net.links import blocked
from ddpdoctor.rules.net.master import port_dropped

EPHEMERAL = (32768, 60999)
"""The ports that Linux gives to NCCL, to Gloo and to the second store of c10d."""
DEFAULT_PORTS = {Operator.PYTORCHJOB: 23456, Operator.TRAINJOB: 29500}
"""What the operator sets where the line names no port."""


@on_lines(port_dropped)
def master_port_closed(launch: Launch) -> Iterator[Finding]:
    """No rule of the policies lets the job's pods connect to the master port."""
    for line, pod, port in _closed(launch):
        if _is_shut(pod, port):
            named = "any port" if port is None else f"its master port {port}"
            text = f"the policy lets no pod of the job connect to {named}, it opens {_told(pod)}"
            yield _finding(line, pod, f"{text}: expected all TCP ports between the pods of the job")


@on_lines(blocked)
def only_some_open(launch: Launch) -> Iterator[Finding]:
    """The policies open the master port and not the random ones of NCCL and Gloo."""
    for line, pod, port in _closed(launch):
        if not _is_shut(pod, port) and not _covers(pod, EPHEMERAL):
            text = f"between the job's pods the policy opens {_told(pod)} alone, and NCCL and Gloo choose random ones"
            yield _finding(line, pod, f"{text}: expected all TCP ports between the pods of the job")


def _closed(launch: Launch) -> Iterator[tuple[Line, Pod, int | None]]:
    """One line for each policy that closes ports between the pods of a job on several nodes, with its master port."""
    seen = set()
    for line in launch.lines:
        pod, plan = line.pod, line.plan
        if pod is None or pod.open_ports is None or (line.file, pod.policy_at) in seen:
            continue
        if (pod.pods or 0) < 2 and not (plan is not None and plan.is_multinode):
            continue
        seen.add((line.file, pod.policy_at))
        given = line.agent is not None and (line.agent.given("master_port") or line.agent.given("rdzv_endpoint"))
        yield line, pod, plan.port if plan is not None and given else DEFAULT_PORTS.get(pod.operator)


def _is_shut(pod: Pod, port: int | None) -> bool:
    return not pod.open_ports or (port is not None and not _covers(pod, (port, port)))


def _covers(pod: Pod, wanted: tuple[int, int]) -> bool:
    return any(first <= wanted[0] and wanted[1] <= last for first, last in pod.open_ports or ())


def _told(pod: Pod) -> str:
    ports = [str(first) if first == last else f"{first}-{last}" for first, last in pod.open_ports or ()]
    return f"port{'s' * (len(ports) > 1 or '-' in ports[0])} {', '.join(ports)}" if ports else "no port"


def _finding(line: Line, pod: Pod, message: str) -> Finding:
    mark = pod.policy_at
    where = Where(file=line.file) if mark is None else Where(file=line.file, line=mark.line, column=mark.column)
    evidence = (Evidence("launch.pod.open_ports", _told(pod), "all TCP ports"),)
    fix = "Add a rule without ports: from (and to) a podSelector with the labels of the job's own pods."
    return Finding(message, evidence, fix=fix, where=where)
