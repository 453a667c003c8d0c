"""Exits that a launcher tells in one line, and what does not count as one."""

from __future__ import annotations

import pytest

from ddpdoctor.facts.log import Exit, LogLine, Who
from ddpdoctor.logs.launcher_exits import exits_in_lines


def _told(*texts: str) -> list[tuple[int, int | None]]:
    lines = [LogLine(0, number, text) for number, text in enumerate(texts, 1)]
    return [
        (each.code, next((n for n in (each.who.rank, each.who.task, each.who.local_rank) if n is not None), None))
        for each in exits_in_lines(lines, ())
    ]


@pytest.mark.parametrize(
    ("text", "exits"),
    [
        (
            "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -11) local_rank: 2 (pid: 7)",
            [(-11, 2)],
        ),
        ("srun: error: gpu-a02: task 5: Exited with exit code 3", [(3, 5)]),
        ("srun: error: gpu-a02: tasks 2-3,7: Exited with exit code 137", [(-9, 2), (-9, 3), (-9, 7)]),
        ("srun: error: gpu-a02: task 5: Segmentation fault (core dumped)", [(-11, 5)]),
        ("srun: error: gpu-a02: task 0: Out Of Memory", [(-9, 0)]),
        (
            "mpirun noticed that process rank 3 with PID 9 on node n1 exited on signal 11 (Segmentation fault).",
            [(-11, 3)],
        ),
        ("MPI_ABORT was invoked on rank 5 in communicator MPI_COMM_WORLD", [(1, 5)]),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code 2", [(2, 1)]),
        ("[2024-01-01] [ERROR] [launch.py:321:sigkill_handler] ['python'] exits with return code = -7", [(-7, None)]),
        ("Command '['python3', 'a.py']' died with <Signals.SIGSEGV: 11>.", [(-11, None)]),
        ("srun: error: gpu-a02: task 5: Exited with exit code 0", []),
        ("task 5: Exited", []),
    ],
)
def test_a_line_tells_how_processes_ended(text: str, exits: list[tuple[int, int | None]]) -> None:
    assert _told(text) == exits


def test_tasks_that_srun_ended_after_another_one_failed_did_not_fail() -> None:
    told = _told(
        "srun: error: n2: task 5: Exited with exit code 3",
        "slurmstepd: error: *** STEP 121.0 ON n1 CANCELLED AT 2024-05-01T12:00:00 ***",
        "srun: error: n1: tasks 0-3: Killed",
    )
    assert told == [(3, 5)]


def test_tasks_that_end_because_the_time_is_over_did_not_fail() -> None:
    told = _told(
        "slurmstepd: error: *** JOB 608 ON n1 CANCELLED AT 2022-08-12T02:06:12 DUE TO TIME LIMIT ***",
        "srun: error: n1: tasks 2-3: Exited with exit code 1",
    )
    assert told == []


def test_tasks_that_are_launchers_did_not_fail_by_themselves() -> None:
    told = _told(
        "E0403 1 torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: 1) local_rank: 0 (pid: 7)",
        "srun: error: n1: task 0: Exited with exit code 1",
    )
    assert told == [(1, 0)]


def test_a_worker_with_a_row_in_the_summary_is_told_once() -> None:
    line = LogLine(0, 1, "failed (exitcode: -9) local_rank: 0 (pid: 1322) of binary: /usr/bin/python")
    assert exits_in_lines([line], [Exit(0, 9, -9, Who(rank=4, local_rank=0, pid=1322))]) == ()
