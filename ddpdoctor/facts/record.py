"""Facts: all that is known about one node, in sections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import Gap
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.startup import Startup

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu
    from ddpdoctor.facts.hang import Hang
    from ddpdoctor.facts.host import Host
    from ddpdoctor.facts.job import Job
    from ddpdoctor.facts.log import Log
    from ddpdoctor.facts.net import Net
    from ddpdoctor.facts.nodes import Nodes
    from ddpdoctor.facts.probe import Probe
    from ddpdoctor.facts.script import Script
    from ddpdoctor.facts.topo import Topo
    from ddpdoctor.facts.versions import Versions

__all__ = ["SCHEMA", "SECTIONS", "Facts", "late_names"]

SCHEMA = "ddpdoctor.facts/1"
SECTIONS = ("environ", "launch", "host", "net", "gpu", "topo", "versions", "script", "probe", "log", "hang", "nodes")


@dataclass(frozen=True, slots=True)
class Facts:
    """One node. A section is None when it was not asked for or could not be had: `gaps` says which and why.

    `collected_at` is UTC in ISO 8601 with a Z; `hostname` is the short one.
    `job` is told by what produced it; where it is None and there is a launch, the engine makes it from the launch lines.
    `startup` is there only where this machine was searched for what the launch line starts: in `check`.
    """

    schema: str
    collected_at: str
    hostname: str
    environ: Environ | None = None
    launch: Launch | None = None
    host: Host | None = None
    net: Net | None = None
    gpu: Gpu | None = None
    topo: Topo | None = None
    versions: Versions | None = None
    script: Script | None = None
    probe: Probe | None = None
    log: Log | None = None
    hang: Hang | None = None
    nodes: Nodes | None = None
    job: Job | None = None
    startup: Startup | None = None
    gaps: tuple[Gap, ...] = ()


def late_names() -> dict[str, type]:
    """The sections' types that a command imports only when it has them: the codec reads facts by their names."""
    from ddpdoctor.facts.gpu import Gpu
    from ddpdoctor.facts.hang import Hang
    from ddpdoctor.facts.host import Host
    from ddpdoctor.facts.job import Job
    from ddpdoctor.facts.log import Log
    from ddpdoctor.facts.net import Net
    from ddpdoctor.facts.nodes import Nodes
    from ddpdoctor.facts.probe import Probe
    from ddpdoctor.facts.script import Script
    from ddpdoctor.facts.topo import Topo
    from ddpdoctor.facts.versions import Versions

    return {each.__name__: each for each in (Gpu, Hang, Host, Job, Log, Net, Nodes, Probe, Script, Topo, Versions)}
