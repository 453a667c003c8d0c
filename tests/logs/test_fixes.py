"""What to type after a failure: for this exception, this exit code, these last words, not the same for all."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddpdoctor.app.request import Request
from ddpdoctor.app.triage import triaged
from ddpdoctor.findings import Finding, Report, Severity

HEAD = 'Traceback (most recent call last):\n  File "/job/train.py", line 9, in {function}\n    run()\n'


def _report(folder: Path, text: str) -> Report:
    (folder / "job.log").write_text(text)
    report, _ = triaged([str(folder / "job.log")], Request(), started=time.monotonic())
    assert not report.crashed, report.crashed
    return report


def _first(folder: Path, text: str) -> Finding:
    return _report(folder, text).findings[0]


@pytest.mark.parametrize(
    ("raised", "command"),
    [
        ("ModuleNotFoundError: No module named 'yaml'", "python -m pip install PyYAML"),
        ("ModuleNotFoundError: No module named 'cv2'", "python -m pip install opencv-python-headless"),
        ("ModuleNotFoundError: No module named 'transformers.models.new'", "python -m pip show transformers"),
        (
            "ImportError: cannot import name 'x' from 'transformers.utils' (/opt/a.py)",
            "python -m pip show transformers",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'my config.yaml'", "ls -ld 'my config.yaml'"),
        ("PermissionError: [Errno 13] Permission denied: '/data/out.pt'", "id; ls -ld /data/out.pt"),
        ("OSError: /opt/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c10", "flash-attn"),
    ],
)
def test_an_exception_is_answered_with_a_command(tmp_path: Path, raised: str, command: str) -> None:
    assert command in (_first(tmp_path, HEAD.format(function="main") + raised + "\n").fix_command or "")


@pytest.mark.parametrize(
    ("function", "raised", "words"),
    [
        ("main", "ModuleNotFoundError: No module named 'myproject'", "PYTHONPATH=$PWD"),
        ("main", "AssertionError: batch size must be even", "batch size must be even"),
        ("main", "AssertionError", "Print both sides of the condition"),
        ("main", "ZeroDivisionError: division by zero", "the divisor at /job/train.py:9"),
        ("main", "StopIteration", "the same number of batches: the iterator at /job/train.py:9 had none left"),
        ("load_checkpoint", "KeyError: 'optimizer'", "it has no key optimizer"),
        ("main", "KeyError: 'momentum'", "Correct /job/train.py:9; full traceback: "),
        ("main", "IndexError: list index out of range", "the length at /job/train.py:9"),
    ],
)
def test_an_exception_has_a_fix_of_its_own(tmp_path: Path, function: str, raised: str, words: str) -> None:
    assert words in _first(tmp_path, HEAD.format(function=function) + raised + "\n").fix


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ("the following arguments are required: --config", "Add --config with a value after train.py"),
        ("unrecognized arguments: --epoch_num 10", "Remove or correct --epoch_num 10 after train.py"),
        ("argument --lr: invalid float value: 'fast'", "Correct the value of --lr after train.py"),
    ],
)
def test_a_refused_argument_is_named(tmp_path: Path, refusal: str, words: str) -> None:
    found = _first(tmp_path, f"usage: train.py [-h]\ntrain.py: error: {refusal}\n")
    assert words in found.fix
    assert "PYTHONFAULTHANDLER" not in found.fix


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD.format(function="main") + "SystemExit: 3\n", "Find the sys.exit()"),
        ("loading\nFATAL: cannot open shard 7\n", "--log-dir logs --tee 3"),
        ("Job failed with status 1\n", "this is an excerpt"),
    ],
)
def test_what_to_collect_fits_the_case(tmp_path: Path, text: str, words: str) -> None:
    found = _first(tmp_path, text)
    assert found.name == "cause-not-recognised"
    assert words in found.fix
    assert "PYTHONFAULTHANDLER" not in found.fix


def test_a_failure_that_is_not_understood_is_quoted_with_its_place_and_why(tmp_path: Path) -> None:
    found = _first(tmp_path, "reading shards\n[rank1]: step 9 loss 2.0\n[rank1]: FATAL: cannot read shard 7\n")
    assert found.quote == "FATAL: cannot read shard 7"
    assert found.ranks == (1,)
    assert found.where.line == 3
    assert found.evidence[-1].path.endswith("job.log:3")
    assert "quoted because the output ends there" in found.why


def test_nothing_is_quoted_where_a_cause_is_known(tmp_path: Path) -> None:
    report = _report(tmp_path, HEAD.format(function="main") + "OSError: [Errno 28] No space left on device\n")
    assert [each.name for each in report.findings] == ["disk-full"]


@pytest.mark.parametrize(("code", "words"), [(-11, "PYTHONFAULTHANDLER=1"), (3, "sys.exit(3)"), (127, "not found")])
def test_an_exit_code_asks_for_what_it_needs(tmp_path: Path, code: int, words: str) -> None:
    text = (
        f"E1119 08:26:02.7 287 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: {code}) "
        "local_rank: 0 (pid: 28773) of binary: /usr/bin/python3\n"
    )
    assert words in _first(tmp_path, text).fix


def test_an_error_with_which_a_running_job_is_cut_off_is_no_proof_of_its_end(tmp_path: Path) -> None:
    found = _first(tmp_path, "step 8 loss 2.1\nstep 9 loss 2.0\nERROR: cannot read sample 7\n")
    assert found.name == "cause-not-recognised"
    assert found.worst is Severity.WARNING
