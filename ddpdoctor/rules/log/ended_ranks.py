"""What the rules about processes that ended share: their names, and a finding about exit codes."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.facts.log import Exit, Log
from ddpdoctor.findings import Evidence, Finding, Where
from ddpdoctor.rules.log.signatures import shortened

__all__ = ["SIGKILL", "ended", "names_of"]

SIGKILL = -9
MOST = 8


def names_of(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """`rank 3 on node1`, `ranks 1, 2`, `a process`."""
    if len(ranks) == 1:
        who = f"rank {ranks[0]}"
    elif ranks:
        who = f"ranks {', '.join(map(str, ranks))}" if len(ranks) <= MOST else f"{len(ranks)} ranks"
    else:
        who = "a process"
    return f"{who} on {hosts[0]}" if len(hosts) == 1 else who


def ended(log: Log, exits: Sequence[Exit], how: str) -> Finding:
    """One finding about processes that ended in the same way; `how` begins with a verb and may hold `(exit code …)`."""
    first = exits[0]
    said = {(line.source, line.number): line.text for line in log.lines}
    words = [said.get((e.source, e.number), f"exitcode {e.code}") for e in exits]
    if not any(str(e.code) in text for e, text in zip(exits, words, strict=True)):
        how = how.replace(f" (exit code {first.code})", "")  # the log names a signal alone
    ranks = tuple(sorted({each.who.rank for each in exits if each.who.rank is not None}))
    hosts = sorted({each.who.host for each in exits if each.who.host is not None})
    how = how.replace("was ", "were ", 1) if len(ranks) > 1 and how.startswith("was ") else how
    told = [
        (e, f"exitcode {e.code}" if str(e.code) in text else shortened(text))
        for e, text in zip(exits, words, strict=True)
    ]
    return Finding(
        f"{names_of(ranks, hosts)} {how}",
        tuple(Evidence(log.place(e.source, e.number), text, "0") for e, text in told[:3]),
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
