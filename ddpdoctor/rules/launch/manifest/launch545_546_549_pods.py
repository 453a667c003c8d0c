"""LAUNCH545, LAUNCH546, LAUNCH549: Services, Jobs and Ray clusters that do not fit the job in their pods."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch.words import Mark
from ddpdoctor.facts.submission import ClusterService, PodSet, Submission
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.submitted import agents_of, at_mark, count_of, mark_of, masters_of

__all__: list[str] = []


@cause("LAUNCH545", "service-misses-master", Severity.ERROR)
def service_misses_master(submission: Submission) -> Iterator[Finding]:
    """The Service in the master address does not route to the pod of rank 0.

    ## Why it matters
    With a selector that fits no pod the name does not resolve; a Service with a cluster IP forwards only the ports
    that it lists. With a Service over all pods, some connections go to pods that do not listen: `Connection refused`,
    or a wait.

    ## Fix
    Use the name of the pod with rank 0: `trainer-0.SERVICE`.

    The Service must be headless (`clusterIP: None`), with a selector that fits the pods.

    ## Example
        error[LAUNCH545]: Service ddp spreads connections over 2 pods, but only rank 0 listens

        # before
        --master-addr=ddp

        # after
        --master-addr=trainer-0.ddp

    ## Source
    kubernetes.io, "Service" and "DNS for Services and Pods".
    """
    services = {service.name: service for service in submission.services}
    told = set()
    for host, port, pods, mark in masters_of(submission):
        labels = host.split(".")
        is_pod = len(labels) > 1 and labels[1] in services and labels[0] not in services
        service = services.get(labels[1] if is_pod else labels[0])
        found = None if service is None else _wrong(submission, service, is_pod, port, pods, mark)
        if found is not None and (service, mark.line) not in told:
            told.add((service, mark.line))
            yield found
    for step, task, agent in agents_of(submission):  # pods that are objects of their own, each with its own command
        host, port = agent.plan.host or "", agent.plan.port
        service = services.get(host.partition(".")[0])
        word = agent.plan.settings["rdzv_endpoint"].word or agent.plan.settings["master_addr"].word
        if service is None or not agent.plan.is_multinode or len(step.hosts) > 1:
            continue
        mark = mark_of(task, word)
        found = None if service.is_headless else _port_missing(submission, service, port, mark)
        if found is not None and (service, mark.line) not in told:
            told.add((service, mark.line))
            yield found


def _wrong(
    submission: Submission, service: ClusterService, is_pod: bool, port: int | None, pods: int, mark: Mark
) -> Finding | None:
    """What keeps a Service from leading to rank 0."""
    if service.pods == ():
        text = f"the selector of Service {service.name:.40} fits no pod of this manifest"
        at = service.selector_at or mark
        return at_mark(submission, at, text, seen="no pod", expected="the pods' labels", label="use the pods' labels")
    if is_pod and not service.is_headless:
        text = f"Service {service.name:.40} is not headless, so its pods have no names"
        expected = "clusterIP: None"
        at = service.ip_at or mark
        return at_mark(submission, at, text, seen="a cluster IP", expected=expected, label=f"add {expected}")
    if not is_pod and service.pods is not None and len(service.pods) > 1:
        text = f"Service {service.name:.40} spreads connections over {len(service.pods)} pods, but only rank 0 listens"
        expected = f"{service.pods[0]}.{service.name}"
        return at_mark(submission, mark, text, seen=service.name, expected=expected, label="name the pod of rank 0")
    return _port_missing(submission, service, port, mark) if not is_pod and not service.is_headless else None


def _port_missing(submission: Submission, service: ClusterService, port: int | None, mark: Mark) -> Finding | None:
    """A Service with a cluster IP forwards only the ports that it lists."""
    offered = [outside for outside, _ in service.ports]
    if offered and port is not None and port not in offered:
        text = f"Service {service.name:.40} has port {offered[0]}, but the job uses {port}"
        at = service.ports_at or mark
        return at_mark(submission, at, text, seen=str(offered[0]), expected=str(port), label=f"add port {port}")
    return None


@cause("LAUNCH546", "pods-not-at-the-same-time", Severity.ERROR)
def pods_not_at_the_same_time(submission: Submission) -> Iterator[Finding]:
    """A Kubernetes Job runs fewer pods at a time than the launcher in them waits for.

    ## Why it matters
    `parallelism` limits how many pods run at once. The first ones wait for the others, which start only when the first
    ones end: all of them fail with a timeout.

    ## Fix
    Set `parallelism` to the number of `completions`.

    ## Example
        error[LAUNCH546]: 1 of 2 pods runs at a time, but torchrun waits for 2

        # before
        completions: 2
        parallelism: 1

        # after
        completions: 2
        parallelism: 2
    """
    for each in submission.pod_sets:
        if each.at_once >= each.needed:
            continue
        for _, task, agent in agents_of(submission, certain=False):
            expected = agent.plan.nnodes
            if task.host not in each.pods or expected is None or expected[0] <= each.at_once:
                continue
            if each.is_ordered:
                yield _started_in_order(submission, each, expected[0])
                break
            verb = "runs" if each.at_once == 1 else "run"
            text = f"{each.at_once} of {each.needed} pods {verb} at a time, but torchrun waits for {expected[0]}"
            meant = f"parallelism: {each.needed}"
            yield at_mark(submission, each.at, text, seen=str(each.at_once), expected=meant, label=f"use {meant}")
            break


def _started_in_order(submission: Submission, pods: PodSet, expected: int) -> Finding:
    text = f"the StatefulSet starts a pod when the one before is ready, but torchrun waits for {expected}"
    meant = "podManagementPolicy: Parallel"
    fix = f"Set `{meant}`, unless the probe succeeds before the rendezvous."
    warning = Severity.WARNING
    return at_mark(
        submission, pods.at, text, seen="OrderedReady", expected=meant, label=f"use {meant}", severity=warning, fix=fix
    )


@cause("LAUNCH549", "ray-told-other-gpus", Severity.ERROR)
def ray_told_other_gpus(submission: Submission) -> Iterator[Finding]:
    """Ray is given more GPUs than the containers of its pods have.

    ## Why it matters
    Ray places as many workers on the pod as it was given GPUs. Those without a GPU fail with `CUDA error: invalid device
    ordinal`, or share a GPU, on which NCCL fails with `Duplicate GPU detected`.

    ## Fix
    Leave `num-gpus` out: KubeRay takes it from the container's limits.

    ## Example
        error[LAUNCH549]: num-gpus is 8, but the container has 4 GPUs

        # before
        rayStartParams:
          num-gpus: "8"

        # after
        rayStartParams: {}

    ## Source
    ray-project/kuberay, ray-operator/controllers/ray/common/pod.go.
    """
    for group in submission.ray_groups:
        if (
            group.told is not None and group.told > group.gpus > 0
        ):  # without a limit the numbers may be made up on purpose
            text = f"num-gpus is {group.told}, but the container has {count_of(group.gpus, 'GPU')}"
            expected = str(group.gpus)
            yield at_mark(submission, group.at, text, seen=str(group.told), expected=expected, label=f"use {expected}")
