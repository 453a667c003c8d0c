"""HOST001, NET002, NET028, ENV018 as a manifest shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.host import readable
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.pod import Operator, Pod
from ddpdoctor.facts.launch.reading import Given
from ddpdoctor.facts.launch.record import Launch, Line
from ddpdoctor.facts.launch.words import Mark, is_known
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.launch.rendezvous import parse_endpoint
from ddpdoctor.rules import on_lines
from ddpdoctor.rules.environ import env018_master_addr_not_rank_zero
from ddpdoctor.rules.host import host001_shm_too_small_for_nccl
from ddpdoctor.rules.launch.pointing import agents, point
from ddpdoctor.rules.lines.memory import shm_need
from ddpdoctor.rules.net import net028_service_mesh_sidecar
from ddpdoctor.rules.net.master import unresolvable

_BY_NAME = (Operator.PYTORCHJOB, Operator.TRAINJOB)
_SERVED = (Operator.JOB, Operator.STATEFULSET)


def _at(line: Line, mark: Mark | None) -> Where:
    return Where(file=line.file) if mark is None else Where(file=line.file, line=mark.line, column=mark.column)


@on_lines(host001_shm_too_small_for_nccl.check)
def shared_memory(launch: Launch) -> Iterator[Finding]:
    """A pod of several ranks with the 64 MiB of /dev/shm that a container gets, or a volume that is too small."""
    for line in launch.lines:
        pod = line.pod
        if pod is None or line.environ.variables.get("NCCL_SHM_DISABLE") == "1":
            continue
        ranks = _ranks(line, pod)
        need = shm_need(ranks)
        if ranks < 2 or (pod.has_shm and (pod.shm_bytes is None or pod.shm_bytes >= need)):
            continue
        if pod.has_shm:
            seen = f"/dev/shm is limited to {readable(pod.shm_bytes or 0)}"
            where = _at(line, pod.shm_at)
        else:
            seen, where = "nothing is mounted on /dev/shm, which leaves it 64 MiB", _at(line, pod.at)
        yield Finding(
            f"{seen}: {ranks} ranks with NCCL need {readable(need)} or more",
            (Evidence("launch.pod.shm_bytes", seen, f"at least {readable(need)}"),),
            fix="Mount an emptyDir with medium: Memory and a sizeLimit of some GiB on /dev/shm.",
            where=where,
            severity=Severity.WARNING,
        )


def _ranks(line: Line, pod: Pod) -> int:
    """How many ranks the pod runs with a GPU each; 0 when the line does not tell that it runs several."""
    if line.starter is None or pod.gpus is None or pod.gpus < 2:
        return 0
    nproc = None if line.plan is None else line.plan.nproc
    return pod.gpus if nproc is None else min(nproc, pod.gpus)


@on_lines(unresolvable)
def host_network_names(launch: Launch) -> Iterator[Finding]:
    """A first pod that no resolver knows: a name without the pods' service, or pods that ask the host's resolver."""
    for line in launch.lines:
        pod, agent = line.pod, line.agent
        if pod is not None and agent is not None and (given := _names_no_service(line, agent, pod)) is not None:
            wanted = f"{pod.name}-0.{pod.service}" if pod.service else "a service in the pods' subdomain"
            text = f"{given.value}: the pods' service is {pod.service or 'not set'}; expected {wanted}"
            yield point(launch, line, given.value_word, text, wanted, None)
        if pod is None or pod.operator not in _BY_NAME or not pod.host_network or (pod.pods or 0) < 2:
            continue
        if pod.dns_policy not in (None, "ClusterFirst", "Default") or _has_own_address(line):
            continue
        policy = pod.dns_policy or "not set"
        yield Finding(
            f"hostNetwork with dnsPolicy {policy}: the pods ask the host's resolver for the first pod's service; "
            "expected ClusterFirstWithHostNet",
            (Evidence("launch.pod.dns_policy", policy, "ClusterFirstWithHostNet"),),
            fix="Add dnsPolicy: ClusterFirstWithHostNet beside hostNetwork: true.",
            where=_at(line, pod.host_network_at),
        )


def _names_no_service(line: Line, layer: Layer, pod: Pod) -> Given | None:
    """An address such as `train-0.train` whose second part is not the service of the pods."""
    dest = "rdzv_endpoint" if layer.given("rdzv_endpoint") else "master_addr"
    given = layer.given(dest)
    if given is None or not is_known(given.value) or pod.name is None or pod.operator not in _SERVED:
        return None
    host, _ = parse_endpoint(given.value or "")
    match = re.fullmatch(rf"{re.escape(pod.name)}-\d+\.([a-z0-9-]+)(\..*)?", host)
    return given if match and match[1] != pod.service else None


def _has_own_address(line: Line) -> bool:
    agent = line.agent
    return agent is None or any(agent.given(dest) for dest in ("master_addr", "rdzv_endpoint"))


@on_lines(net028_service_mesh_sidecar.check)
def mesh(launch: Launch) -> Iterator[Finding]:
    """A sidecar of a service mesh in the pods of a job."""
    for line in launch.lines:
        pod = line.pod
        if pod is None or not pod.is_meshed or (pod.pods or 0) < 2:
            continue
        yield Finding(
            f"a service mesh's sidecar is put into the {pod.pods} pods: expected none between ranks",
            (Evidence("launch.pod.is_meshed", "true", "false"),),
            where=_at(line, pod.mesh_at),
        )


@on_lines(env018_master_addr_not_rank_zero.check)
def other_pod(launch: Launch) -> Iterator[Finding]:
    """The master's address is a pod of the set that is not the first."""
    for line, layer, plan in agents(launch):
        pod, given = line.pod, layer.given("master_addr")
        if pod is None or pod.operator is not Operator.STATEFULSET or given is None or not is_known(given.value):
            continue
        match = re.fullmatch(rf"{re.escape(pod.name or '')}-(\d+)(\..*)?", given.value or "")
        if pod.name and match and int(match[1]) > 0 and plan.backend == "static":
            text = f"{given.value} is pod {match[1]}: expected {pod.name}-0, which has rank 0"
            yield point(launch, line, given.value_word, text, f"{pod.name}-0{match[2] or ''}", None)
