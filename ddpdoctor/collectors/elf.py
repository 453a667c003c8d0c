"""The parts of an ELF file that show which libraries it loads: its dynamic entries and the strings in .rodata."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from ddpdoctor.light_dataclass import dataclass

__all__ = ["Dynamic", "NotElf", "read_dynamic", "read_texts"]

MAX_BYTES = 16 << 20
LARGEST_BYTES = 1 << 40
"""No library is larger; a larger offset means a corrupt file."""
NEEDED, RPATH, RUNPATH = 1, 15, 29
DYNAMIC = 6


class NotElf(ValueError):
    """The file is not a 64-bit little-endian ELF file, or is truncated."""


@dataclass(frozen=True, slots=True)
class Dynamic:
    """DT_NEEDED, DT_RPATH and DT_RUNPATH, with `$ORIGIN` not expanded."""

    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Section:
    name: int
    kind: int
    link: int
    offset: int
    size: int


def read_dynamic(path: str) -> Dynamic:
    """The dynamic entries of a shared library.

    Raises:
        OSError: it cannot be read.
        NotElf: it is not an ELF file.
    """
    with open(path, "rb") as file:
        sections = _sections(file)
        table = next((s for s in sections if s.kind == DYNAMIC), None)
        if table is None or table.link >= len(sections):
            return Dynamic()
        entries = list(struct.iter_unpack("<qQ", _whole(_at(file, table), 16)))
        texts = _at(file, sections[table.link])
    values: dict[int, list[str]] = {NEEDED: [], RPATH: [], RUNPATH: []}
    for tag, value in entries:
        if tag in values:
            values[tag].append(_text(texts, value))
    rpath, runpath = (tuple(p for line in values[tag] for p in line.split(":") if p) for tag in (RPATH, RUNPATH))
    return Dynamic(tuple(values[NEEDED]), rpath, runpath)


def read_texts(path: str) -> bytes:
    """The bytes of .rodata, which has the library's messages; at most 16 MiB.

    Raises:
        OSError: it cannot be read.
        NotElf: it is not an ELF file.
    """
    with open(path, "rb") as file:
        *sections, names = _sections(file)
        texts = _at(file, names)
        section = next((s for s in sections if _text(texts, s.name) == ".rodata"), None)
        return _at(file, section) if section else b""


def _sections(file: BinaryIO) -> list[_Section]:
    """All sections, followed by the section with their names."""
    head = file.read(64)
    if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
        raise NotElf("not a 64-bit ELF file")
    (offset,) = struct.unpack_from("<Q", head, 40)
    size, count, names = struct.unpack_from("<HHH", head, 58)
    table = _bytes(file, offset, size * count)
    if size != 64 or len(table) < size * count or names >= count:
        raise NotElf("its section table is truncated")
    sections = list(_unpack(table, count))
    return [*sections, sections[names]]


def _unpack(table: bytes, count: int) -> Iterator[_Section]:
    for i in range(count):
        name, kind, _, _, offset, size, link, *_ = struct.unpack_from("<IIQQQQIIQQ", table, i * 64)
        yield _Section(name, kind, link, offset, size)


def _at(file: BinaryIO, section: _Section) -> bytes:
    return _bytes(file, section.offset, min(section.size, MAX_BYTES))


def _bytes(file: BinaryIO, offset: int, size: int) -> bytes:
    if offset > LARGEST_BYTES:
        raise NotElf("an offset is outside of the file")
    file.seek(offset)
    return file.read(size)


def _whole(data: bytes, size: int) -> bytes:
    return data[: len(data) - len(data) % size]


def _text(texts: bytes, at: int) -> str:
    return texts[at : texts.find(b"\0", at)].decode("utf-8", "replace")
