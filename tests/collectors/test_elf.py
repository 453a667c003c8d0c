"""Reading libraries without loading them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from elf_files import write_elf

from ddpdoctor.collectors.elf import Dynamic, NotElf, read_dynamic, read_texts


def test_search_paths_and_needed_libraries_are_read(tmp_path: Path) -> None:
    path = write_elf(
        tmp_path / "a.so", needed="libnccl.so.2", rpath="$ORIGIN/../x:$ORIGIN", rodata=b"NCCL version 2.21.5\0"
    )
    assert read_dynamic(str(path)) == Dynamic(("libnccl.so.2",), ("$ORIGIN/../x", "$ORIGIN"))
    assert read_texts(str(path)) == b"NCCL version 2.21.5\0"


def test_our_own_python_has_texts() -> None:
    assert read_texts(str(Path(sys.executable).resolve()))


@pytest.mark.parametrize(
    "content", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(80), b"\x7fELF\x02\x01" + bytes(57)]
)
def test_other_files_are_named_as_such(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(NotElf):
        read_dynamic(str(path))


@settings(max_examples=80, deadline=None)
@given(at=st.integers(0, 600), junk=st.binary(min_size=1, max_size=12))
def test_a_damaged_library_is_no_crash(tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes) -> None:
    path = write_elf(tmp_path_factory.mktemp("elf") / "a.so", needed="libnccl.so.2", runpath="$ORIGIN")
    data = path.read_bytes()
    path.write_bytes(data[:at] + junk + data[at + len(junk) :])
    for read in (read_dynamic, read_texts):
        try:
            read(str(path))
        except NotElf:
            continue
