"""VERSION502: nodes whose versions of ddpdoctor use different protocols."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.nodes import Nodes
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.node_findings import named


@cause("VERSION502", "ddpdoctor-version-differs", Severity.ERROR)
def ddpdoctor_version_differs(nodes: Nodes) -> Iterator[Finding]:
    """The nodes run versions of ddpdoctor that are not compatible.

    ## Why it matters
    They cannot join one check, so nothing that needs several nodes was examined. The nodes also use different
    environments or images, so the job's own packages may differ as well.

    ## Fix
    Start the job from one environment or image on all nodes; run `ddpdoctor --version` on each of them to find the
    old one.

    ## Example

        node1 and node 0 (node0) run incompatible versions of ddpdoctor

        # before, on node1
        ddpdoctor --version          # an older version
        # after, on every node
        pip install -U ddpdoctor
    """
    others = [stranger for stranger in nodes.strangers if stranger.protocol is not None]
    if others:
        hosts = list(dict.fromkeys(stranger.host for stranger in others))
        yield Finding(
            f"{', '.join(hosts[:6])} and {named(nodes.nodes)} run incompatible versions of ddpdoctor",
            tuple(Evidence(f"nodes.strangers[{other.host}].protocol", str(other.protocol)) for other in others),
            where=Where(peer=hosts[0] if len(hosts) == 1 else None),
            severity=Severity.NOTE if nodes.proves and nodes.is_complete and len(nodes.nodes) > 1 else None,
        )
