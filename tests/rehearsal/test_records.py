"""The reader of records: whatever bytes come, it gives records and never raises."""

from __future__ import annotations

import json
import os

from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.sequences.comparison import Comparison
from ddpdoctor.sequences.records import LONGEST, RecordReader, is_typed, places_of
from ddpdoctor.sequences.summary import Circumstances, summary

FULL = bool(os.environ.get("DDPDOCTOR_FULL"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 99) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
_WORDS = """
hello rank_process joining joined call ret begun wait waited store step destroy join left raised params loader epoch
batch save load file ddp seed plateau split early_read gone error ended
"""
_FIELDS = """
at n op g in out p2p peer rank world index environ count how path rows loader iteration sums names shapes batches
unwaited started red root devices device_ids call what
"""
KINDS, KEYS = st.sampled_from(_WORDS.split()), st.sampled_from(_FIELDS.split())
RECORDS = st.builds(lambda kind, fields: {**fields, "k": kind}, KINDS, st.dictionaries(KEYS, JSON, max_size=6))
TYPED = RECORDS.filter(is_typed)


@given(
    st.lists(
        st.binary(max_size=40) | st.just(b"\n") | RECORDS.map(lambda r: json.dumps(r).encode() + b"\n"), max_size=12
    ),
    st.integers(1, 17),
)
def test_any_bytes_in_any_pieces(parts: list[bytes], size: int) -> None:
    data = b"".join(parts)
    whole = RecordReader().feed(data)
    reader = RecordReader()
    pieces = [record for at in range(0, len(data), size) for record in reader.feed(data[at : at + size])]
    assert pieces == whole
    assert all(isinstance(record["k"], str) for record in whole)


@settings(max_examples=300 if FULL else 60)
@given(st.lists(st.tuples(st.integers(0, 2), TYPED), max_size=25))
def test_any_records_make_facts(records: list[tuple[int, dict[str, object]]]) -> None:
    comparison = Comparison(3)
    for key, record in records:
        comparison.add(key, record)
    comparison.exited(0, 0)
    summary(comparison, {}, Circumstances())


def test_a_line_without_end_is_dropped() -> None:
    reader = RecordReader()
    assert reader.feed(b"x" * (LONGEST + 10)) == []
    assert reader.feed(b'tail\n{"k":"gone"}\n') == [{"k": "gone"}]
    assert reader.dropped == 1


def test_only_places_are_places() -> None:
    assert [str(p) for p in places_of([["/a/b.py", 3, "f"], ["x", "y", "z"], 4, ["c.py", True, "g"]])] == ["b.py:3"]
    assert places_of("b.py") == () == places_of(None)
