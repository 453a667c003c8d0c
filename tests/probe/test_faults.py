"""Real faults in real ranks: who is named, with which host, on every rank that is left, and nothing stays behind."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ranks import causes, free_port, has_place, left_over, shim, start, start_all, wait_for

pytestmark = pytest.mark.torch
HOST = socket.gethostname().partition(".")[0]


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path) -> object:
    yield
    end = time.monotonic() + 3
    while left_over(str(tmp_path)) and time.monotonic() < end:
        time.sleep(0.05)
    assert left_over(str(tmp_path)) == []


def _wait_for(path: Path) -> None:
    wait_for(path.exists)


def test_healthy_ranks_pass_and_measure(tmp_path: Path) -> None:
    ranks = start_all(tmp_path, 2)
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [0, 0], ends
    assert ranks[0].report["verdict"] == "pass"
    assert ranks[0].report["command"] == "probe"
    assert "all_reduce" in ends[0][1]
    assert ends[1][1] == "", "one table a node"


def test_one_rank_alone_passes(tmp_path: Path) -> None:
    (rank,) = start_all(tmp_path, 1)
    code, out = rank.end()
    assert code == 0, out


def test_a_rank_that_never_comes_is_named(tmp_path: Path) -> None:
    started = time.monotonic()
    rank = start(tmp_path, 0, 3, free_port(), "--join-timeout", "2")
    code, out = rank.end()
    assert code == 1, out
    assert causes(rank.report) == [("PROBE001", None)]
    assert rank.report["findings"][0]["ranks"] == [1, 2]
    assert time.monotonic() - started < 8


def test_a_rank_that_died_before_it_signed_in_is_named_at_once(tmp_path: Path) -> None:
    port = free_port()
    ranks = [start(tmp_path, rank, 3, port, "--join-timeout", "60") for rank in (1, 2)]  # nobody hosts the store
    wait_for(lambda: all(map(has_place, ranks)))
    time.sleep(0.5)  # they look at each other four times a second
    ranks[1].process.kill()
    died = time.monotonic()
    ends = [rank.end() for rank in ranks]
    assert ends[0][0] == 1, ends
    assert time.monotonic() - died < 30
    assert causes(ranks[0].report) == [("PROBE005", 2)]


@pytest.mark.slow
def test_a_rank_that_gives_up_before_the_others_is_not_to_blame(tmp_path: Path) -> None:
    port = free_port()
    ranks = [start(tmp_path, rank, 3, port, "--join-timeout", str(rank + 1)) for rank in (1, 2)]
    assert [rank.end()[0] for rank in ranks] == [1, 1]
    assert causes(ranks[0].report) == [("PROBE002", 0)]
    assert not ranks[1].output.exists() or causes(ranks[1].report) == [("PROBE002", 0)]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_moment_of_standing_still_is_no_fault(tmp_path: Path, victim: int) -> None:
    ranks = start_all(tmp_path, 2, environ=shim("import-busy", 1 - victim))
    wait_for(lambda: all(map(has_place, ranks)))
    pids = [ranks[victim].process.pid, ranks[victim].worker()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(1.0)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    ends = [rank.end() for rank in ranks]
    assert [code for code, _ in ends] == [0, 0], ends


def test_the_head_that_never_comes_is_named(tmp_path: Path) -> None:
    rank = start(tmp_path, 1, 2, free_port(), "--join-timeout", "2")
    code, out = rank.end()
    assert code == 1, out
    assert causes(rank.report) == [("PROBE002", 0)]


def test_two_processes_with_one_rank(tmp_path: Path) -> None:
    port = free_port()
    ranks = [start(tmp_path, rank, 3, port, name=str(i)) for i, rank in enumerate((0, 1, 1))]
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [1, 1, 1], ends
    assert causes(ranks[0].report) == [("ENV004", 1)]


def test_two_processes_with_rank_zero(tmp_path: Path) -> None:
    port = free_port()
    ranks = [start(tmp_path, 0, 2, port, name=str(i)) for i in range(2)]
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [1, 1], ends
    assert {("ENV004", 0)} == {c for r in ranks if r.output.exists() for c in causes(r.report)}


def test_world_sizes_that_differ(tmp_path: Path) -> None:
    port = free_port()
    ranks = [start(tmp_path, rank, 4 if rank == 1 else 3, port) for rank in range(3)]
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [1, 1, 1], ends
    assert [code for code, _ in causes(ranks[0].report)] == ["ENV005"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), [("RANK", "one"), ("WORLD_SIZE", "0"), ("WORLD_SIZE", "")])
def test_a_rank_that_cannot_place_itself_tells_the_others_at_once(tmp_path: Path, name: str, value: str) -> None:
    port = free_port()
    ranks = [start(tmp_path, rank, 3, port, environ={name: value} if rank == 1 else None) for rank in range(3)]
    ends = [r.end(25.0) for r in ranks]  # the join would last longer
    assert [code for code, _ in ends] == [1, 1, 1], ends
    assert [code for code, _ in causes(ranks[0].report)] == ["PROBE500"]


def test_a_rank_out_of_range(tmp_path: Path) -> None:
    port = free_port()
    ranks = [start(tmp_path, rank, 2, port) for rank in (0, 2)]
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [1, 1], ends
    assert causes(ranks[0].report) == [("ENV001", 2)]


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (9, "SIGKILL"),
        pytest.param(11, "SIGSEGV", marks=pytest.mark.slow),
        pytest.param(37, "signal 37", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_dies_is_named_with_its_signal(tmp_path: Path, number: int, name: str) -> None:
    mark = tmp_path / "mark"
    ranks = start_all(tmp_path, 2, environ=shim("sleep", 1, mark))
    _wait_for(mark)
    os.kill(ranks[1].worker(), number)
    died = time.monotonic()
    ends = [r.end() for r in ranks]
    assert time.monotonic() - died < 6
    assert [code for code, _ in ends] == [1, 1], ends
    assert causes(ranks[0].report) == [("PROBE006", 1)]
    first = ranks[0].report["findings"][0]
    assert name in first["message"]
    assert first["where"]["host"] == HOST


@pytest.mark.slow
def test_a_worker_that_died_is_named_though_its_supervisor_is_late_to_see_it(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    ranks = start_all(tmp_path, 2, environ=shim("sleep", 1, mark))
    _wait_for(mark)
    os.kill(ranks[1].process.pid, signal.SIGSTOP)
    os.kill(ranks[1].worker(), signal.SIGKILL)
    time.sleep(1.0)  # rank 0 has lost its peer long ago
    os.kill(ranks[1].process.pid, signal.SIGCONT)
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [1, 1], ends
    assert causes(ranks[0].report) == [("PROBE006", 1)]
    assert "SIGKILL" in ranks[0].report["findings"][0]["message"]


def test_a_worker_that_is_stopped_is_named(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    ranks = start_all(tmp_path, 2, environ=shim("sleep", 1, mark))
    _wait_for(mark)
    os.kill(ranks[1].worker(), signal.SIGSTOP)
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [1, 1], ends
    assert causes(ranks[0].report) == [("PROBE007", 1)]


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_supervisor_that_is_killed_is_named_by_the_others(tmp_path: Path, victim: int) -> None:
    mark = tmp_path / "mark"
    ranks = start_all(tmp_path, 3, environ=shim("sleep", 2, mark))
    _wait_for(mark)
    ranks[victim].process.kill()
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends if code != -9] == [1, 1], ends
    survivor = ranks[0 if victim else 1]
    assert causes(survivor.report) == [("PROBE006", victim)]


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_supervisor_that_is_stopped_is_named_by_the_others(tmp_path: Path, victim: int) -> None:
    mark = tmp_path / "mark"
    ranks = start_all(tmp_path, 3, environ=shim("sleep", 2, mark))
    _wait_for(mark)
    os.kill(ranks[victim].process.pid, signal.SIGSTOP)
    others = [r for r in ranks if r.rank != victim]
    ends = [r.end() for r in others]
    ranks[victim].process.kill()
    ranks[victim].end()
    assert [code for code, _ in ends] == [1, 1], ends
    assert ("PROBE007", victim) in causes(others[0].report)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["sleep", "compute"])
def test_a_rank_that_is_elsewhere_is_named_with_its_line(tmp_path: Path, what: str) -> None:
    ranks = start_all(tmp_path, 2, environ=shim(what, 1))
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [1, 1], ends
    assert causes(ranks[0].report) == [("PROBE009", 1)]
    assert ranks[0].report["findings"][0]["where"]["file"].endswith("sitecustomize.py")


@pytest.mark.slow
def test_a_rank_that_was_told_to_end_is_named_and_no_other_that_is_on_its_way(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    ranks = start_all(tmp_path, 2, environ=shim("sleep", 0, mark))
    _wait_for(mark)
    os.kill(ranks[1].process.pid, signal.SIGTERM)
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [1, 1], ends
    assert causes(ranks[0].report) in ([("PROBE501", 1)], [("PROBE009", 0)])  # the latter where that took two seconds
    assert "SIGTERM" in ranks[0].output.read_text()


def test_an_error_of_one_rank_is_told_by_all(tmp_path: Path) -> None:
    ranks = start_all(tmp_path, 2, environ=shim("raise", 1))
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [1, 1], ends
    assert causes(ranks[0].report) == [("PROBE006", 1)]
    assert "illegal memory access" in ranks[0].report["findings"][0]["message"]


def test_nccl_without_a_gpu_is_reported_as_what_it_is_and_retried_lazily(tmp_path: Path) -> None:
    ranks = start_all(tmp_path, 2, "--backend", "nccl")
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [1, 1], ends
    first = ranks[0].report["findings"][0]
    assert first["code"] == "PROBE005"
    assert "NCCL" in first["message"]
    assert "without device_id" in first["message"]


def test_wrong_values_are_seen(tmp_path: Path) -> None:
    ranks = start_all(tmp_path, 2, environ=shim("wrong", 1))
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [1, 1], ends
    assert causes(ranks[0].report) == [("PROBE017", 1)]


@pytest.mark.slow
def test_a_rank_that_puts_wrong_numbers_in_is_told_from_all_that_get_them_out(tmp_path: Path) -> None:
    ranks = start_all(tmp_path, 3, environ=shim("wrong-input", 1))
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [1, 1, 1], ends
    assert causes(ranks[0].report) == [("PROBE017", 1)]


@pytest.mark.slow
def test_a_worker_whose_files_are_closed_is_named(tmp_path: Path) -> None:
    ranks = start_all(tmp_path, 3, environ=shim("close-files", 1))
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [1, 1, 1], ends
    assert causes(ranks[0].report) == [("PROBE006", 1)]


@pytest.mark.parametrize(
    "what", ["shape", *(pytest.param(w, marks=pytest.mark.slow) for w in ("broadcast", "skip", "maximum"))]
)
def test_a_rank_that_calls_something_else_is_named(tmp_path: Path, what: str) -> None:
    ranks = start_all(tmp_path, 3, environ=shim(what, 1))
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [1, 1, 1], ends
    for rank in (r for r in ranks if r.output.exists()):
        assert causes(rank.report) == [("PROBE504", 1)]


@pytest.mark.slow
def test_a_rank_that_comes_late_is_named_and_waited_for(tmp_path: Path) -> None:
    ranks = start_all(tmp_path, 3, environ=shim("late", 1))
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [0, 0, 0], ends
    assert causes(ranks[0].report) == [("PROBE008", 1)]


def test_a_broken_torch_is_told_with_its_last_line(tmp_path: Path) -> None:
    ranks = start_all(tmp_path, 2, environ=shim("import-raise", 1))
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [1, 1], ends
    assert causes(ranks[0].report) == [("PROBE005", 1)]
    assert "libcudart.so.99" in ranks[0].report["findings"][0]["message"]


@pytest.mark.slow
def test_a_slow_import_that_makes_progress_is_waited_for(tmp_path: Path) -> None:
    ranks = start_all(tmp_path, 2, environ=shim("import-busy", 1))
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [0, 0], ends


@pytest.mark.slow
def test_a_stranger_on_the_master_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        ranks = [start(tmp_path, rank, 2, port) for rank in range(2)]
        ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [1, 1], ends
    assert causes(ranks[0].report) == [("NET001", 0)]


@pytest.mark.slow
def test_a_master_that_cannot_be_resolved(tmp_path: Path) -> None:
    rank = start(tmp_path, 1, 2, free_port(), environ={"MASTER_ADDR": "no-such-host.invalid"})
    started = time.monotonic()
    code, out = rank.end()
    assert time.monotonic() - started < 25
    assert code == 1, out
    assert causes(rank.report) == [("NET002", 1)]


@pytest.mark.parametrize("moment", ["start", "import", "collective"])
def test_ctrl_c_leaves_one_line_and_nothing_else(tmp_path: Path, moment: str) -> None:
    mark = tmp_path / "mark"
    ranks = start_all(tmp_path, 2, environ=shim("sleep", 1, mark))
    wait_for(lambda: all(map(has_place, ranks)))
    if moment == "import":
        ranks[0].worker()
    if moment == "collective":
        _wait_for(mark)
    for rank in ranks:
        os.kill(rank.process.pid, signal.SIGINT)
    for rank in ranks:
        code, out = rank.end(10)
        assert code == 130, out
        assert "Traceback" not in out


@pytest.mark.slow
def test_ctrl_c_wins_over_what_the_end_of_the_others_looks_like(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    ranks = start_all(tmp_path, 2, environ=shim("sleep", 1, mark))
    _wait_for(mark)
    os.kill(ranks[1].process.pid, signal.SIGSTOP)
    os.kill(ranks[0].process.pid, signal.SIGINT)
    first = ranks[0].end(10)
    os.kill(ranks[1].process.pid, signal.SIGINT)
    os.kill(ranks[1].process.pid, signal.SIGCONT)  # now it sees that rank 0 is gone, and the interrupt, at once
    second = ranks[1].end(10)
    assert [first[0], second[0]] == [130, 130], (first, second)


def test_garbage_in_the_environment_is_a_finding(tmp_path: Path) -> None:
    rank = start(tmp_path, 0, 2, free_port(), environ={"RANK": "zero"})
    code, out = rank.end()
    assert code == 1
    assert "RANK='zero'" in out


@pytest.mark.parametrize("seconds", ["0.5", pytest.param("3", marks=pytest.mark.slow)])
def test_too_little_time_is_no_fault_of_a_rank_that_still_moves(tmp_path: Path, seconds: str) -> None:
    ranks = start_all(tmp_path, 2, "--timeout", seconds, environ=shim("import-busy", 1))
    ends = [r.end() for r in ranks]
    assert [code for code, _ in ends] == [3, 3], ends
    assert (ranks[0].report["verdict"], ranks[0].report["findings"]) == ("incomplete", [])
    assert "at the end of --timeout" in ranks[0].report["crashed"][0]["error"]


@pytest.mark.parametrize("count", [16, pytest.param(24, marks=pytest.mark.slow)])
def test_too_few_open_files_are_a_finding(tmp_path: Path, count: int) -> None:
    size = 2 if count == 16 else 8
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    port = free_port()
    ranks = [
        start(tmp_path, rank, size, port, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count)))
        for rank in range(size)
    ]
    ends = [r.end() for r in ranks]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
    assert [code for code, _ in ends] == [1] * size, ends
    assert causes(ranks[0].report) == [("HOST004", 0)]


@pytest.mark.slow
def test_closed_streams_change_nothing(tmp_path: Path) -> None:
    port = free_port()
    ranks = [start(tmp_path, rank, 2, port, preexec_fn=lambda: os.closerange(0, 3)) for rank in range(2)]
    assert [r.end()[0] for r in ranks] == [0, 0]
    assert ranks[0].report["verdict"] == "pass"


@pytest.mark.slow
def test_a_worker_out_of_memory_died_of_that(tmp_path: Path) -> None:
    port = free_port()
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))  # noqa: E731
    ranks = [start(tmp_path, rank, 2, port, preexec_fn=limit if rank else None) for rank in range(2)]
    assert [r.end()[0] for r in ranks] == [1, 1]
    assert causes(ranks[0].report) == [("PROBE005", 1)]
