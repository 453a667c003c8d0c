"""`python -m ddpdoctor.cli.probe_report`: the process that reports for the ranks' supervisors."""

from __future__ import annotations

import json
import subprocess
import sys

from commandline import SECONDS, environment

from ddpdoctor.facts.codec import encode
from ddpdoctor.facts.probe import Probe

OPTIONS = {"format": "json", "output": None, "select": None, "ignore": None, "fail_on": "error", "quiet": False}


def _report(**options: object) -> subprocess.CompletedProcess[str]:
    order = {
        "probe": encode(Probe(world_size=2, backend="gloo", launcher="torchrun", master="a:1", seconds=1.0)),
        "options": {**OPTIONS, "no_color": False, **options},
        "started": 0.0,
        "is_head": True,
        "host": "node0",
    }
    command = [sys.executable, "-m", "ddpdoctor.cli.probe_report"]
    return subprocess.run(
        command, input=json.dumps(order), capture_output=True, text=True, env=environment(), timeout=SECONDS
    )


def test_it_reports_what_the_ranks_observed() -> None:
    done = _report()
    report = json.loads(done.stdout)
    assert (done.returncode, report["command"], report["host"]) == (0, "probe", "node0")


def test_a_selection_without_any_code_is_wrong_use() -> None:
    done = _report(select="NOPE")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --select 'NOPE': expected a code")
