"""What the rules about ended processes share: a finding about exit codes."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.facts.log import Exit, Log
from ddpdoctor.findings import Evidence, Finding, Where
from ddpdoctor.rules.log.headlines import headline, who
from ddpdoctor.rules.log.signatures import shortened

__all__ = ["SIGKILL", "ended"]

SIGKILL = -9


def ended(log: Log, exits: Sequence[Exit], how: str) -> Finding:
    """One finding about processes that ended in the same way; `how` may contain `(exit code …)`."""
    first = exits[0]
    texts = {(line.source, line.number): line.text for line in log.lines}
    lines = [texts.get((e.source, e.number), f"exitcode {e.code}") for e in exits]
    if not any(str(e.code) in text for e, text in zip(exits, lines, strict=True)):
        how = how.replace(f" (exit code {first.code})", "")  # the log only names a signal
    ranks = tuple(sorted({e.who.rank for e in exits if e.who.rank is not None}))
    hosts = sorted({e.who.host for e in exits if e.who.host is not None})
    shown = [
        (e, f"exitcode {e.code}" if str(e.code) in text else shortened(text))
        for e, text in zip(exits, lines, strict=True)
    ]
    return Finding(
        headline(who(ranks, hosts), how),
        tuple(Evidence(log.place(e.source, e.number), text, "0") for e, text in shown[:3]),
        where=Where(
            host=hosts[0] if len(hosts) == 1 else None,
            node_rank=first.who.node_rank if len(ranks) == 1 else None,
            rank=ranks[0] if len(ranks) == 1 else None,
            local_rank=first.who.local_rank if len(ranks) == 1 else None,
            file=log.sources[first.source].name,
            line=first.number,
        ),
        ranks=ranks,
    )
