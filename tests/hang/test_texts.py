"""Stacks of py-spy and faulthandler, and answers of NCCL's RAS, as files."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from pathlib import Path

import pytest
from commandline import doctor
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.collectors.hang.ras_client import ask
from ddpdoctor.collectors.log.input_kind import kind_of
from ddpdoctor.dumps.ras import ras_of
from ddpdoctor.dumps.stacks import as_processes, debug_answers_in, stacks_in
from ddpdoctor.facts.log import InputKind

PYSPY = """Process {pid}: /usr/bin/python3 -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread {pid} (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3252)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
        Arguments:
            args: <tuple at 0x7f>
    step (train.py:32)
    <module> (train.py:90)
Thread 999 (idle): "QueueFeederThread"
    Condition.wait (threading.py:327)
"""
FAULT = """Timeout (0:10:00)!
Thread 0x00007f0f5d7fa640 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007f10a8c4a740 (most recent call first):
  File "/job/data.py", line 17 in __getitem__
  File "/job/train.py", line 30 in step
"""
RAS = """NCCL version 2.24.1 compiled with CUDA 12.6

Job summary
===========

Errors
======

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 29 -- GPU 5 managed by process 3487984 on node 172.16.64.213

Warnings
========
#0-1 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  31 ranks have launched up to operation 6650
  1 rank has launched up to operation 6649
  Rank 3 -- GPU 3 managed by process 483075 on node 172.16.64.210
"""
RAS_JSON = {
    "nccl_version": "2.28.7",
    "communicators": [
        {
            "hash": "0xabc",
            "size": 3,
            "ranks": [
                {"rank": r, "host": "n0", "pid": 10 + r, "collective_counts": {"AllReduce": 7 - (r == 1)}}
                for r in range(3)
            ],
            "missing_ranks": [
                {"rank": 3, "host": "n1", "pid": 13, "status": {"unresponsive": True, "considered_dead": True}}
            ],
        }
    ],
}
OF_TWO_KINDS = """NCCL version 2.30.4 compiled with CUDA 13.1

#0-0 (00c0ffee00c0ffee) MISMATCH
  Communicator ranks have different status
  15 ranks have status RUNNING
  Rank 9 has status FINALIZE -- GPU 1 managed by process 41 on node 10.0.0.2
  Communicator ranks have different AllReduce operation counts
  15 ranks have launched up to operation 6650
  Rank 5 has launched up to operation 6649 -- GPU 5 (NVML 3) managed by process 4715 on node 10.0.0.1

  Communicator ranks have different Broadcast operation counts
  15 ranks have launched up to operation 12
  Rank 7 has not launched any operations -- [process information not found]

"""


def test_py_spy_gives_the_main_thread_and_its_place() -> None:
    (stack,) = stacks_in("rank_2.txt", PYSPY.format(pid=12))
    assert (stack.tool, stack.pid, stack.rank, len(stack.threads)) == ("py-spy", 12, 2, 2)
    assert stack.main is not None
    assert [frame.line for frame in stack.main.frames] == [3252, 83, 32, 90]


def test_py_spy_as_json_gives_the_same(tmp_path: Path) -> None:
    frames = [
        {"name": "read", "filename": "/job/data.py", "line": 17},
        {"name": "<module>", "filename": "/job/t.py", "line": 3},
    ]
    other = {"pid": 12, "thread_id": 2, "thread_name": "ThreadPool", "owns_gil": False, "frames": []}
    main = {
        **other,
        "thread_id": 1,
        "thread_name": "MainThread",
        "frames": frames,
        "process_info": {"command_line": "python t.py"},
    }
    text = json.dumps([other, main], indent=2)
    assert kind_of(text.encode(), "rank_2.json") is InputKind.STACKS
    (stack,) = stacks_in("rank_2.json", text)
    assert (stack.tool, stack.pid, stack.rank, stack.command) == ("py-spy", 12, 2, "python t.py")
    assert stack.main is not None
    assert [str(frame) for frame in stack.main.frames] == ["/job/data.py:17 in read", "/job/t.py:3 in <module>"]
    for broken in ('[{"thread_id"', '[{"thread_id": 1, "frames": 3, "pid": "x"}]', '["thread_id"]'):
        with contextlib.suppress(ValueError):
            assert stacks_in("x", broken) == ()


def test_faulthandler_writes_the_main_thread_last() -> None:
    (stack,) = stacks_in("stderr_rank1.log", FAULT)
    assert (stack.tool, stack.rank, len(stack.threads)) == ("faulthandler", 1, 2)
    assert stack.main is not None
    assert str(stack.main.frames[0]) == "/job/data.py:17 in __getitem__"


def test_several_processes_stand_in_one_file_and_workers_are_no_ranks() -> None:
    worker = (
        'Process 77: python train.py\nPython v3.11\n\nThread 77 (idle): "MainThread"\n    get (queue.py:1)\n'
        "    _worker_loop (torch/utils/data/_utils/worker.py:334)\n    <module> (train.py:90)\n"
    )
    stacks = stacks_in("all.txt", PYSPY.format(pid=12) + worker + PYSPY.format(pid=13))
    assert [each.pid for each in as_processes(stacks)] == [12, 13]


def test_triage_names_the_rank_whose_stack_is_elsewhere(tmp_path: Path) -> None:
    for rank in (0, 2):
        (tmp_path / f"pyspy_rank{rank}.txt").write_text(PYSPY.format(pid=rank + 1))
    (tmp_path / "fault_rank1.txt").write_text(FAULT)
    report = json.loads(doctor("triage", str(tmp_path), "--format", "json").stdout)
    first = report["findings"][0]
    assert (first["code"], first["where"]["rank"]) == ("PROBE009", 1)
    assert (first["where"]["file"], first["where"]["line"]) == ("/job/data.py", 17)


@pytest.mark.parametrize("content", [RAS, json.dumps(RAS_JSON)])
def test_triage_reads_answers_of_ras(tmp_path: Path, content: str) -> None:
    (tmp_path / "ras.out").write_text(content)
    report = json.loads(doctor("triage", str(tmp_path / "ras.out"), "--format", "json").stdout)
    ranks = {each["code"]: each["ranks"] for each in report["findings"]}
    assert ranks == ({"LOG004": [29], "LOG001": [3]} if content is RAS else {"LOG004": [3], "LOG001": [1]})


def test_json_of_ras_without_the_comma_before_a_missing_rank_s_status_is_read() -> None:
    """NCCL 2.28.7 to 2.28.9 print it so."""
    missing = (
        '{"rank": 3, "host": "n1", "pid": 13, "cuda_dev": 1, "nvml_dev": 1\n  "status": {"considered_dead": true}}'
    )
    group = f'{{"hash": "0xabc", "size": 4, "ranks": [], "missing_ranks": [{missing}]}}'
    text = f'{{"nccl_version": "2.28.7", "communicators": [{group}]}}'
    (answer,) = ras_of("ras.json", text)
    assert [(peer.rank, peer.host, peer.trouble) for peer in answer.peers] == [(3, "n1", "dead")]


DEAD = """NCCL version 2.27.3 compiled with CUDA 12.9

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21
"""


def test_the_text_of_ras_names_the_rank_that_is_dead_and_its_node(tmp_path: Path) -> None:
    (tmp_path / "ras.out").write_text(DEAD)
    (found,) = json.loads(doctor("triage", str(tmp_path / "ras.out"), "--format", "json").stdout)["findings"]
    assert (found["code"], found["severity"], found["ranks"]) == ("LOG004", "error", [21])
    assert found["message"].startswith("rank 21 on 172.16.64.213")


def test_ras_counts_each_kind_of_collective_by_itself() -> None:
    (answer,) = ras_of("ras.out", OF_TWO_KINDS)
    assert (answer.size, {kind: max(tally) for kind, tally in answer.tallies.items()}) == (
        16,
        {"AllReduce": 6650, "Broadcast": 12},
    )
    peers = {peer.rank: peer for peer in answer.peers}
    assert (peers[5].counts, peers[5].host, peers[5].pid, peers[5].gpu) == ({"AllReduce": 6649}, "10.0.0.1", 4715, 5)
    assert (peers[7].counts, peers[9].counts) == ({"Broadcast": 0}, {})


AHEAD = """#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640
  2 ranks have launched up to operation 641
  Rank 12 -- GPU 4 managed by process 323032 on node 10.0.0.4
  Rank 13 -- GPU 5 managed by process 323033 on node 10.0.0.4
"""


def test_those_that_ras_lists_because_they_are_ahead_are_not_blamed(tmp_path: Path) -> None:
    (tmp_path / "ras.out").write_text(AHEAD)
    (found,) = json.loads(doctor("triage", str(tmp_path / "ras.out"), "--format", "json").stdout)["findings"]
    assert (found["code"], found["ranks"]) == ("LOG001", [])
    text = (
        "ranks 12, 13 launched 641 AllGather and wait for others; 30 ranks, which NCCL RAS does not list, launched 640"
    )
    assert text in found["message"]


def test_ras_is_asked_where_the_job_says() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        heard: list[bytes] = []

        def serve() -> None:
            link, _ = server.accept()
            with link:
                while b"STATUS" not in b"".join(heard):
                    heard.append(link.recv(4096))
                link.sendall(f"SERVER PROTOCOL 2\nOK\n{RAS}".encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        asked, answer = ask({"NCCL_RAS_ADDR": address}, 20.0)
        thread.join(20)
    assert asked == address
    assert answer.splitlines() == RAS.splitlines()
    assert b"CLIENT PROTOCOL" in b"".join(heard)


@given(st.text(max_size=300), st.lists(st.sampled_from([*PYSPY.splitlines(), *FAULT.splitlines()]), max_size=30))
def test_any_text_is_survived(text: str, lines: list[str]) -> None:
    for content in (text, "\n".join(lines), text + "\n".join(lines)):
        as_processes(stacks_in("x_1", content))


@given(st.lists(st.sampled_from(RAS.splitlines()), max_size=30), st.text(max_size=50))
def test_any_answer_is_survived(lines: list[str], text: str) -> None:
    ras_of("x", "\n".join([*lines, text.lstrip("{")]))


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["rank", "ranks", "size", "collective_counts", "missing_ranks", "status", "pid"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(JSON)
def test_any_json_answer_is_survived(content: object) -> None:
    ras_of("x", json.dumps({"communicators": [content], "nccl_version": ""}))


SERVED = """PARTIAL DATA: 3/4 workers responded
  Rank 2: ConnectionError: Cannot connect to host gpu-08:40121

=== Rank 0: http://gpu-07:40121/handler/dump_traceback? ===
Current thread 0x00007fd18b7fe6c0 (most recent call first):
  <no Python frame>

Thread 0x00007fd1b89c7b80 (most recent call first):
  File "/opt/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/opt/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/app/train.py", line 16 in <module>

=== Rank 1: http://gpu-07:40122/handler/dump_traceback? ===
Thread 0x00007fd1b89c7b80 (most recent call first):
  File "/opt/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/opt/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/app/train.py", line 16 in <module>

=== Rank 2: http://gpu-08:40121/handler/dump_traceback? ===
Error: 503
=== Rank 3: http://gpu-08.example.org:40122/handler/dump_traceback? ===
Thread 0x00007efdc3a27b80 (most recent call first):
  File "/app/data.py", line 12 in read
  File "/app/train.py", line 15 in <module>
"""
"""What the debug server of torch writes into its folder of dumps (stacks_20260105_101112.txt)."""


def _page(text: str) -> str:
    """The same as a saved page of the server: Jinja escapes quotes."""
    body = re.sub(r"^=== (.*) ===$", r"<h2>\1</h2><pre>", text.replace('"', "&#34;"), flags=re.MULTILINE)
    body = body.replace("<pre>\n", "\n<pre>")
    return f"<!doctype html>\n<head>\n    <title>Stacks</title>\n{'    <style></style>' * 300}\n{body}</pre>\n"


@pytest.mark.parametrize("text", [SERVED, _page(SERVED)])
def test_stacks_of_the_debug_server_are_those_of_several_ranks(text: str) -> None:
    stacks = stacks_in("stacks.txt", text)
    assert [(each.rank, each.host) for each in stacks] == [(0, "gpu-07"), (1, "gpu-07"), (3, "gpu-08")]
    assert [str(each.frames[0]) for each in as_processes(stacks)][2] == "/app/data.py:12 in read"
    (silent,) = debug_answers_in("stacks.txt", text)
    assert (silent.rank, silent.trouble, silent.host) == (2, "no answer", "gpu-08")


def test_triage_reads_a_dump_of_the_debug_server(tmp_path: Path) -> None:
    (tmp_path / "stacks_20260105_101112.txt").write_text(SERVED)
    report = json.loads(doctor("triage", str(tmp_path), "--format", "json").stdout)
    found = {each["code"]: (each["where"]["host"], each["ranks"]) for each in report["findings"]}
    assert found == {"PROBE009": ("gpu-08", [3]), "LOG004": ("gpu-08", [2])}
    assert report["jobs"][0]["ranks"] == [0, 1, 3]


def test_a_rank_that_reports_itself_unhealthy_is_no_pass(tmp_path: Path) -> None:
    file = tmp_path / "c10d_health_check_20260105_101112.txt"
    sick = '{"healthy": false, "unhealthy_backends": ["nccl"]}'
    heading = "=== Rank {}: http://gpu-07:40121/handler/c10d_health_check? ===\n"
    file.write_text(heading.format(0) + '{"healthy": true}\n' + heading.format(1) + sick + "\n")
    report = json.loads(doctor("triage", str(file), "--format", "json").stdout)
    (finding,) = report["findings"]
    assert (report["verdict"], finding["code"], finding["ranks"]) == ("fail", "LOG506", [1])
    assert (finding["where"]["line"], finding["where"]["host"]) == (4, "gpu-07")


def test_a_rank_that_lacks_a_handler_has_answered() -> None:
    text = (
        "PARTIAL DATA: 0/1 workers responded\n  Rank 0: HTTP Error 404: Not Found\n\n"
        "=== Rank 0: http://gpu-07:1/handler/torchcomms_health_check? ===\nError: 408\n"
    )
    assert debug_answers_in("torchcomms_health_check.txt", text) == ()
