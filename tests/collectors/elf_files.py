"""Small ELF files for tests: a .dynamic with its strings, and a .rodata."""

from __future__ import annotations

import struct
from pathlib import Path

TAGS = {"needed": 1, "rpath": 15, "runpath": 29}


def write_elf(path: Path, *, rodata: bytes = b"", **dynamic: str) -> Path:
    """A 64-bit library with one entry for each of needed, rpath and runpath that is given."""
    strings = b"\0" + b"".join(text.encode() + b"\0" for text in dynamic.values())
    entries, at = b"", 1
    for tag, text in dynamic.items():
        entries += struct.pack("<qQ", TAGS[tag], at)
        at += len(text.encode()) + 1
    names = b"\0.dynstr\0.dynamic\0.rodata\0.shstrtab\0"
    bodies = [(1, 3, strings), (9, 6, entries + struct.pack("<qQ", 0, 0)), (18, 1, rodata), (26, 3, names)]
    blob, table = b"", struct.pack("<IIQQQQIIQQ", *(0,) * 10)
    for name, kind, body in bodies:
        table += struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, 64 + len(blob), len(body), 1, 0, 0, 0)
        blob += body
    head = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64 + len(blob), 0, 64, 0, 0, 64, 5, 4)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + blob + table)
    return path
