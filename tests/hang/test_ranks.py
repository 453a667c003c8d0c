"""Which rank of a stuck job is somewhere else, from what /proc and stacks say of its processes."""

from __future__ import annotations

import os
import platform
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.collectors.hang.proc_watch import runs_gloo, watch
from ddpdoctor.collectors.hang.rank_processes import find, processes
from ddpdoctor.dumps.rank_activity import Activity, activity_of
from ddpdoctor.engine import judge
from ddpdoctor.facts.hang import ChildProcess, Hang, RankProcess, StackFrame
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import load
from ddpdoctor.rules.views import hang_rules
from ddpdoctor.system.machine import Root
from ddpdoctor.system.timeouts import call_each_with_timeout

RULES = hang_rules(load())
C10D = StackFrame("/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce")
STEP = StackFrame("/job/train.py", 40, "step")
SAVE = StackFrame("/job/train.py", 77, "save")


def _process(rank: int, **more: Any) -> RankProcess:
    usual = RankProcess(
        pid=1000 + rank,
        host="node0",
        rank=rank,
        local_rank=rank,
        world_size=3,
        local_world_size=3,
        job="j",
        state="S",
        wchan="futex_wait_queue",
        call="futex",
        cpu_share=0.0,
        switches=0,
    )
    return replace(usual, **more)


def _found(*processes: RankProcess) -> list[Finding]:
    facts = Facts(SCHEMA, "", "node0", hang=Hang(processes=processes))
    outcome = judge(facts, RULES)
    assert not outcome.crashed, outcome.crashed
    return outcome.findings


def _job(**odd: Any) -> list[Finding]:
    return _found(_process(0), _process(1, **odd), _process(2))


@pytest.mark.parametrize(
    ("odd", "code", "severity", "words"),
    [
        ({"state": "T"}, "PROBE007", Severity.ERROR, "is stopped (state T)"),
        ({"state": "t", "traced_by": 7}, "PROBE007", Severity.ERROR, "stopped by a debugger (state t), pid 7"),
        ({"state": "Z"}, "LOG004", Severity.ERROR, "has ended and was not reaped"),
        ({"state": "D", "wchan": "nfs_wait_bit_killable"}, "PROBE009", Severity.ERROR, "nfs_wait_bit_killable"),
        ({"call": "clock_nanosleep"}, "PROBE009", Severity.ERROR, "sleeps"),
        ({"call": "", "wchan": "hrtimer_nanosleep"}, "PROBE009", Severity.ERROR, "sleeps"),
        ({"call": "flock", "file": "/shared/lock"}, "PROBE009", Severity.ERROR, "flock of /shared/lock"),
        ({"call": "read", "file": "standard input (/dev/pts/0)"}, "SCRIPT071", Severity.WARNING, "standard input"),
        (
            {"call": "poll", "children": (ChildProcess(9, "python", "S", is_copy=True),)},
            "PROBE009",
            Severity.ERROR,
            "data loader",
        ),
        ({"call": "wait4", "children": (ChildProcess(9, "tar", "S"),)}, "PROBE009", Severity.ERROR, "tar (pid 9)"),
        ({"state": "R", "call": "", "cpu_share": 1.0}, "PROBE008", Severity.WARNING, "computes"),
    ],
)
def test_the_rank_that_is_elsewhere_is_named(odd: dict[str, Any], code: str, severity: Severity, words: str) -> None:
    (found,) = _job(**odd)
    assert (found.code, found.worst) == (code, severity)
    assert words in found.message
    assert found.message.startswith("rank 1 (pid 1001 on node0)")
    assert found.message.endswith("; ranks 0, 2 wait for it")
    assert (found.ranks, found.where.rank, found.where.host) == ((1,), 1, "node0")


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("/venv/lib/python3.11/site-packages/torch/utils/file_baton.py", "HOST014"),
        ("/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", "PROBE009"),
        ("/venv/lib/python3.11/site-packages/torch/serialization.py", "PROBE009"),
        ("/usr/lib/python3.11/pdb.py", "SCRIPT071"),
        ("/usr/lib/python3.11/subprocess.py", "PROBE009"),
    ],
)
def test_a_stack_says_what_a_rank_does_and_where(file: str, code: str) -> None:
    waits = (C10D, STEP)
    found = _found(
        _process(0, frames=waits), _process(1, frames=(StackFrame(file, 5, "f"), SAVE)), _process(2, frames=waits)
    )
    assert [each.code for each in found] == [code]
    assert (found[0].where.file, found[0].where.line) == ("/job/train.py", 77)


def test_without_stacks_the_rank_in_another_system_call_than_most_is_a_candidate() -> None:
    (found,) = _job(call="poll")
    assert (found.code, found.worst, found.ranks) == ("PROBE009", Severity.WARNING, (1,))
    assert "in poll, ranks 0, 2 in futex" in found.message
    (found,) = _job(call="rt_sigtimedwait", wchan="do_sigtimedwait")
    assert "waits in rt_sigtimedwait" in found.message
    two = {"world_size": 2, "local_world_size": 2}
    assert _found(_process(0, **two), _process(1, call="poll", **two)) == []


def test_without_stacks_the_threads_of_gloo_tell_who_is_in_a_collective() -> None:
    others = (_process(0, runs_gloo=True), _process(2, runs_gloo=True))
    found = _found(*others, _process(1, runs_gloo=False))
    assert [(each.code, each.ranks, each.worst) for each in found] == [("PROBE009", (1,), Severity.ERROR)]
    (moves,) = _found(*others, _process(1, runs_gloo=False, switches=9))
    assert (moves.code, moves.ranks) == ("PROBE008", (1,))
    assert "outside all collectives; ranks 0, 2 are in one" in found[0].message
    assert _found(*(_process(rank, runs_gloo=False) for rank in range(3))) == []
    (all_wait,) = _found(*(_process(rank, runs_gloo=True) for rank in range(3)))
    assert (all_wait.code, all_wait.worst) == ("LOG001", Severity.WARNING)


def test_a_thread_of_gloo_waits_for_peers_with_a_time_limit_and_for_work_without(tmp_path: Path) -> None:
    def look(*calls: str) -> bool | None:
        for number, line in enumerate(calls):
            task = tmp_path / f"proc/7/task/{number + 7}"
            task.mkdir(parents=True, exist_ok=True)
            (task / "comm").write_text("pt_gloo_runloop\n" if number else "python\n")
            (task / "syscall").write_text(line)
        return runs_gloo(Root(str(tmp_path)), 7)

    futex = "202" if platform.machine() == "x86_64" else "98"
    idle, busy = f"{futex} 0x1 0x189 0x0 0x0 0x0 0x1 0x2 0x3", f"{futex} 0x1 0x189 0x0 0x7f00 0x0 0x1 0x2 0x3"
    assert look(busy) is None
    assert look(busy, idle, idle) is False
    assert look(idle, idle, busy) is True
    assert look(idle, idle, "running") is True
    assert look(idle, idle, "") is None


def test_a_compiler_that_was_started_is_compiling() -> None:
    stack = (StackFrame("/usr/lib/python3.11/subprocess.py", 5, "run"), SAVE)
    (found,) = _found(
        _process(0, frames=(C10D, STEP)),
        _process(1, frames=stack, children=(ChildProcess(9, "cc1plus", "R"),)),
        _process(2, frames=(C10D, STEP)),
    )
    assert found.code == "PROBE010"
    inductor = StackFrame("/venv/lib/python3.11/site-packages/torch/_inductor/codecache.py", 9, "compile")
    assert activity_of(_process(1, frames=(stack[0], inductor, SAVE))).activity is Activity.COMPILING


def test_a_lock_in_the_scripts_own_code_is_elsewhere() -> None:
    waits = (C10D, STEP)
    (found,) = _found(_process(0, frames=waits), _process(1, frames=(SAVE,)), _process(2, frames=waits))
    assert (found.code, found.where.line) == ("PROBE009", 77)


def test_with_gpus_the_rank_at_another_line_is_elsewhere() -> None:
    spins = {"state": "R", "call": "", "cpu_share": 1.0, "frames": (STEP,)}
    (found,) = _found(_process(0, **spins), _process(1, call="clock_nanosleep", frames=(SAVE,)), _process(2, **spins))
    assert (found.code, found.ranks) == ("PROBE009", (1,))


def test_ranks_in_different_collectives_wait_for_each_other() -> None:
    (found,) = _found(
        _process(0, frames=(C10D, STEP)), _process(1, frames=(C10D, SAVE)), _process(2, frames=(C10D, STEP))
    )
    assert (found.code, found.ranks, found.where.line) == ("SCRIPT027", (1,), 77)


def test_the_data_loaders_worker_is_the_place_to_look_at() -> None:
    loader = StackFrame("/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 5, "_next_data")
    worker = ChildProcess(9, "python", "S", is_copy=True, frames=(StackFrame("/job/dataset.py", 12, "__getitem__"),))
    process = _process(1, frames=(loader, STEP), children=(worker,))
    assert activity_of(process).activity is Activity.DATA
    (found,) = _found(_process(0, frames=(C10D, STEP)), process, _process(2, frames=(C10D, STEP)))
    assert (found.where.file, found.where.line) == ("/job/dataset.py", 12)


def test_compilers_below_a_rank() -> None:
    assert (
        activity_of(_process(1, call="wait4", children=(ChildProcess(9, "nvcc", "R"),))).activity is Activity.COMPILING
    )


def test_a_rank_without_a_process_is_named() -> None:
    (found,) = _found(_process(0), _process(2))
    assert (found.code, found.ranks) == ("LOG004", (1,))
    assert found.message == "rank 1 has no process; ranks 0, 2 wait for it"


def test_a_rank_that_the_kernel_killed_for_memory() -> None:
    (found,) = _found(_process(0, oom_kills=1), _process(2, oom_kills=1))
    assert (found.code, found.ranks) == ("LOG014", (1,))


def test_ranks_of_several_nodes_are_one_job() -> None:
    near = [_process(rank, world_size=4, local_world_size=2) for rank in (0, 1)]
    far = [
        _process(rank, host="node1", local_rank=rank - 2, world_size=4, local_world_size=2, pid=5 + rank)
        for rank in (2, 3)
    ]
    far[1] = replace(far[1], call="clock_nanosleep")
    (found,) = _found(*near, *far)
    assert (found.ranks, found.where.host) == ((3,), "node1")
    assert found.message.endswith("ranks 0-2 wait for it")


@pytest.mark.parametrize(
    "processes",
    [
        [_process(rank, switches=500, cpu_share=0.7) for rank in range(3)],
        [_process(rank, state="R", call="", cpu_share=1.0) for rank in range(3)],
        [_process(rank, state="R", call="", cpu_share=1.0, frames=(STEP,)) for rank in range(3)],
        [
            _process(0, switches=300),
            _process(1, call="poll", switches=90),
            _process(2, state="R", switches=40, cpu_share=0.9),
        ],
        [_process(rank) for rank in range(3)],
        [_process(0, local_world_size=None), _process(1, local_world_size=None)],
    ],
)
def test_a_job_that_moves_or_shows_nothing_has_no_finding(processes: list[RankProcess]) -> None:
    assert _found(*processes) == []


def test_all_in_one_collective_is_a_warning_that_blames_nobody() -> None:
    (found,) = _found(*(_process(rank, frames=(C10D, STEP)) for rank in range(3)))
    assert (found.code, found.worst, found.ranks) == ("LOG001", Severity.WARNING, ())


def _tree(folder: Path, **processes: tuple[int, list[str], dict[str, str]]) -> Root:
    """A /proc of these processes: parent, command line, variables."""
    for name, (parent, words, environ) in processes.items():
        place = folder / "proc" / name.removeprefix("p")
        place.mkdir(parents=True)
        (place / "stat").write_text(f"{place.name} (x) S {parent} 0 0 0 0 0 0 0 0 0 1 1 0 0 0 0 0 0 5")
        (place / "cmdline").write_text("\0".join(words))
        (place / "environ").write_text("\0".join(f"{k}={v}" for k, v in environ.items()))
    return Root(str(folder))


def _rank(number: int) -> dict[str, str]:
    return {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2"}


def _pids(root: Root, *pids: int) -> list[int]:
    return [entry.pid for entry, _ in find(root, processes(root), pids).ranks]


def test_ranks_are_found_by_their_numbers_and_what_they_start_is_none(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        p10=(1, ["python", "torchrun", "train.py"], {"RANK": "0", "WORLD_SIZE": "1"}),
        p11=(10, ["bash", "wrap.sh"], _rank(0)),
        p12=(11, ["python", "train.py"], _rank(0)),
        p13=(12, ["python", "train.py"], _rank(0)),
        p14=(10, ["/usr/bin/python3.11", "train.py"], _rank(1)),
        p15=(14, ["nvcc", "x.cu"], _rank(1)),
        p16=(1, ["python", "-m", "ddpdoctor", "hang"], _rank(0)),
        p20=(1, ["python", "other.py"], {}),
    )
    assert _pids(root) == [12, 14]
    assert _pids(root, 10) == [12, 14]
    assert _pids(root, 14) == [14]
    assert _pids(root, 20) == []
    (tmp_path / "proc/20/maps").write_text("7f00-7f01 r-xp 0 0 0 /opt/torch/lib/libtorch_python.so\n")
    assert _pids(root, 20) == [20]
    assert _pids(root, 99) == []


def test_a_given_process_that_is_no_rank_and_has_none_below_is_said_to_be_none(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        p1=(0, ["/sbin/init"], {}),
        p5=(1, ["-bash"], {}),
        p6=(5, ["python", "torchrun", "train.py"], {}),
        p7=(1, ["python", "serve.py"], {}),
        p10=(1, ["python", "train.py"], _rank(0)),
    )
    for pid in (1, 5, 6, 7):
        (tmp_path / f"proc/{pid}/maps").write_text("7f00-7f01 r-xp 0 0 0 /usr/lib/libc.so.6\n")
    known = processes(root)
    asked = {pid: find(root, known, (pid,)) for pid in (1, 5, 6, 7, 10)}
    assert {pid: bool(found.ranks) for pid, found in asked.items()} == {1: True, 5: False, 6: False, 7: False, 10: True}
    assert asked[1].not_ranks == asked[10].not_ranks == ()
    assert [each.pid for pid in (5, 6, 7) for each in asked[pid].not_ranks] == [5, 6, 7]
    assert "is not a rank" in asked[5].not_ranks[0].reason
    assert "launcher without ranks" in asked[6].not_ranks[0].reason
    (tmp_path / "proc/7/maps").unlink()
    assert "unknown" in find(root, known, (7,)).not_ranks[0].reason


def test_slurms_numbers_and_spawned_ranks_are_found(tmp_path: Path) -> None:
    spawn = [
        "python",
        "-c",
        "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)",
        "--multiprocessing-fork",
    ]
    root = _tree(
        tmp_path,
        p10=(
            1,
            ["python", "train.py"],
            {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"},
        ),
        p20=(1, ["python", "main.py"], {}),
        p21=(20, spawn, {}),
        p22=(20, spawn, {}),
        p23=(20, ["python", "-c", "from multiprocessing.resource_tracker import main; main(3)"], {}),
    )
    assert _pids(root) == [10]
    for pid in (21, 22):
        (tmp_path / f"proc/{pid}/maps").write_text("7f00-7f01 r-xp 0 0 0 /opt/torch/lib/libtorch_cpu.so\n")
    assert _pids(root, 20) == [21, 22]


def test_a_process_of_which_proc_does_not_tell_is_not_waited_for(tmp_path: Path) -> None:
    for pid, rank, parent in ((10, None, 1), (11, 0, 10), (12, 1, 10), (13, 2, 10)):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (python) {'D' if pid == 12 else 'S'} {parent} " + "0 " * 20)
        (folder / "environ").write_text("" if rank is None else f"RANK={rank}\0LOCAL_RANK={rank}\0WORLD_SIZE=3\0")
        if pid == 12:
            os.mkfifo(folder / "cmdline")  # nobody writes: a read of it waits forever
        else:
            (folder / "cmdline").write_text("python\0train.py\0")
    root = Root(str(tmp_path))
    known = processes(root)
    found = {entry.pid: environ.rank for entry, environ in find(root, known).ranks}
    assert found == {11: 0, 13: 2, 12: None}
    assert [entry.pid for entry in known.values() if entry.is_silent] == [12]


def test_work_that_takes_too_long_for_one_thing_goes_on_with_the_next() -> None:
    gate = threading.Event()
    found, late = call_each_with_timeout(lambda n: gate.wait(60) if n == 2 else n, range(5), 0.2)
    gate.set()
    assert (sorted(found), late) == ([0, 1, 3, 4], [2])


def test_a_process_that_ended_has_no_share_of_the_cpu(tmp_path: Path) -> None:
    root = _tree(tmp_path, p10=(1, ["python", "train.py"], _rank(0)))
    known = processes(root)
    found = find(root, known)
    (tmp_path / "proc/10/stat").unlink()
    (process,) = watch(root, found.ranks, known, 0.0, "a")
    assert (process.state, process.cpu_share) == ("X", None)
