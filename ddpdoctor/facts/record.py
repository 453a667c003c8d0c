"""Facts: everything that was collected about one node, in sections."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import Gap
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.startup import Startup
from ddpdoctor.light_dataclass import dataclass

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu
    from ddpdoctor.facts.hang import Hang
    from ddpdoctor.facts.host import Host
    from ddpdoctor.facts.job import Job
    from ddpdoctor.facts.log import Log
    from ddpdoctor.facts.net import Net
    from ddpdoctor.facts.nodes import Nodes
    from ddpdoctor.facts.probe import Probe
    from ddpdoctor.facts.rehearsal import Rehearsal
    from ddpdoctor.facts.script import Script
    from ddpdoctor.facts.submission import Submission
    from ddpdoctor.facts.topo import Topo
    from ddpdoctor.facts.versions import Versions

__all__ = ["SCHEMA", "SECTIONS", "Facts", "late_names"]

SCHEMA = "ddpdoctor.facts/1"
SECTIONS = ("environ", "launch", "host", "net", "gpu", "topo", "versions", "script", "probe", "log", "hang", "nodes")


@dataclass(frozen=True, slots=True)
class Facts:
    """One node. A section is None when it was not requested or could not be collected: see `gaps`.

    `collected_at` is UTC in ISO 8601 with a Z; `hostname` is the short one.
    `job` is set by the command that knows it; if it is None and there is a launch, the engine builds it from the launch lines.
    `submission` is there only where a job file is judged.
    `startup` is there only where this machine was searched for what the launch line starts: in `check`. `rehearsal` is there
    only where the script was rehearsed.
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
    submission: Submission | None = None
    startup: Startup | None = None
    rehearsal: Rehearsal | None = None
    gaps: tuple[Gap, ...] = ()


_LATE = {
    "Gpu": "gpu",
    "Hang": "hang",
    "Host": "host",
    "Job": "job",
    "Log": "log",
    "Net": "net",
    "Nodes": "nodes",
    "Probe": "probe",
    "Rehearsal": "rehearsal",
    "Script": "script",
    "Submission": "submission",
    "Topo": "topo",
    "Versions": "versions",
}


def late_names() -> dict[str, type]:
    """The types of sections that are imported only when needed: the codec resolves them by name."""
    return {name: getattr(import_module(f"ddpdoctor.facts.{module}"), name) for name, module in _LATE.items()}
