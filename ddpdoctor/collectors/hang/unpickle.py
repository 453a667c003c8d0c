"""`python -m ddpdoctor.collectors.hang.unpickle FILE…`: Flight Recorder dumps as JSON, one line per file.

A pickle is a program. It is loaded in a separate process with limited memory, and may only build data: numbers, text,
lists, tuples and dictionaries. A pickle that refers to a class or a function is rejected. A truncated dump is read up to
its last complete entry.
"""

from __future__ import annotations

import dataclasses
import gc
import io
import json
import os
import pickle
import pickletools
import resource
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from ddpdoctor.collectors.log.inputs import UNREADABLE, inputs_of, opened
from ddpdoctor.dumps.file_names import rank_in_name
from ddpdoctor.dumps.flight_recorder import NotADumpError, dump_of
from ddpdoctor.facts.codec import encode
from ddpdoctor.facts.hang import Dump, Operation
from ddpdoctor.system.lifetime import die_with

__all__ = ["UnsafeError", "load", "main"]

OP_FIELDS = tuple(f.name for f in dataclasses.fields(Operation))
MAX_BYTES = 256 << 20
"""A dump of 2,000 entries with their stacks has about 1 MB."""
MAX_MEMORY_BYTES = 4 << 30
MAX_BROKEN_BYTES = 32 << 20
"""How much of a truncated dump is searched for its last complete entry."""


STDIN_NAME = "standard input"
BREAKS_OFF = "truncated; the complete entries were read"
RUNS = frozenset(
    ("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4")
)
"""The opcodes that build or call something other than plain data."""


class UnsafeError(ValueError):
    """The file would run code when loaded: it is not plain data."""


class _Data(pickle.Unpickler):
    """An unpickler that builds plain data only."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise UnsafeError(f"not loaded: it refers to {module}.{name}, which no dump does")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise UnsafeError("not loaded: it refers to external objects, which no dump does")


def _stream(content: bytes) -> io.BufferedReader:
    """A stream with `peek`: without it, the unpickler reads each number separately."""
    return io.BufferedReader(io.BytesIO(content), 1 << 16)


def load(content: bytes) -> tuple[Any, str | None]:
    """The data in a dump, and what is missing, None if it is complete.

    Raises:
        UnsafeError: it is not plain data.
        ValueError: no part of it can be read.
    """
    if content.lstrip()[:1] in (b"{", b"["):
        return _json(content.decode("utf-8", "replace"))
    try:
        return _built(content), None
    except UnsafeError:
        raise
    except ValueError:
        whole = _until_last_entry(content)
        if whole is None:
            raise
        return _built(whole), BREAKS_OFF


def _built(content: bytes) -> Any:
    try:
        return _Data(_stream(content)).load()
    except UnsafeError:
        raise
    except Exception as error:  # a corrupt pickle may raise anything: pickle documents no list of exceptions
        raise ValueError(f"not a complete dump: {type(error).__name__}: {error}"[:200]) from None


def _until_last_entry(content: bytes) -> bytes | None:
    """The pickle up to its last complete entry, closed; None if not even one is complete."""
    marks: list[str] = []
    container, end = "", None
    try:
        for opcode, _, position in pickletools.genops(content[:MAX_BROKEN_BYTES]):
            if opcode.name in RUNS:
                raise UnsafeError("not loaded: it would call or build an object, which no dump does")
            if opcode.name in ("EMPTY_DICT", "EMPTY_LIST"):
                container = opcode.name
            elif opcode.name == "MARK":
                marks.append(container)
            elif opcode.name in ("SETITEMS", "APPENDS", "TUPLE", "LIST", "DICT") and marks:
                marks.pop()
                if opcode.name == "SETITEMS" and marks == ["EMPTY_DICT", "EMPTY_LIST"]:  # the whole, and its entries
                    end = (position or 0) + 1
    except UnsafeError:
        raise
    except Exception:  # the end of the readable part: the entries before it are kept
        pass
    return None if end is None else content[:end] + b"eu."


def _json(text: str) -> tuple[Any, str | None]:
    try:
        return json.loads(text), None
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    except ValueError as error:
        entries = list(_whole_objects(text))
        if not entries:
            raise ValueError(f"not JSON: {error}") from None
        return {"entries": entries}, BREAKS_OFF


def _whole_objects(text: str) -> Iterator[Any]:
    """The complete records of `"entries": [`."""
    _, found, rest = text.partition('"entries"')
    at = len(text) - len(rest) + rest.find("[") + 1 if found and "[" in rest else len(text)
    decoder = json.JSONDecoder()
    while at < len(text):
        while at < len(text) and text[at] in ", \t\r\n":
            at += 1
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        yield value


def _read(path: str) -> Dump:
    if not os.path.exists(path) and path == STDIN_NAME:
        return Dump(path, problem="a dump on standard input has no file name, which would give its rank")
    (source,) = inputs_of([path])
    rank = rank_in_name(path)
    if source.problem is not None:
        return Dump(path, rank, problem=source.problem)
    try:
        with opened(source, sys.stdin.buffer) as file:
            content = file.read(MAX_BYTES + 1)
    except UNREADABLE as error:
        return Dump(path, rank, problem=str(getattr(error, "strerror", None) or error))
    if not content:
        return Dump(path, rank, problem="is empty")
    if len(content) > MAX_BYTES:
        return Dump(path, rank, problem=f"not loaded: larger than {MAX_BYTES >> 20} MiB, which no dump is")
    try:
        data, problem = load(content)
        dump = dump_of(path, data)
    except (NotADumpError, ValueError) as error:
        return Dump(path, rank, problem=str(error)[:300])
    except (MemoryError, RecursionError):
        return Dump(path, rank, problem="not loaded: it needs more memory than any dump")
    return dataclasses.replace(dump, problem=problem)


def main() -> None:
    """Read the files that the command line names."""
    gc.disable()  # plain data has no reference cycles, and searching for them takes half of the time
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MAX_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MAX_MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for path in sys.argv[1:]:
        dump = _read(path)
        fields = {f.name: getattr(dump, f.name) for f in dataclasses.fields(dump)}
        ops = [[getattr(op, name) for name in OP_FIELDS] for op in dump.ops]  # as columns and rows, for speed
        print(json.dumps({**fields, "groups": encode(dump.groups), "ops": ops}), flush=True)


if __name__ == "__main__":
    die_with(os.getppid())
    main()
