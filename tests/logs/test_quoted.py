"""Exceptions that somebody quotes in a sentence, a title or Markdown; names of exceptions that the text cuts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.app.request import Request
from ddpdoctor.app.triage import triaged
from ddpdoctor.findings import Report, Verdict
from ddpdoctor.logs.tracebacks.quoted import quoted_exceptions, quoted_in


def report_of(folder: Path, text: str) -> Report:
    (folder / "job.log").write_text(text)
    report, _ = triaged([str(folder / "job.log")], Request(), started=time.monotonic())
    assert not report.crashed, report.crashed
    return report


@pytest.mark.parametrize(
    ("line", "name", "message"),
    [
        ("I get `ValueError: bad shape`, why?", "ValueError", "bad shape"),
        (
            'the error is "RuntimeError: mat1 and mat2 must have the same dtype" on 2 GPUs',
            "RuntimeError",
            "mat1 and mat2 must",
        ),
        ("_**TypeError: 'int' object is not iterable**_", "TypeError", "'int' object is not iterable"),
        ("# KeyError: 'state_dict'", "KeyError", "'state_dict'"),
        ('get the error:TypeError("got an unexpected argument")', "TypeError", "got an unexpected argument"),
        (
            "报错 OSError: [Errno 28] No space left on device，但空间足够",
            "OSError",
            "[Errno 28] No space left on device",
        ),
        ("FileNotFoundError: [Errno 2] gone srun: error: gpu03: task 0", "FileNotFoundError", "[Errno 2] gone"),
    ],
)
def test_the_exception_in_a_sentence_is_read(line: str, name: str, message: str) -> None:
    found = quoted_in(line)
    assert found is not None
    assert found[0] == name
    assert found[1].startswith(message)


@pytest.mark.parametrize(
    "line",
    [
        "retrying after ConnectionError: reset",
        "raise ValueError: never written so",
        "MeanSquaredError: 0.25",
        "WARNING:data:RuntimeError: worker 3 was slow",
        '"message": "ValueError: shown to a user",',
        "caught OSError: busy, and went on",
    ],
)
def test_a_line_that_ended_nothing_quotes_no_failure(line: str) -> None:
    assert quoted_in(line) is None


def test_what_stands_before_further_steps_ended_nothing(tmp_path: Path) -> None:
    text = "note on ValueError: odd sample\nstep 10 loss 2.0\nstep 20 loss 1.9\n"
    assert not report_of(tmp_path, text).findings


def test_a_title_is_a_failure_although_a_log_follows_it(tmp_path: Path) -> None:
    lines = [f"Epoch 1 step {number} loss 2.{number}" for number in range(20)]
    report = report_of(tmp_path, "\n".join(["# KeyError: 'state_dict'", *lines]))
    assert report.verdict is Verdict.FAIL


def test_the_name_of_an_exception_that_the_text_cuts_is_completed(tmp_path: Path) -> None:
    head = '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/job/a.py", line 3, in f\n'
    text = head + "[rank0]:     x / n\n[rank0]: ZeroDivisio"
    assert report_of(tmp_path, text).findings[0].quote.startswith("ZeroDivisionError")


def test_a_title_names_the_exception_of_the_traceback_that_is_cut_below_it(tmp_path: Path) -> None:
    text = '# OverflowError: too large\n[rank3]: Traceback (most recent call last):\n[rank3]:   File "/job/a.py", line 3, in f\n'
    found = report_of(tmp_path, text).findings[0]
    assert found.quote == "OverflowError: too large"
    assert found.where.rank == 3


@given(st.binary(max_size=400))
def test_no_bytes_crash_the_reader(data: bytes) -> None:
    list(quoted_exceptions(data))
