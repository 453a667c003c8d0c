"""LAUNCH587, LAUNCH588: services of a Compose file that are nodes of one job, but cannot reach each other or share GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ddpdoctor.facts.submission import ComposeHost, Step, Submission
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.submitted import at_mark, masters_of

__all__: list[str] = []


@cause("LAUNCH587", "services-share-no-network", Severity.ERROR)
def services_share_no_network(submission: Submission) -> Iterator[Finding]:
    """Two nodes of a job are services of a Compose file on different networks.

    ## Why it matters
    Compose's DNS knows a service only on the networks that both have. The other nodes fail with `Name or service not known`,
    or wait until the rendezvous times out.

    ## Fix
    Give all services of the job one common network.

    ## Example
        error[LAUNCH587]: node1 shares no network with the master node0

        # before
        node0: {networks: [blue]}
        node1: {networks: [green]}

        # after
        node0: {networks: [blue]}
        node1: {networks: [blue]}

    ## Source
    docs.docker.com/compose, "Networking in Compose".
    """
    hosts = {host.host: host for host in submission.compose_hosts}
    masters = {master for master, _, _, _ in masters_of(submission)}
    for step in submission.steps if hosts else ():
        nodes = _nodes(step, hosts)
        first = next((node for node in nodes if masters & set(node.names)), None)
        if first is None or first.networks is None:
            continue
        for node in nodes:
            if node.networks is not None and not node.networks & first.networks:
                text = f"{node.host:.40} shares no network with the master {first.host:.40}"
                seen, expected = ", ".join(sorted(node.networks)), ", ".join(sorted(first.networks))
                yield at_mark(submission, node.at, text, seen=seen, expected=expected, label=f"add {expected:.40}")


@cause("LAUNCH588", "services-share-gpus", Severity.ERROR)
def services_share_gpus(submission: Submission) -> Iterator[Finding]:
    """Two nodes of a job are services of a Compose file that reserve the same GPUs.

    ## Why it matters
    Ranks of both services run on one GPU, and NCCL fails with `Duplicate GPU detected`.

    ## Fix
    Give each service its own `device_ids`.

    ## Example
        error[LAUNCH588]: node0 and node1 reserve the same GPU 0

        # before
        node0: device_ids: ["0", "1"]
        node1: device_ids: ["0", "1"]

        # after
        node0: device_ids: ["0", "1"]
        node1: device_ids: ["2", "3"]

    ## Source
    docs.docker.com/compose, "Enable GPU access with Docker Compose"; NCCL, src/init.cc (`Duplicate GPU detected`).
    """
    hosts = {host.host: host for host in submission.compose_hosts}
    for step in submission.steps if hosts else ():
        if any("gloo" in word.text for task in step.tasks for word in task.layer.reading.arguments):
            continue
        for first, second in itertools.combinations(_nodes(step, hosts), 2):
            common = [device for device in second.devices if device in first.devices]
            if not common or second.devices_at is None:
                continue
            gpus = f"GPU{'s' * (len(common) > 1)} {', '.join(common[:8])}"
            text = f"{first.host:.30} and {second.host:.30} reserve the same {gpus}"
            label = "reserve other GPUs"
            yield at_mark(submission, second.devices_at, text, seen=gpus, expected="other GPUs", label=label)
            break


def _nodes(step: Step, hosts: dict[str, ComposeHost]) -> list[ComposeHost]:
    """The services on which a job of several nodes runs."""
    names = [each.host for each in step.tasks] if step.is_certain and len(step.hosts) > 1 else []
    return [hosts[name] for name in dict.fromkeys(names) if name in hosts]
