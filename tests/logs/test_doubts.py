"""Logs in which the plainest reading says too much: which cause is told first, how, and at which place."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddpdoctor.app.request import Request
from ddpdoctor.app.triage import triaged
from ddpdoctor.findings import Report, Role, Severity

REFUSED = (
    "gpu-7:8100:8155 [2] NCCL INFO Call to connect returned Connection refused, retrying\n" * 3
    + "gpu-7:8100:8155 [2] include/socket.h:390 NCCL WARN Connect to 10.1.4.9<40213> failed : Connection refused\n"
)
SEGMENT = """\
gpu-7:910:955 [1] misc/shmutils.cc:{line} NCCL WARN {reason}
gpu-7:910:955 [1] misc/shmutils.cc:114 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Qw12 (size 9637888)
"""
PREEMPTED = "slurmstepd: error: *** JOB 771 ON cn04 CANCELLED AT 2025-02-03T04:05:06 DUE TO PREEMPTION ***\n"
RAISED = (
    "Traceback (most recent call last):\n  File \"/job/fit.py\", line 31, in <module>\n    main()\nKeyError: 'lr'\n"
)
CROWDED = (
    "RuntimeError: Timed out initializing process group in store based barrier on rank: 3, for key: store_based_barrier_key:1 "
    "(world_size=4, worker_count=8, timeout=0:30:00)\n"
)
XID = "[{at}] NVRM: Xid (PCI:0000:{bus}:00): {code}, pid=88, name=python, words\n"
FORKED = """\
Traceback (most recent call last):
  File "/opt/env/lib/python3.11/site-packages/shipped/engine.py", line 77, in start
    torch.cuda.set_device(0)
  File "/opt/env/lib/python3.11/site-packages/torch/cuda/__init__.py", line 300, in _lazy_init
    raise RuntimeError(
RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' method
"""
OF_A_DATACLASS = """\
Traceback (most recent call last):
  File "/job/tune.py", line 44, in <module>
    args = Arguments(seed=1)
  File "<string>", line 12, in __init__
  File "/opt/env/lib/python3.11/site-packages/transformers/training_args.py", line 9, in __post_init__
    self.device
RuntimeError: CUDA error: uncorrectable ECC error encountered
"""
STRESSED = """\
Traceback (most recent call last):
  File "/job/loss.py", line 52, in forward
    **return self.table(index)**
**RuntimeError: CUDA error: device-side assert triggered**
"""
KILLED_BESIDE = (
    'Traceback (most recent call last):\n  File "/job/search.py", line 8, in <module>\n    run()\nray.exceptions.RayActorError: '
    "The actor died\nslurmstepd: error: Detected 2 oom-kill event(s) in step 5.batch cgroup.\n"
)
TWO_RAISE = (
    '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/job/data.py", line 5, in load\n'
    "[rank1]:     raise ValueError(path)\n[rank1]: ValueError: no data\n[rank4]: Traceback (most recent call last):\n"
    '[rank4]:   File "/job/data.py", line 5, in load\n'
)
ESCAPED = (
    '  "extraInfo": {"py_callstack": "Traceback (most recent call last):\\n  File \\"/env/lib/python3.9/site-packages/torch/'
    'distributed/elastic/rendezvous/c10d_rendezvous_backend.py\\", line 155, in _create_tcp_store\\n    store = TCPStore(\\n'
    'RuntimeError: connect() timed out. Original timeout was 30000 ms.\\n"}\n'
)
OLD_NCCL = """\
gpu-7:18:61 [0] INFO comm 0x7fa4 rank 0 nranks 2
gpu-7:18:60 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out
gpu-7:18:60 [0] INFO transport/net_socket.cu:118 -> 2
gpu-7:18:60 [0] INFO bootstrap.cu:28 -> 2 [Net]
gpu-7:18:61 [0] include/socket.h:371 WARN Connection closed by remote peer
gpu-7:18:61 [0] INFO transport/net_socket.cu:166 -> 2
gpu-7:18:61 [0] INFO bootstrap.cu:120 -> 2
"""


def _report(folder: Path, text: str) -> Report:
    log = folder / "out.log"
    log.write_text(text)
    return triaged([str(log)], Request(), started=time.monotonic())[0]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (REFUSED, "NET021", "could not connect to 10.1.4.9. Either the rank at that address ended first"),
        (
            "init_method: file:///scratch/pg.init\n" + REFUSED,
            "NET021",
            "init file has the addresses of an earlier run",
        ),
        (
            "gpu-7:8:9 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>\n" + REFUSED,
            "NET021",
            "does not reach the other nodes",
        ),
        (
            SEGMENT.format(line=103, reason="Cuda failure 'invalid argument'"),
            "HOST001",
            "NCCL could not create its shared memory (",
        ),
        (
            SEGMENT.format(line=87, reason="posix_fallocate failed: No space left on device"),
            "HOST001",
            "/dev/shm is too small",
        ),
        (PREEMPTED + CROWDED, "LOG015", "The scheduler preempted the job"),
        (RAISED + PREEMPTED, "LOG500", "KeyError"),
        (PREEMPTED + RAISED, "LOG015", "The scheduler preempted the job"),
        (PREEMPTED + "step 5 loss 0.1\n" * 400 + RAISED, "LOG500", "KeyError"),
        ("File already exists: /scratch/run1/ddp_init\n" + CROWDED, "NET018", "left by an earlier run"),
        (CROWDED, "PROBE004", "8 workers joined a group of 4. Either"),
        ("fit.py: error: unrecognized arguments: --local_rank=1\n", "LAUNCH050", "before torch 2.0 adds --local_rank"),
        ("fit.py: error: unrecognized arguments: --local-rank=1 -m\n", "LAUNCH050", "it also rejects -m"),
        (
            "/usr/bin/python3: No module named torch.distibuted.run\n",
            "LAUNCH003",
            "did you mean torch.distributed.run?",
        ),
        ("/usr/bin/python3: No module named tools.fit\n", "LAUNCH003", "Python has no module tools.fit: "),
        (
            "RuntimeError: DataLoader worker (pid 41) is killed by signal: Terminated.\n",
            "LOG500",
            "Either the launcher or the scheduler ended it",
        ),
        (TWO_RAISE, "LOG500", "rank 1: ValueError: no data at data.py:5"),
        (ESCAPED, "NET003", "no answer from the master address"),
        (OLD_NCCL, "NET009", "rank 0 on gpu-7: a rank got no answer from another rank. Either"),
        (
            "RuntimeError: [/src/gloo/transport/tcp/pair.cc:769] connect [127.0.1.1]:3496: Connection refused\n",
            "NET017",
            "Either, on one machine, the rank at that address ended first",
        ),
        (
            "n1:9:9 [1] misc/nvmlwrap.cc:187 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found\n",
            "ENV064",
            "Either several containers",
        ),
    ],
)
def test_the_first_cause_says_no_more_than_the_log(tmp_path: Path, text: str, code: str, words: str) -> None:
    report = _report(tmp_path, text)
    first = report.findings[0]
    assert (first.code, first.role) == (code, Role.CAUSE), [(f.code, f.role) for f in report.findings]
    assert words in first.text


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (FORKED, ("shipped/engine.py", 77)),
        (OF_A_DATACLASS, ("/job/tune.py", 44)),
        (STRESSED, ("/job/loss.py", 52)),
        (KILLED_BESIDE, ("out.log", 5)),
    ],
)
def test_the_place_is_a_file_of_who_failed(tmp_path: Path, text: str, place: tuple[str, int]) -> None:
    where = _report(tmp_path, text).findings[0].where
    assert (where.file or "").endswith(place[0])
    assert where.line == place[1]


def test_a_fault_of_a_kernel_comes_before_the_timeout_of_its_channel(tmp_path: Path) -> None:
    text = XID.format(at="100.000001", bus="3b", code=31) + XID.format(at="103.000001", bus="3b", code=109)
    first, second = _report(tmp_path, text).findings
    assert (first.code, first.role) == ("GPU043", Role.CAUSE)
    assert (second.code, second.role, second.caused_by) == ("GPU040", Role.CONSEQUENCE, "GPU043")
    assert second.worst is Severity.WARNING, "what follows is not the error of the report"


@pytest.mark.parametrize(("at", "bus"), [("900.000001", "3b"), ("103.000001", "5e")])
def test_a_timeout_long_after_it_or_of_another_gpu_is_a_cause(tmp_path: Path, at: str, bus: str) -> None:
    text = XID.format(at="100.000001", bus="3b", code=31) + XID.format(at=at, bus=bus, code=109)
    first = _report(tmp_path, text).findings[0]
    assert (first.code, first.role) == ("GPU040", Role.CAUSE)


def test_a_fault_of_a_program_alone_is_no_noise(tmp_path: Path) -> None:
    only = _report(tmp_path, XID.format(at="100.000001", bus="3b", code=31)).findings[0]
    assert (only.code, only.role) == ("GPU043", Role.CAUSE)


def test_the_fix_of_an_exception_names_its_place_and_the_whole_traceback(tmp_path: Path) -> None:
    found = next(each for each in _report(tmp_path, f"starting\n{RAISED}").findings if each.code == "LOG500")
    assert found.fix == f"Correct /job/fit.py:31; full traceback: {tmp_path / 'out.log'}:2-5."


def test_of_one_rank_that_raised_it_is_said_what_to_compare(tmp_path: Path) -> None:
    text = "[rank0]: step 1\n" + "".join(f"[rank2]: {line}\n" for line in RAISED.splitlines())
    found = next(each for each in _report(tmp_path, text).findings if "fit.py" in each.fix)
    assert "only rank 2 raised it" in found.fix
