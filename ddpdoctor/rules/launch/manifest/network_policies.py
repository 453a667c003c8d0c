"""NetworkPolicies of a manifest that close ports between the pods of a job."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch.pod import Operator, Pod
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.findings import Evidence, Finding, Where

DEFAULT_PORTS = {Operator.PYTORCHJOB: 23456, Operator.TRAINJOB: 29500}
"""The port that the operator sets if the line has none."""


def closing_policies(launch: Launch) -> Iterator[tuple[LaunchLine, Pod, int | None]]:
    """One line for each policy that closes ports between the pods of a job on several nodes, with the job's master port."""
    done = set()
    for line in launch.lines:
        pod, plan = line.pod, line.plan
        if pod is None or pod.open_ports is None or (line.file, pod.policy_at) in done:
            continue
        if (pod.pods or 0) < 2 and not (plan is not None and plan.is_multinode):
            continue
        done.add((line.file, pod.policy_at))
        given = line.agent is not None and (line.agent.given("master_port") or line.agent.given("rdzv_endpoint"))
        yield line, pod, plan.port if plan is not None and given else DEFAULT_PORTS.get(pod.operator)


def is_shut(pod: Pod, port: int | None) -> bool:
    return not pod.open_ports or (port is not None and not covers(pod, (port, port)))


def covers(pod: Pod, wanted: tuple[int, int]) -> bool:
    return any(first <= wanted[0] and wanted[1] <= last for first, last in pod.open_ports or ())


def open_ports_text(pod: Pod) -> str:
    ports = [str(first) if first == last else f"{first}-{last}" for first, last in pod.open_ports or ()]
    return f"port{'s' * (len(ports) > 1 or '-' in ports[0])} {', '.join(ports)}" if ports else "no port"


def policy_finding(line: LaunchLine, pod: Pod, message: str) -> Finding:
    mark = pod.policy_at
    where = Where(file=line.file) if mark is None else Where(file=line.file, line=mark.line, column=mark.column)
    evidence = (Evidence("launch.pod.open_ports", open_ports_text(pod), "all TCP ports"),)
    fix = "Allow all ports between the pods of the job: a rule without `ports`, from and to a podSelector with their labels."
    return Finding(message, evidence, fix=fix, where=where)
