"""Whatever a file holds, triage ends with a report: pieces of real messages in any order, cut anywhere, in any packing."""

from __future__ import annotations

import gzip
import json
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpdoctor.app.request import Request
from ddpdoctor.app.triage import triaged
from ddpdoctor.app.triage_reading import triage_inputs
from ddpdoctor.findings import Report
from ddpdoctor.render import FORMATS, render

QUOTED = Path(__file__).parents[2] / "benchmarks" / "field_cases.jsonl"
MESSAGES = [json.loads(line)["text"].strip() for line in QUOTED.read_text().splitlines()]
PIECES = (
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "Root Cause (first observed failure):",
    "  exitcode  : -9 (pid: 4)",
    "  rank      : 3 (local_rank: 99999999999)",
    "Fatal Python error: Aborted",
    "step 1 loss nan",
    "step 1 loss 0.5",
    "```",
    "> ",
    "[rank7]: ",
    '{"log": "',
    "\x1b[31m",
    "\x00",
    "\r",
    "2024-01-01T00:00:00Z ",
    "gpu-07: ",
    "Training completed",
)
texts = st.lists(st.sampled_from([*MESSAGES, *PIECES]) | st.text(max_size=40), max_size=12).map("\n".join)
wrapped = st.tuples(texts, st.integers(5, 120)).map(
    lambda each: "\n".join(each[0][i : i + each[1]] for i in range(0, len(each[0]), each[1]))
)
inputs = (
    st.binary(max_size=300)
    | texts.map(lambda text: text.encode("utf-8", "replace"))
    | wrapped.map(lambda text: text.encode("utf-8", "replace"))
    | texts.map(lambda text: text.encode("utf-16", "replace"))
    | texts.map(lambda text: gzip.compress(text.encode("utf-8", "replace")))
    | texts.map(lambda text: gzip.compress(text.encode("utf-8", "replace"))[:-9])
)
QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _is_whole(report: Report) -> None:
    assert report.crashed == ()
    for form in FORMATS:
        assert isinstance(render(report, form), str)


@QUICK
@given(inputs)
def test_any_file_gets_a_report_without_a_crash(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.log")
        path.write_bytes(data)
        _is_whole(triaged([str(path)], Request(), started=time.monotonic())[0])


@QUICK
@given(inputs, inputs)
def test_any_two_files_can_be_compared(bad: bytes, good: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder, name)) for name in ("bad.log", "good.log")]
        Path(paths[0]).write_bytes(bad)
        Path(paths[1]).write_bytes(good)
        _is_whole(triage_inputs(paths[:1], Request(), started=time.monotonic(), good=paths[1:]))
