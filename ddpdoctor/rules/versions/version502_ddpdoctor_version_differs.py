"""VERSION502: nodes whose ddpdoctor speaks another protocol."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.nodes import Nodes
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.node_findings import named


@cause("VERSION502", "ddpdoctor-version-differs", Severity.ERROR)
def ddpdoctor_version_differs(nodes: Nodes) -> Iterator[Finding]:
    """The nodes run versions of ddpdoctor that do not understand each other.

    ## Why it matters
    They cannot meet, so nothing that only several nodes know was looked at. It also shows that the nodes do not run the same
    environment, or the same image: the job's own packages may differ as well.

    ## Fix
    Start the job from one environment or image on all nodes; `ddpdoctor --version` on each of them shows which one is old.
    """
    others = [each for each in nodes.strangers if each.protocol is not None]
    if others:
        hosts = list(dict.fromkeys(each.host for each in others))
        yield Finding(
            f"another version of ddpdoctor runs on {', '.join(hosts[:6])} than on {named(nodes.nodes)}: expected the same on"
            " every node",
            tuple(Evidence(f"nodes.strangers[{each.host}].protocol", str(each.protocol)) for each in others),
            where=Where(peer=hosts[0] if len(hosts) == 1 else None),
        )
