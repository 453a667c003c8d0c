"""Reads Flight Recorder dumps in processes of their own, several at a time."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from ddpdoctor.dumps.file_names import rank_in_name
from ddpdoctor.facts.codec import FactsError, decode
from ddpdoctor.facts.hang import Dump, Operation, ProcessGroup
from ddpdoctor.system.process import LateError, run
from ddpdoctor.system.selfexec import command

__all__ = ["read_dumps"]

SECONDS = 60.0
"""How long one process may take over its share of the dumps."""
MOST_PROCESSES = 8
SHARE = 4
"""So many dumps are worth a further process."""


def read_dumps(paths: Iterable[str], seconds: float = SECONDS) -> tuple[Dump, ...]:
    """The dumps in these files, in their order. One that cannot be read says so in its `problem`."""
    names = list(paths)
    count = max(1, min(len(os.sched_getaffinity(0)), MOST_PROCESSES, -(-len(names) // SHARE)))
    shares = [names[start::count] for start in range(count)]
    found: dict[str, Dump] = {}
    threads = [threading.Thread(target=_read, args=(share, seconds, found), daemon=True) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tuple(found[name] for name in names)


def _read(names: Sequence[str], seconds: float, found: dict[str, Dump]) -> None:
    """Read a share; a file that costs the process its life is named, and the rest is read by the next process."""
    left = list(names)
    while left:
        out, problem = _answers(left, seconds)
        for line in out.splitlines():
            found[left.pop(0)] = _dump(line)
        if left:
            name = left.pop(0)
            found[name] = Dump(name, rank_in_name(name), problem=problem)


def _answers(names: Sequence[str], seconds: float) -> tuple[str, str]:
    """The lines of one process, and what happened to it before the first file that has none."""
    argv = [*command("ddpdoctor.collectors.hang.unpickle"), *names]
    try:
        done = run(argv, seconds)
    except LateError as late:
        return _whole(late.out), f"was not read within {seconds:g} s"
    except OSError as error:
        return "", f"the process that reads dumps could not be started: {error.strerror}"
    said = done.err.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return _whole(done.out), f"the process that read it ended with {done.code}: {said}"[:300]


def _whole(out: bytes) -> str:
    """The lines that are whole."""
    return out[: out.rfind(b"\n") + 1].decode("utf-8", "replace")


def _dump(line: str) -> Dump:
    """What our own process wrote: the columns are taken as they are, for speed."""
    fields: dict[str, Any] = json.loads(line)
    try:
        groups = tuple(decode(ProcessGroup, each) for each in fields.pop("groups"))
    except FactsError as error:
        return Dump(fields["source"], problem=str(error)[:300])
    ops = tuple(Operation(*each) for each in fields.pop("ops"))
    columns: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()}
    return Dump(**columns, groups=groups, ops=ops)
