"""`ddpdoctor collect`: the facts of this node that a bug report needs, as one JSON file without secrets."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ddpdoctor.app.facts_source import facts_for
from ddpdoctor.app.output_file import CannotWriteError, check_target, write_file
from ddpdoctor.app.request import seconds_left
from ddpdoctor.light_dataclass import dataclass

if TYPE_CHECKING:
    from ddpdoctor.app.request import Request
    from ddpdoctor.facts.environ import Environ
    from ddpdoctor.facts.hang import Hang
    from ddpdoctor.facts.record import Facts
    from ddpdoctor.system.machine import Machine

__all__ = ["Collected", "collect_node"]

T = TypeVar("T")

PRIVATE = 0o600
"""Facts name hosts, users and processes: only the owner may read the file."""
WATCH_SECONDS = 1.0
PART_SECONDS = 12.0
"""Time limit for each of: running ranks, launch, list of logs: /proc and folders may not answer."""
PEER_SECONDS = 8.0
"""How long the ranks of a node wait for each other: Python starts slowly on a cold shared file system."""
LEADER_SECONDS = 45.0


@dataclass(frozen=True)
class Collected:
    """The JSON text, the file that holds it (None for standard output), and what could not be done."""

    text: str
    path: Path | None
    failures: tuple[str, ...]


def collect_node(request: Request, output_file: Path | None, *, hosts_as_aliases: bool) -> Collected | None:
    """Collect this node's facts, or read saved ones, and write them to the file if one is named.

    Returns:
        None on a rank whose node another rank collects for.

    Raises:
        UsageError: the file cannot be written.
    """
    from ddpdoctor.collectors import SECONDS

    path = request.output if output_file is None else output_file
    if path is not None and str(path) == "-":
        path = None
    if path is not None:
        check_target("-o", path)
    facts, failures = facts_for(request, tuple(SECONDS))
    if request.facts is None:
        if facts.environ is not None and not _writes(facts.environ, path):
            return None
        path = _of_this_node(path, facts)
        facts = _with_running_job(facts, request)
    text = json.dumps(_cleaned(facts, hosts_as_aliases), indent=1) + "\n"
    return Collected(text, path, (*failures, *(_written(path, text) if path is not None else ())))


def _written(path: Path, text: str) -> tuple[str, ...]:
    """Write the file; the reason if it could not be written."""
    try:
        write_file(path, text, PRIVATE)
    except CannotWriteError as error:
        return (f"write {path}: {error.reason}",)
    return ()


def _cleaned(facts: Facts, hosts_as_aliases: bool) -> Any:
    """The facts as JSON without secrets: removed by name when they were gathered, and by shape here."""
    from ddpdoctor.facts.codec import encode, schema_names
    from ddpdoctor.privacy.aliases import with_aliases
    from ddpdoctor.privacy.host_names import host_names_in
    from ddpdoctor.privacy.redaction import redact

    saved = redact(encode(facts))
    return with_aliases(saved, host_names_in(saved), schema_names(type(facts))) if hosts_as_aliases else saved


def _with_running_job(facts: Facts, request: Request) -> Facts:
    """The facts with the ranks that run here, the launch, the kernel's last warnings and the list of logs."""
    from ddpdoctor.collectors.hang.pyspy import find_pyspy
    from ddpdoctor.collectors.support import collect_launch_of, collect_logs
    from ddpdoctor.facts.gaps import Gap
    from ddpdoctor.system.machine import this_machine
    from ddpdoctor.system.timeouts import CallTimeout, call_with_timeout

    machine = this_machine(seconds_left(request))
    if not request.quiet and find_pyspy(machine.environ) is not None:
        request.listener.notice("stacks of running ranks are read with py-spy --nonblocking")
    gaps = list(facts.gaps)

    def limited(section: str, work: Callable[[], T]) -> T | None:
        try:
            return call_with_timeout(work, machine.deadline.cut(PART_SECONDS).left)
        except CallTimeout as late:
            gaps.append(Gap(section, str(late)))
            return None

    hang = limited("hang", lambda: _running_ranks(machine))
    pids = [os.getpid(), *(process.pid for process in (hang.processes if hang is not None else ()))]
    launch = limited("launch", lambda: collect_launch_of(machine, pids))
    log = limited("log", lambda: collect_logs(machine))
    return replace(facts, hang=hang, log=log, launch=launch, gaps=tuple(gaps))


def _running_ranks(machine: Machine) -> Hang:
    from ddpdoctor.collectors.hang.running_job import HangRequest, collect_hang

    return collect_hang(machine, HangRequest(seconds=WATCH_SECONDS, with_own=True))


def _writes(environ: Environ, path: Path | None) -> bool:
    """Whether this rank writes for its node: the lowest collecting rank does. The others wait until it has exited."""
    size, local = environ.local_world_size or 1, environ.local_rank
    if size < 2 or local is None:
        return True
    started = time.monotonic()
    peers = _peers(environ)
    while len(peers) < size and time.monotonic() - started < PEER_SECONDS and 0 not in peers:
        time.sleep(0.1)
        peers = _peers(environ)
    lowest = min(peers, default=local)
    if lowest >= local:
        return not (
            local > 0
            and path is not None
            and _is_newer(path, time.time() - (time.monotonic() - started) - PEER_SECONDS)
        )
    while time.monotonic() - started < LEADER_SECONDS and os.path.exists(f"/proc/{peers[lowest]}"):
        time.sleep(0.1)
    return False


def _peers(environ: Environ) -> dict[int, int]:
    """The PID by local_rank of the ranks of this job on this node that collect as well."""
    from ddpdoctor.collectors.hang.rank_processes import find, processes
    from ddpdoctor.system.machine import Root

    ranks = find(Root(), processes(Root()), with_own=True).ranks
    return {
        other.local_rank: entry.pid
        for entry, other in ranks
        if entry.is_own and other.local_rank is not None and other.world_size == environ.world_size
        if all(other.get(name) == environ.get(name) for name in ("TORCHELASTIC_RUN_ID", "SLURM_STEP_ID", "MASTER_PORT"))
    }


def _is_newer(path: Path, moment: float) -> bool:
    try:
        return path.stat().st_mtime > moment
    except OSError:
        return False


def _of_this_node(path: Path | None, facts: Facts) -> Path | None:
    """One file per node, also on a shared file system: `facts.json` of node 0 is `facts.HOST.json` on the others."""
    environ = facts.environ
    if path is None or environ is None or not environ.node_rank or not environ.is_multi_node:
        return path
    return path.with_name(f"{path.stem}.{facts.hostname}{path.suffix}")
