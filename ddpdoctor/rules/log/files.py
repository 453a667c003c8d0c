"""HOST013, SCRIPT060, SCRIPT061: files that some ranks do not find, or that are not whole."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from ddpdoctor.facts.log import Log, Traceback
from ddpdoctor.findings import Evidence, Finding, Where
from ddpdoctor.rules import in_logs
from ddpdoctor.rules.log.ending import names_of
from ddpdoctor.rules.log.signatures import finding_of, matching

__all__ = ["MISSING_FILE", "is_missing_file"]

MISSING_FILE = re.compile(r"\[Errno 2\] No such file or directory: '(?P<path>[^']+)'")
CHECKPOINT = re.compile(r"checkpoint|ckpt|\.(pt|pth|bin|safetensors)$|step[_-]?\d+|epoch[_-]?\d+", re.IGNORECASE)
DAMAGED = (
    "A checkpoint is damaged: cut off when it was downloaded, copied or saved (compare its size with the original's), or "
    "written by several ranks at once. Undetermined: its size, and whether all ranks save it, decides"
)


def is_missing_file(each: Traceback) -> bool:
    """Whether this exception says that a file does not exist."""
    return each.exception.endswith("FileNotFoundError") and MISSING_FILE.search(each.message) is not None


@in_logs("HOST013")
def on_some_nodes_only(log: Log) -> Iterator[Finding]:
    """All ranks of some nodes miss a path, and none of another node does."""
    yield from _found(log, of_nodes=True)


@in_logs("SCRIPT061")
def not_written_yet(log: Log) -> Iterator[Finding]:
    """Ranks other than 0 miss a checkpoint on the node where rank 0 runs."""
    yield from _found(log, of_nodes=False)


@in_logs("SCRIPT060")
def damaged_checkpoint(log: Log) -> Iterator[Finding]:
    """A file of torch.save that is not whole: that several ranks wrote it is only one of the reasons."""
    lines = matching(log, (r"PytorchStreamReader failed",))
    if lines:
        yield finding_of(log, lines, DAMAGED, blames_speaker=True)


def _found(log: Log, *, of_nodes: bool) -> Iterator[Finding]:
    paths: dict[str, list[Traceback]] = defaultdict(list)
    for each in log.tracebacks:
        match = MISSING_FILE.search(each.message)
        if match is not None and each.exception.endswith("FileNotFoundError"):
            paths[match["path"]].append(each)
    hosts = {each.who.host for each in (*log.spoken, *log.tails)} - {None}
    for path, missing in paths.items():
        without = sorted({each.who.host for each in missing if each.who.host is not None})
        ranks = sorted({each.who.rank for each in missing if each.who.rank is not None})
        is_of_nodes = bool(without) and len(hosts) > len(without)
        is_early = not is_of_nodes and bool(ranks) and 0 not in ranks and CHECKPOINT.search(path) is not None
        if is_of_nodes if of_nodes else is_early:
            yield _finding(log, path, missing, ranks, without)


def _finding(log: Log, path: str, missing: list[Traceback], ranks: list[int], hosts: list[str]) -> Finding:
    first = missing[0]
    place = first.place
    return Finding(
        f"{names_of(ranks, hosts)} did not find {path}, which the others did not miss",
        tuple(Evidence(log.place(t.source, t.number), t.message[:200], "the file is there") for t in missing[:3]),
        where=Where(
            host=hosts[0] if len(hosts) == 1 else None,
            rank=ranks[0] if len(ranks) == 1 else None,
            file=None if place is None else place.file,
            line=None if place is None else place.line,
        ),
        ranks=tuple(ranks),
    )
