"""A rank's output at its end: the report if it is the node's reporter, torchrun's error file, the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from ddpdoctor.facts.codec import encode
from ddpdoctor.facts.probe import Probe
from ddpdoctor.probe.rank_env import RankEnv
from ddpdoctor.system.process import LateError, output_within, start
from ddpdoctor.system.selfexec import command

__all__ = ["write_report"]

REPORT_SECONDS = 15.0


def write_report(probe: Probe, rank_env: RankEnv | None, is_first: bool, options: Any, started: float) -> int:
    """Print, write and pass on the verdict, if this rank `is_first` on its node. Returns the exit code of this rank."""
    if probe.has_failed:
        _write_error_file(probe)
    code = 3 if probe.out_of_time else 1 if probe.has_failed and options.fail_on != "never" else 0
    is_head = rank_env is None or rank_env.rank == 0
    if options.hand_over:
        sys.stdout.write(json.dumps({"probe": encode(probe), "is_first": is_first, "is_head": is_head}))
        return code
    if not is_first:
        return code
    if not is_head:
        _print_headline(probe, rank_env, options)
    if is_head or options.output:
        return _report(probe, rank_env, options, started, is_head, code)
    return code


def _write_error_file(probe: Probe) -> None:
    """torchrun prints the contents of this file as the traceback of the failure."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    message = headline(probe)
    extra = {"py_callstack": message, "timestamp": str(int(time.time()))}
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"message": {"message": message, "extraInfo": extra}}, file)
    except OSError as error:
        print(f"ddpdoctor.probe: {path}: {error.strerror}", file=sys.stderr)


def headline(probe: Probe) -> str:
    """The verdict as one line."""
    causes = [o.message for o in probe.observations if o.is_cause]
    more = f" (and {len(causes) - 1} more)" if len(causes) > 1 else ""
    return f"ddpdoctor probe: {causes[0]}{more}" if causes else f"ddpdoctor probe: all {probe.world_size} ranks passed"


def _print_headline(probe: Probe, rank_env: RankEnv | None, options: Any) -> None:
    if options.quiet and not probe.has_failed:
        return
    host = rank_env.host if rank_env else ""
    stream = sys.stdout if options.format == "table" or options.output else sys.stderr
    print(f"{headline(probe)}  [{host}]", file=stream, flush=True)


def _report(probe: Probe, rank_env: RankEnv | None, options: Any, started: float, is_head: bool, code: int) -> int:
    """Start a child that judges the facts and writes the report: it imports the rules and rich, which supervisors do not."""
    order = {"probe": encode(probe), "options": vars(options), "started": started, "is_head": is_head}
    order["host"] = rank_env.host if rank_env else ""
    # In its own session, so that a launcher that kills this rank's process group does not kill the report.
    try:
        child = start(command("ddpdoctor.cli.probe_report"), stdin=subprocess.PIPE)
    except OSError as error:
        print(f"{headline(probe)}\nddpdoctor.probe: no report: {error.strerror}", file=sys.stderr)
        return max(code, 3 if options.output else 1)
    try:
        output_within(child, REPORT_SECONDS, json.dumps(order).encode())
    except LateError:
        child.kill()
        print(headline(probe), flush=True)
        return max(code, 3)
    return max(child.returncode, code) if child.returncode >= 0 else 128 - child.returncode
