"""The history of a log: what each process printed of interest, how it ended, and how the job did."""

from __future__ import annotations

import io

import pytest

from ddpdoctor.collectors.log.read_logs import collect
from ddpdoctor.facts.log import EventKind, JobOutcome, Log, LogProcess, ProcessOutcome
from ddpdoctor.logs.history import LogHistory, history_of

RAISED = """{who}Traceback (most recent call last):
{who}  File "/job/train.py", line 12, in <module>
{who}    main()
{who}  File "/job/train.py", line 7, in main
{who}    raise ValueError("bad batch")
{who}ValueError: bad batch
"""


def _log(text: str) -> Log:
    return collect(["-"], (), io.BytesIO(text.encode()))


def _steps(who: str, count: int, first: int = 0) -> str:
    return "".join(f"{who}step {step} loss 0.5\n" for step in range(first, first + count))


def _process(log: Log, rank: int | None) -> LogProcess:
    return next(process for process in history_of(log).processes if process.rank == rank)


@pytest.mark.parametrize(
    ("text", "process", "job"),
    [
        (_steps("[rank1]: ", 4), ProcessOutcome.CUT_OFF, JobOutcome.RUNNING),
        (
            _steps("[rank1]: ", 4) + "[rank1]: Training finished after 4 steps\n",
            ProcessOutcome.DONE,
            JobOutcome.COMPLETED,
        ),
        (_steps("[rank1]: ", 4) + RAISED.format(who="[rank1]: "), ProcessOutcome.FAILED, JobOutcome.FAILED),
        (
            RAISED.format(who="[rank1]: ") + _steps("[rank1]: ", 4),
            ProcessOutcome.RECOVERED,
            JobOutcome.RUNNING,
        ),
        (
            RAISED.format(who="[rank1]: ") + _steps("[rank1]: ", 4) + "[rank1]: Training finished\n",
            ProcessOutcome.RECOVERED,
            JobOutcome.COMPLETED,
        ),
        ("[rank1]: hello\n", ProcessOutcome.UNKNOWN, JobOutcome.UNKNOWN),
        (
            _steps("[rank1]: ", 4)
            + RAISED.format(who="[rank1]: ").replace("ValueError: bad batch", "KeyboardInterrupt"),
            ProcessOutcome.FAILED,
            JobOutcome.INTERRUPTED,
        ),
        (
            RAISED.format(who="[rank1]: ") + "Received 2 death signal, shutting down workers\n",
            ProcessOutcome.FAILED,
            JobOutcome.FAILED,
        ),
    ],
)
def test_outcome_of_a_process_and_of_the_job(text: str, process: ProcessOutcome, job: JobOutcome) -> None:
    log = _log(text)
    assert _process(log, 1).outcome is process
    assert history_of(log).outcome is job
    assert history_of(log).has_failed is (job is JobOutcome.FAILED)


def test_events_are_in_order_and_name_the_fatal_one() -> None:
    log = _log(_steps("[rank1]: ", 2) + RAISED.format(who="[rank1]: ") + _steps("[rank0]: ", 2))
    kinds = [event.kind for event in _process(log, 1).events]
    assert kinds == [EventKind.PROGRESS, EventKind.PROGRESS, EventKind.EXCEPTION]
    assert [event.printed.number for event in _process(log, 1).failures] == [8]
    assert _process(log, 0).outcome is ProcessOutcome.CUT_OFF


def test_another_process_goes_on_for_itself_alone() -> None:
    log = _log(RAISED.format(who="[rank1]: ") + _steps("[rank0]: ", 20))
    assert _process(log, 1).outcome is ProcessOutcome.FAILED


def test_caught_error_did_no_harm() -> None:
    log = _log(
        "[rank0]: ValueError: bad batch\n[rank0]: skipping this batch\n" + _steps("[rank0]: ", 1),
    )
    assert history_of(log).outcome is JobOutcome.RUNNING


def test_processes_of_one_rank_less_file_are_told_apart_by_pid() -> None:
    lines = [f"host{pid}:{pid}:1 [0] NCCL INFO comm 0x1 step {n} 12:00:0{n}\n" for pid in (71, 72) for n in range(3)]
    found = {process.pid for process in history_of(_log("".join(lines))).processes}
    assert found == {71, 72}


def test_worker_that_its_launcher_ended_did_not_fail() -> None:
    summary = """
  rank      : 3 (local_rank: 3)
  exitcode  : {code} (pid: 42)
  error_file: <N/A>
  traceback : Signal
"""
    ended = _process(_log(summary.format(code=-15)), 3)
    assert (ended.outcome, ended.speaks) == (ProcessOutcome.CUT_OFF, False)
    assert _process(_log(summary.format(code=-11)), 3).outcome is ProcessOutcome.FAILED


def test_restart_ends_the_first_attempt() -> None:
    text = RAISED.format(who="[rank0]: ") + "2 attempts left; will restart worker group\n"
    log = _log(text + RAISED.format(who="[rank0]: ").replace("ValueError", "OSError"))
    assert [each.exception for each in log.tracebacks] == ["ValueError", "OSError"]
    assert [each.exception for each in history_of(log).first_attempt.tracebacks] == ["ValueError"]


def test_history_is_built_once_per_log() -> None:
    log = _log(_steps("[rank0]: ", 2))
    assert isinstance(history_of(log), LogHistory)
    assert history_of(log) is history_of(log)
    assert history_of(log).processes is history_of(log).processes


def test_lines_are_harmless_where_their_rank_went_on() -> None:
    warning = "[rank0]: W step 1 is slow: 12 s\n"
    ended = _log(warning + RAISED.format(who="[rank0]: "))
    went_on = _log(warning + _steps("[rank0]: ", 3))
    assert history_of(ended).is_harmless(ended.tails[:1]) is False
    assert history_of(went_on).is_harmless(went_on.tails[:1]) is True


def test_text_that_the_job_quotes_is_harmless() -> None:
    log = _log('[rank0]: sample: "Segmentation fault (core dumped)"\n' + RAISED.format(who="[rank0]: "))
    assert history_of(log).is_harmless(log.tails[:1]) is True


@pytest.mark.parametrize(("lines", "ran_on"), [(20, False), (400, True)])
def test_job_that_ran_on_for_long_after_a_line(lines: int, ran_on: bool) -> None:
    log = _log(_steps("[rank0]: ", lines) + RAISED.format(who="[rank0]: "))
    assert history_of(log).ran_on_after(0, 1) is ran_on


def test_last_failure_is_the_line_after_which_nothing_went_on() -> None:
    failed = "srun: error: gpu-a02: task 5: Exited with exit code 3\n"
    log = _log(_steps("", 2) + failed)
    last = history_of(log).last_failure
    assert last is not None
    assert last.number == 3
    assert history_of(_log(failed + _steps("", 20))).last_failure is None


def test_excerpt_shows_nothing_of_how_the_job_went() -> None:
    assert history_of(_log("[rank0]: hello\n")).is_excerpt is True
    assert history_of(_log(_steps("[rank0]: ", 2))).is_excerpt is False
