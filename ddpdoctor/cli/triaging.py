"""What `triage`, `hang` and `run` share: from inputs to a report about them."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterable

from ddpdoctor.cli.options import Common
from ddpdoctor.cli.settings import rules_for
from ddpdoctor.collectors.log import collect
from ddpdoctor.doctor import examine
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.findings import Report
from ddpdoctor.rules import AREAS, of_logs

__all__ = ["triaged"]


def triaged(paths: Iterable[str], common: Common, *, started: float, command: str = "triage") -> tuple[Report, Facts]:
    """The report about these files, folders and standard input (`-`), and the facts that it rests on."""
    rules = of_logs(rules_for(common, tuple(AREAS.values())))
    signatures = [signature for each in rules for signature in each.signatures]
    log = collect(paths, signatures, sys.stdin.buffer if sys.stdin else None)
    facts = Facts(
        schema=SCHEMA,
        collected_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        hostname=socket.gethostname().partition(".")[0],
        log=log,
    )
    failures = tuple(f"read {gap.reason}" for gap in log.gaps)
    return examine(facts, rules, command=command, started=started, failures=failures), facts
