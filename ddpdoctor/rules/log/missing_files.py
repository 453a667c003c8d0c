"""HOST013, SCRIPT060, SCRIPT061, SCRIPT063: missing, incomplete, and concurrently changed files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log, Traceback
from ddpdoctor.findings import Certainty, Evidence, Finding, Where
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.line_prefix import who_of_name
from ddpdoctor.rules.log.headlines import headline, names_of

__all__ = ["MISSING_FILE", "is_missing_file", "is_removed"]

MISSING_FILE = re.compile(r"\[Errno 2\] No such file or directory: '(?P<path>[^']+)'")
CHECKPOINT = re.compile(r"checkpoint|ckpt|\.(pt|pth|bin|safetensors)$|step[_-]?\d+|epoch[_-]?\d+", re.IGNORECASE)
UNDETERMINED = "Unknown whether the other ranks find it: run `ls -l {path}` on every node to decide"


def is_missing_file(each: Traceback) -> bool:
    """Whether this exception says that a file does not exist."""
    return each.exception.endswith("FileNotFoundError") and MISSING_FILE.search(each.message) is not None


def is_removed(each: Traceback) -> bool:
    """Whether one of several ranks removes a folder that another rank has already removed."""
    return is_missing_file(each) and each.who.rank is not None and any(f.function == "rmtree" for f in each.frames)


def missing_file_finding(log: Log, *, of_nodes: bool) -> Iterator[Finding]:
    paths: dict[str, list[Traceback]] = defaultdict(list)
    for each in log.tracebacks:
        match = MISSING_FILE.search(each.message)
        if match is not None and is_missing_file(each) and not is_removed(each):
            paths[match["path"]].append(each)
    hosts = {each.who.host for each in (*log.spoken, *log.tails)} - {None}
    for path, missing in paths.items():
        without = sorted({each.who.host for each in missing if each.who.host is not None})
        ranks = sorted({each.who.rank for each in missing if each.who.rank is not None})
        owner = who_of_name(path)[0].rank
        ranks = [owner] if not ranks and owner is not None else ranks
        is_on_other_nodes = bool(without) and len(hosts) > len(without)
        is_others = CHECKPOINT.search(path) is not None or owner in ranks
        is_early = not is_on_other_nodes and bool(ranks) and 0 not in ranks and is_others
        if is_on_other_nodes if of_nodes else is_early:
            is_alone = not of_nodes and len(log.sources) == 1 and not history_of(log).speaking_ranks - {*ranks}
            found = _finding(log, f"file not found: {path}", missing, ranks, without)
            # whether the others find it decides whether this is the cause
            undetermined = UNDETERMINED.format(path=path)
            yield replace(found, undetermined=undetermined, certainty=Certainty.LIKELY) if is_alone else found


def _finding(log: Log, what: str, missing: list[Traceback], ranks: list[int], hosts: list[str]) -> Finding:
    first = missing[0]
    place = first.place
    return Finding(
        headline(names_of(ranks, hosts), what),
        tuple(Evidence(log.place(t.source, t.number), _raised(t), "the file exists") for t in missing[:3]),
        where=Where(
            host=hosts[0] if len(hosts) == 1 else None,
            rank=ranks[0] if len(ranks) == 1 else None,
            file=None if place is None else place.file,
            line=None if place is None else place.line,
        ),
        ranks=tuple(ranks),
        quote=_raised(first),
    )


def _raised(each: Traceback) -> str:
    return f"{each.exception}: {each.message}"[:240]
