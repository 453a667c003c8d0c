"""NET011, NET012, NET018 as lines show them: ports of a container, nobody who hosts the store, a store of an earlier run."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.findings import Finding
from ddpdoctor.launch.container import container_of
from ddpdoctor.launch.jobs import job_of_launch
from ddpdoctor.rules import on_lines
from ddpdoctor.rules.launch.pointing import agents, point, replace
from ddpdoctor.rules.net import net012_rdzv_host_mismatch, net018_rendezvous_store_stale
from ddpdoctor.rules.net.links import store_port

on_lines(net018_rendezvous_store_stale.check)(net018_rendezvous_store_stale.check)


@on_lines(net012_rdzv_host_mismatch.check)
def not_hosted(launch: Launch) -> Iterator[Finding]:
    """Lines of which no node will host the store."""
    yield from net012_rdzv_host_mismatch.check(launch, job=job_of_launch(launch)) or ()


@on_lines(store_port)
def published(launch: Launch) -> Iterator[Finding]:
    """A container that publishes the endpoint's port alone, with the c10d rendezvous."""
    for line, _, plan in agents(launch):
        box = container_of(line)
        if box is None or not box.is_bridged or not plan.is_multinode or plan.backend != "c10d" or plan.is_standalone:
            continue
        if plan.port not in box.ports or len(box.ports) > 100:
            continue
        text = (
            f"the container publishes {len(box.ports)} port{'s' * (len(box.ports) > 1)}, {plan.port} among them, and c10d "
            "gives the workers a second, random one: expected --network=host"
        )
        word = next((g.value_word for g in box.layer.reading.given if g.flag in ("-p", "--publish")), box.run)
        edits = [
            replace(w, "--network=host")
            for w in [word]
            if w is not box.run and "=" in w.text and w.text.startswith("-")
        ]
        yield point(launch, line, word, text, "--network=host", edits or None)
