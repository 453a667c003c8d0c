"""Dumps are read as data or not at all: crafted, broken, packed and renamed files."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from flight_dumps import as_json, call, dump, older, pickled
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.collectors.hang.dumps import read_dumps
from ddpdoctor.collectors.hang.unpickle import UnsafeError, load
from ddpdoctor.dumps.file_names import rank_in_name
from ddpdoctor.dumps.flight_recorder import NotADumpError, dump_of

RAW = dump([call("all_reduce", line=line) for line in range(10, 20)], groups={"0": [0, 1]})


class _Runs:
    """An object whose pickle runs a command."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def test_a_pickle_that_would_run_code_is_refused_and_named(tmp_path: Path) -> None:
    marker = tmp_path / "it_ran"
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": [_Runs(marker)], "version": "2.10"}, 2))
    (found,) = read_dumps([str(path)])
    assert found.problem == f"not loaded: it refers to {os.system.__module__}.system, which no dump does"
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02(S'true'\nios\nsystem\n.",
        b"\x80\x02X\x01\x00\x00\x00aQ.",
        b"\x80\x02c__builtin__\neval\n.",
        pickle.dumps(pickle.UnpicklingError),
    ],
)
def test_whatever_names_a_class_or_a_function_is_refused(content: bytes) -> None:
    with pytest.raises(UnsafeError):
        load(content)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}r\xff\xff\xff\x7f.",
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 45) + b"x.",
        b"\x80\x02" + b"(" * 100_000,
        b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
        b"[" * 200_000,
        b"\x80\x02.",
        b"\x80\x02]Y.",
    ],
)
def test_a_bomb_costs_neither_memory_nor_the_other_dumps(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(content)
    (tmp_path / "nccl_trace_rank_1").write_bytes(pickled(RAW))
    bomb, good = read_dumps([str(tmp_path / f"nccl_trace_rank_{rank}") for rank in range(2)])
    assert bomb.problem is not None
    assert not len(bomb)
    assert len(good) == 10


def test_a_dump_that_breaks_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = {"a_0": pickled(RAW), "b_1": as_json(RAW).encode()}
    for name, content in whole.items():
        (tmp_path / name).write_bytes(content[: len(content) // 2])
    for found in read_dumps(str(tmp_path / name) for name in whole):
        assert 2 <= len(found) < 10
        assert found.problem == "truncated; the complete entries were read"


@pytest.mark.parametrize("share", [0.2, 0.35, 0.5, 0.8, 0.99])
def test_torchs_own_order_of_keys_breaks_off_as_well(tmp_path: Path, share: float) -> None:
    """torch writes the version, the groups and their status first, then the entries."""
    raw = {name: RAW[name] for name in ("version", "pg_config", "pg_status", "entries")}
    content = pickled(raw)
    path = tmp_path / "nccl_trace_rank_4"
    path.write_bytes(content[: int(len(content) * share)])
    (found,) = read_dumps([str(path)])
    assert found.rank == 4
    assert found.problem is not None
    assert "process" not in found.problem


def test_every_length_of_a_dump_is_survived() -> None:
    for content in (pickled(RAW), as_json(RAW).encode()):
        for length in range(1, len(content), 37):
            try:
                data, problem = load(content[:length])
            except ValueError:
                continue
            assert problem
            assert dump_of("rank_0", data).sequences == tuple(range(1, len(data["entries"]) + 1))


@pytest.mark.parametrize(
    ("content", "problem"), [(b"", "is empty"), (b"\x80\x02}.", "holds no Flight Recorder entries")]
)
def test_what_is_no_dump_says_so(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "trace_0"
    path.write_bytes(content)
    assert read_dumps([str(path)])[0].problem == problem
    assert read_dumps([str(tmp_path / "missing")])[0].problem == "no such file"


def test_packed_dumps_are_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_7.gz"
    path.write_bytes(gzip.compress(pickled(RAW)))
    (found,) = read_dumps([str(path)])
    assert (found.rank, len(found), found.problem) == (7, 10, None)


@pytest.mark.parametrize("version", ["1.5", "2.3"])
def test_old_formats_hold_the_same_calls(version: str) -> None:
    new, old = dump_of("rank_1", RAW), dump_of("rank_1", older(RAW, version))
    assert [(c.sequence, c.op.name, c.state, c.op.line) for c in old.calls()] == [
        (c.sequence, c.op.name, c.state, c.op.line) for c in new.calls()
    ]


def test_a_bare_list_of_entries_is_a_dump() -> None:
    assert len(dump_of("rank_0", RAW["entries"])) == 10


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("/tmp/nccl_trace_rank_3", 3),
        ("comm_lib_trace_rank_12", 12),
        ("node7_nccl_trace_rank_12.gz", 12),
        ("nccl_trace_rank_3 (1).pkl", 3),
        ("nccl_trace_rank_3_2024-05-01", 3),
        ("dumps/rank5/dump.pkl", 5),
        ("fr_4.json", 4),
        ("trace-2-of-8.bin", 2),
        ("Rank=11.dump", 11),
        ("upload.bin", None),
        ("job_4711/upload.bin", None),
    ],
)
def test_the_rank_is_read_from_the_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from([*RAW["entries"][0], "seq_id", "pg_name", "unknown"])


@given(st.lists(st.dictionaries(FIELDS, JSON, max_size=12), max_size=5), JSON, JSON)
def test_whatever_stands_in_an_entry_gives_a_dump_or_no_dump(entries: Any, config: Any, status: Any) -> None:
    try:
        found = dump_of("rank_0", {"entries": entries, "pg_config": config, "pg_status": status})
    except NotADumpError:
        return
    assert len(list(found.calls())) == len(entries)


HUGE = frozenset(b"r\x8b\x8d\x8e\x96")
"""Opcodes with which a few bytes ask for gigabytes: the reading process has a limit for that, this one has not."""


@given(st.binary(max_size=200).filter(lambda content: HUGE.isdisjoint(content)))
def test_whatever_bytes_a_pickle_has_it_is_read_or_refused(content: bytes) -> None:
    try:
        load(b"\x80\x02" + content)
    except ValueError:
        return


def test_the_backend_of_torch_2_15_and_a_peer_that_is_not_known_are_read() -> None:
    content = dump([call("all_reduce"), call("recv 3<-1")], groups={"0": [0, 1]})
    for entry, name in zip(content["entries"], ("nccl2:all_reduce", "gloo:recv 3<-?"), strict=True):
        entry["profiling_name"] = name
    read = dump_of("rank_0", content)
    assert [(each.op.name, each.op.peer) for each in read.calls()] == [("all_reduce", None), ("recv", None)]
