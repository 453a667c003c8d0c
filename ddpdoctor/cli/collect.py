"""`ddpdoctor collect`: what a bug report needs of this node as one JSON file, secrets removed."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ddpdoctor.app.request import Common, seconds_left

if TYPE_CHECKING:
    from ddpdoctor.facts.environ import Environ
    from ddpdoctor.facts.record import Facts

__all__ = ["collect"]

T = TypeVar("T")

PRIVATE = 0o600
"""Facts name hosts, users and processes: the file is its owner's to hand on."""
WATCH_SECONDS = 1.0
PART_SECONDS = 12.0
"""How long the running ranks, the launch and the list of logs may take each: /proc and folders may not answer."""
MATES_SECONDS = 8.0
"""How long the ranks of a node wait for each other: Python starts slowly on a cold shared file system."""
LEADER_SECONDS = 45.0


def collect(
    common: Common,
    output_file: Annotated[
        Path | None, typer.Option("-o", metavar="FILE", help="Write to FILE instead of standard output (-).")
    ] = None,
    hosts_as_aliases: Annotated[
        bool,
        typer.Option("--hosts-as-aliases", help="Replace the names and addresses of hosts, alike in all files."),
    ] = False,
) -> int:
    """Save what a bug report needs of this node, and of every rank on it, as JSON, secrets removed."""
    from ddpdoctor.app.facts_source import facts_for
    from ddpdoctor.app.output_file import CannotWriteError, check_target, write_file
    from ddpdoctor.collectors import SECONDS

    path = common.output if output_file is None else output_file
    if path is not None and str(path) == "-":
        path = None
    if path is not None:
        check_target("-o", path)
    facts, failures = facts_for(common, tuple(SECONDS))
    if common.facts is None:
        if facts.environ is not None and not _writes(facts.environ, path):
            return 0
        path = _of_this_node(path, facts)
        facts = _with_more(facts, common)
    text = json.dumps(_cleaned(facts, hosts_as_aliases), indent=1) + "\n"
    if path is None:
        sys.stdout.write(text)
    else:
        try:
            write_file(path, text, PRIVATE)
        except CannotWriteError as error:
            failures = (*failures, str(error))
    for failure in failures:
        print(f"ddpdoctor: could not {failure}", file=sys.stderr)
    if path is not None and not failures and not common.quiet:
        print(f"facts written to {path}; judge them anywhere:\nddpdoctor check --facts {path}", file=sys.stderr)
    return 3 if failures else 0


def _cleaned(facts: Facts, hosts_as_aliases: bool) -> Any:
    """The facts as JSON without secrets, by their names when they were gathered and by their shape now."""
    from ddpdoctor.facts.codec import encode, words_of
    from ddpdoctor.privacy.aliases import with_aliases
    from ddpdoctor.privacy.host_names import host_names_in
    from ddpdoctor.privacy.secrets import without_secrets_in

    saved = without_secrets_in(encode(facts))
    return with_aliases(saved, host_names_in(saved), words_of(type(facts))) if hosts_as_aliases else saved


def _with_more(facts: Facts, common: Common) -> Facts:
    """The ranks that run here, the launch, the kernel's last warnings and the list of logs."""
    from ddpdoctor.collectors.hang.pyspy import find_pyspy
    from ddpdoctor.collectors.hang.running_job import HangRequest, collect_hang
    from ddpdoctor.collectors.support import collect_launch_of, collect_logs
    from ddpdoctor.facts.gaps import Gap
    from ddpdoctor.system.machine import this_machine
    from ddpdoctor.system.timeouts import NoAnswer, answer

    machine = this_machine(seconds_left(common))
    if not common.quiet and find_pyspy(machine.environ) is not None:
        print("ddpdoctor: stacks of running ranks are read with py-spy --nonblocking", file=sys.stderr)
    gaps = list(facts.gaps)

    def waited(name: str, work: Callable[[], T]) -> T | None:
        try:
            return answer(work, machine.deadline.cut(PART_SECONDS).left)
        except NoAnswer as late:
            gaps.append(Gap(name, str(late)))
            return None

    hang = waited("hang", lambda: collect_hang(machine, HangRequest(seconds=WATCH_SECONDS, with_own=True)))
    pids = [os.getpid(), *(process.pid for process in (hang.processes if hang is not None else ()))]
    launch = waited("launch", lambda: collect_launch_of(machine, pids))
    log = waited("log", lambda: collect_logs(machine))
    return replace(facts, hang=hang, log=log, launch=launch, gaps=tuple(gaps))


def _writes(environ: Environ, path: Path | None) -> bool:
    """Whether this rank writes for its node: the lowest one that is here does, when all are. The others wait for it."""
    size, local = environ.local_world_size or 1, environ.local_rank
    if size < 2 or local is None:
        return True
    started = time.time()
    mates = _mates(environ)
    while len(mates) < size and time.time() - started < MATES_SECONDS and 0 not in mates:
        time.sleep(0.1)
        mates = _mates(environ)
    lowest = min(mates, default=local)
    if lowest >= local:
        return not (local > 0 and path is not None and _is_newer(path, started - MATES_SECONDS))
    while time.time() - started < LEADER_SECONDS and os.path.exists(f"/proc/{mates[lowest]}"):
        time.sleep(0.1)
    return False


def _mates(environ: Environ) -> dict[int, int]:
    """The ranks of this job on this node that collect as well: local_rank and pid."""
    from ddpdoctor.collectors.hang.rank_processes import find, processes
    from ddpdoctor.system.machine import Root

    found = find(Root(), processes(Root()), with_own=True).ranks
    return {
        other.local_rank: entry.pid
        for entry, other in found
        if entry.is_own and other.local_rank is not None and other.world_size == environ.world_size
        if other.get("TORCHELASTIC_RUN_ID") == environ.get("TORCHELASTIC_RUN_ID")
        if other.get("SLURM_STEP_ID") == environ.get("SLURM_STEP_ID")
        if other.get("MASTER_PORT") == environ.get("MASTER_PORT")
    }


def _is_newer(path: Path, moment: float) -> bool:
    try:
        return path.stat().st_mtime > moment
    except OSError:
        return False


def _of_this_node(path: Path | None, facts: Facts) -> Path | None:
    """Each node its own file, also on a shared file system: `facts.json` of node 0 is `facts.HOST.json` on the others."""
    environ = facts.environ
    if path is None or environ is None or not environ.node_rank or not environ.is_multi_node:
        return path
    return path.with_name(f"{path.stem}.{facts.hostname}{path.suffix}")
