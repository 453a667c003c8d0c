"""`hang`: what the ranks of a stuck job left: Flight Recorder dumps, stacks, answers of NCCL's RAS; and what /proc says."""

from __future__ import annotations

from ddpdoctor.facts.gaps import Gap
from ddpdoctor.facts.hang import Hang
from ddpdoctor.facts.log import Kind, Log

__all__ = ["left_behind"]


def left_behind(log: Log) -> Hang | None:
    """The dumps among the sources of a log; None without any. One of which nothing could be read is a gap."""
    paths = [source.name for source in log.sources if source.kind is Kind.DUMP]
    if not paths:
        return None
    from ddpdoctor.collectors.hang.dumps import read_dumps

    dumps = read_dumps(paths)
    unread = (dump for dump in dumps if dump.problem is not None and not len(dump))
    return Hang(dumps=dumps, gaps=tuple(Gap(f"hang.{d.source}", f"{d.source}: {d.problem}") for d in unread))
