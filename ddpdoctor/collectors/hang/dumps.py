"""Reads Flight Recorder dumps in separate processes, several in parallel."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from ddpdoctor.dumps.file_names import rank_in_name
from ddpdoctor.facts.codec import FactsError, decode
from ddpdoctor.facts.hang import Dump, Operation, ProcessGroup
from ddpdoctor.system.process import LateError, run
from ddpdoctor.system.selfexec import command
from ddpdoctor.system.timeouts import in_threads

__all__ = ["read_dumps"]

SECONDS = 60.0
"""How long one process may take for its share of the dumps."""
MOST_PROCESSES = 8
SHARE = 4
"""Dumps per process."""


def read_dumps(paths: Iterable[str], seconds: float = SECONDS) -> tuple[Dump, ...]:
    """The dumps in these files, in their order. A dump that cannot be read has a `problem`."""
    names = list(paths)
    count = max(1, min(len(os.sched_getaffinity(0)), MOST_PROCESSES, -(-len(names) // SHARE)))
    shares = [names[start::count] for start in range(count)]
    dumps: dict[str, Dump] = {}
    in_threads(functools.partial(_read, share, seconds, dumps) for share in shares)
    return tuple(dumps[name] for name in names)


def _read(names: Sequence[str], seconds: float, dumps: dict[str, Dump]) -> None:
    """Read a share. A file that kills the process gets a `problem`, and the next process reads the rest."""
    left = list(names)
    while left:
        out, problem = _answers(left, seconds)
        for line in out.splitlines():
            dumps[left.pop(0)] = _dump(line)
        if left:
            name = left.pop(0)
            dumps[name] = Dump(name, rank_in_name(name), problem=problem)


def _answers(names: Sequence[str], seconds: float) -> tuple[str, str]:
    """The output lines of one process, and the problem with the first file that has no line."""
    argv = [*command("ddpdoctor.collectors.hang.unpickle"), *names]
    try:
        done = run(argv, seconds)
    except LateError as late:
        return _whole(late.out), f"timed out after {seconds:g} s"
    except OSError as error:
        return "", f"the reader process could not be started: {error.strerror}"
    last_line = done.err.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return _whole(done.out), f"the reader process exited with code {done.code}: {last_line}"[:300]


def _whole(out: bytes) -> str:
    """The complete lines."""
    return out[: out.rfind(b"\n") + 1].decode("utf-8", "replace")


def _dump(line: str) -> Dump:
    """A dump as the reader process wrote it: the columns are not validated, for speed."""
    fields: dict[str, Any] = json.loads(line)
    try:
        groups = tuple(decode(ProcessGroup, group) for group in fields.pop("groups"))
    except FactsError as error:
        return Dump(fields["source"], problem=str(error)[:300])
    ops = tuple(Operation(*op) for op in fields.pop("ops"))
    columns: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()}
    return Dump(**columns, groups=groups, ops=ops)
