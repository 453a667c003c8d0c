"""A launch line whose program runs in a container or on another machine: what is unknown here."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.host import Host, Limits
from ddpdoctor.facts.launch.programs import REMOTE, LauncherKind
from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.facts.record import Facts
from ddpdoctor.launch.container import ENGINES
from ddpdoctor.launch.task_counts import option

__all__ = ["unprobed", "without_what_is_elsewhere"]

_OF_CONTAINER = (
    "shm_total_bytes",
    "shm_free_bytes",
    "shm_kind",
    "limits",
    "cgroup",
    "user_threads",
    "temporary_folder",
    "extension_locks",
)
"""What a container of docker and similar tools has of its own."""


def unprobed(line: Facts | None) -> Gap | None:
    """Why ranks started here would not represent the line's ranks; None if the line runs here."""
    reason = _reason(line)
    return None if reason is None else Gap("probe", reason, Why.NOT_HERE)


def without_what_is_elsewhere(facts: Facts, line: Facts | None) -> Facts:
    """The facts of this machine without the versions and limits that do not apply to the line's ranks."""
    reason = _reason(line)
    if reason is None or line is None or line.launch is None:
        return facts
    gaps = (*(gap for gap in facts.gaps if gap.path != "versions"), Gap("versions", reason, Why.NOT_HERE))
    is_isolated = any(_layer_name(each) in ENGINES for each in line.launch.lines)
    host = _without(facts.host, reason) if facts.host is not None and is_isolated else facts.host
    return replace(facts, versions=None, host=host, gaps=gaps)


def _without(host: Host, reason: str) -> Host:
    gaps = tuple(Gap(f"host.{name}", reason, Why.NOT_HERE) for name in _OF_CONTAINER)
    return replace(
        host,
        shm_total_bytes=None,
        shm_free_bytes=None,
        shm_kind=None,
        shm_leftovers=(),
        limits=Limits(),
        cgroup=None,
        user_threads=None,
        temporary_folder=None,
        extension_locks=(),
        gaps=(*host.gaps, *gaps),
    )


def _reason(line: Facts | None) -> str | None:
    lines = line.launch.lines if line is not None and line.launch is not None else ()
    for each in lines:
        if _layer_name(each):
            return f"the launch line runs in a container ({_layer_name(each)}); run ddpdoctor check inside it"
        remote = next((layer.name for layer in each.layers if layer.name in REMOTE), None)
        if remote is not None:
            return f"the launch line runs on another machine ({remote}); run ddpdoctor check there"
    return None


def _layer_name(line: LaunchLine) -> str:
    """What starts the container of a line, "" without one."""
    layer = line.layer(LauncherKind.CONTAINER)
    if layer is not None:
        return layer.name
    srun = line.layer(LauncherKind.SRUN)
    return "srun" if option(srun, ("--container-image", "--container-name")) is not None else ""
