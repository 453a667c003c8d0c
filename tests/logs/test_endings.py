"""A log passes only if it shows that its job ended well or still works; everything else is unknown, with what to collect next."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddpdoctor.app.request import Request
from ddpdoctor.app.triage import triaged
from ddpdoctor.examined import Verdict
from ddpdoctor.findings import Report

STEPS = "\n".join(f"epoch 0 step {step} loss {9 - step / 100:.4f} lr 3.0e-04 tok/s 18233" for step in range(40))
CONNECTING = "\n".join(f"gpu1:88:88 [0] NCCL INFO Channel {n:02}/0 : 0[0] -> 1[1] via P2P/CUMEM" for n in range(40))
FREEZES = """I use 2 nodes with 4 GPUs each. The job starts up, but it freezes during `ddp` setup:
GPU available: True, used: True
initializing ddp: GLOBAL_RANK: 1, MEMBER: 2/8
"""


def report_on(folder: Path, text: str, **options: str) -> Report:
    path = folder / "job.log"
    path.write_text(text)
    return triaged([str(path)], Request(**options), started=time.monotonic())[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("starting train.py on cuda:0\n", "neither a successful end nor training steps"),
        ("Multi-GPU training on cuda:0 gets stuck at the first epoch\n", "describes a problem"),
        ("my training freezes at step 3/8\n", "describes a problem"),
        ("How to fix the error when training on rank 2?\n", "describes a problem"),
        (
            "UserWarning: cuda:0 has a different capability\nFutureWarning: torch.distributed.launch is deprecated\n",
            "warning",
        ),
        ("多卡训练卡住不动，cuda:1 没有输出\n", "describes a problem"),
        ("[rank0]: loss 2.3 at step 10 then it just hangs\n", "describes a problem"),
        ("Why is rank 3 slower than the others? 12 it/s vs 30 it/s\n", "neither a good end"),
        ("[BUG] Invalidate trace cache @ step 1: expected module 25, but got module 323\n", "neither a good end"),
        (CONNECTING, "while the ranks connect"),
        (
            "INFO 2025-04-12 09:00:00 rank 0 reads the shards\nINFO 2025-04-12 09:00:01 rank 0 loads (checkpoint\n",
            "incomplete",
        ),
        (f"{STEPS}\nINFO loading the validation shards ...\n", "incomplete"),
        (
            f"{STEPS}\n[rank5]:[E602 11:17:52.185 ProcessGroupNCCL.cpp:632] [Rank 5] Watchdog caught collective operati\n",
            "",
        ),
        (f"It hangs here:\n{chr(10).join(STEPS.splitlines()[:9])}\n", "describes a problem"),
        ("Once training is done it hangs and nothing happens\ntraining done\n", "describes a problem"),
    ],
)
def test_a_log_without_a_good_end_does_not_pass(tmp_path: Path, text: str, words: str) -> None:
    report = report_on(tmp_path, text)
    assert report.verdict in (Verdict.INCOMPLETE, Verdict.FAIL)
    assert report.exit_code(None) == 3 or report.verdict is Verdict.FAIL
    for job in report.jobs if report.verdict is Verdict.INCOMPLETE else ():
        assert job.verdict is Verdict.INCOMPLETE
        assert words in job.open_end
        assert "run" in job.open_end


@pytest.mark.parametrize(
    "text",
    [
        STEPS,
        "INFO:pytorch_lightning.utilities.rank_zero:`Trainer.fit` stopped: `max_epochs=20` reached.\n",
        "***** train metrics *****\n  epoch = 3.0\n  train_loss = 0.352\n",
        "[rank0]: epoch 3 step 9 loss 2.1\nTraining completed, checkpoint saved to out/\n",
        f"{STEPS}\nEXIT_CODE=0\n",
        f"{STEPS}\n[rank0]: validation error 0.03, failed samples 0, timeout budget 600 s\n",
        "Epoch 3:  45%|████      | 450/1000 [06:28<04:39, 1.97it/s, loss=2.6]\n",
        '0: :::MLLOG {"event_type": "INTERVAL_END", "key": "run_stop", "value": null, "metadata": {"status": "success"}}\n',
    ],
)
def test_a_log_with_a_good_end_or_steps_until_its_end_passes(tmp_path: Path, text: str) -> None:
    report = report_on(tmp_path, text)
    assert (report.verdict, report.findings, report.exit_code(None)) == (Verdict.PASS, (), 0)


def test_rules_that_are_left_out_do_not_make_a_failed_job_pass(tmp_path: Path) -> None:
    text = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\nValueError: no\n'
    assert report_on(tmp_path, text).verdict is Verdict.FAIL
    report = report_on(tmp_path, text, ignore="LOG")
    assert report.verdict is Verdict.INCOMPLETE
    assert "--ignore" in report.jobs[0].open_end


def test_one_rank_with_a_good_end_is_enough(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(f"{STEPS}\n")
    (tmp_path / "rank1.log").write_text("[rank1]: starting train.py on cuda:1\n")
    report = triaged([str(tmp_path)], Request(), started=time.monotonic())[0]
    assert report.verdict is Verdict.PASS


def test_an_error_that_explains_the_end_needs_no_remark(tmp_path: Path) -> None:
    report = report_on(tmp_path, f"{FREEZES}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.\n")
    assert report.verdict is Verdict.FAIL
    assert report.open_ends == ()
