"""LAUNCH529: a node of a job in a container that other machines cannot reach."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import UNKNOWN, SpanEdit, Word
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import agents, point

_NETWORK = re.compile(r"--(?:network|net|publish-all|ip)|-P")
_PORT = re.compile(r"(?:[\w.\[\]:]{1,60}:)?(\d{1,5})(?::\d{1,5})?(?:/tcp)?")
"""What `--publish` takes, for one port."""


@cause("LAUNCH529", "container-without-host-network", Severity.ERROR)
def container_without_host_network(launch: Launch) -> Iterator[Finding]:
    """docker run starts a node of a multi-node job on Docker's bridge network.

    ## Why it matters
    The bridge network is private to the machine: other machines cannot connect to the container, and it advertises an address
    that they do not have. Every node waits until `DistStoreError` or `RendezvousConnectionError`.

    ## Fix
    Add `--network=host` on every machine.

    NCCL uses ports that are not known in advance, so publishing the master port alone is not enough.

    ## Example
        error[LAUNCH529]: --nnodes=2 in a container without --network=host

        # before
        docker run --gpus=all IMAGE torchrun --nnodes=2 --node-rank=0 --master-addr=HOST0 train.py

        # after
        docker run --network=host --gpus=all IMAGE torchrun --nnodes=2 --node-rank=0 --master-addr=HOST0 train.py
    """
    for line, _, plan in agents(launch):
        at, ports = _run_of_docker(line)
        if at is None or plan.nnodes is None or plan.nnodes[0] < 2 or plan.is_standalone:
            continue
        text = f"--nnodes={plan.nnodes[0]} in a container without --network=host"
        if ports:
            text = f"--nnodes={plan.nnodes[0]} in a container that publishes only port {ports[0]}"
        edits = [SpanEdit(at.end, at.end, " --network=host")]
        yield point(launch, line, at, text, "--network=host", edits, label="add --network=host")


def _run_of_docker(line: LaunchLine) -> tuple[Word | None, tuple[str, ...]]:
    """The word `run` of a `docker run` without any option about its network, and the single ports that it publishes."""
    layer = next((each for each in line.layers if each.launcher is LauncherKind.CONTAINER), None)
    if layer is None or layer.name not in ("docker", "nvidia-docker") or line.task_starter is not None:
        return None, ()
    ports = []
    for before, word in itertools.pairwise(layer.own):
        name, sign, value = word.text.partition("=")
        is_value = before.text.startswith("-") and "=" not in before.text
        if _NETWORK.fullmatch(name) or word.splits or (word.text.startswith(UNKNOWN) and not is_value):
            return None, ()
        if before.text in ("-p", "--publish"):
            ports.append(word.text)
        elif name == "--publish" and sign:
            ports.append(value)
        elif name.startswith("-p") and name != "-p":
            ports.append(name[2:])
    found = [_PORT.fullmatch(each) for each in ports]
    if len(ports) > 1 or None in found:
        return None, ()  # a range, or the ports of more than the master
    run = next((word for word in layer.own[1:3] if word.text == "run"), None)
    return run, tuple(each[1] for each in found if each is not None)
