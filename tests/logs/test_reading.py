"""Reading logs: whatever they are packed in, however long, broken or mixed they are."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.collectors.log import parallel_read
from ddpdoctor.collectors.log.engines import engine
from ddpdoctor.collectors.log.read_logs import collect
from ddpdoctor.collectors.log.scanner import Scanner
from ddpdoctor.collectors.log.windows import windows
from ddpdoctor.facts.codec import decode, encode
from ddpdoctor.facts.log import InputKind, Log
from ddpdoctor.logs.line_prefix import split_prefix, who_of_name, without_control_codes

SIGNATURES = (r"CUDA out of memory\. Tried to allocate", r"NCCL WARN (Cuda|Call) failure", r"exitcode\s*: -9\b")
OOM = b"""[rank3]: Traceback (most recent call last):
[rank3]:   File "/job/train.py", line 42, in step
[rank3]:     out = model(x)
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
BAR = "Epoch 1:  12%|█▏        | 120/1000\r".encode()
STEP = b"step 12 loss 2.7134 tokens/s 18211\n"


def _log(path: Path, data: bytes) -> Log:
    path.write_bytes(data)
    return collect([str(path)], SIGNATURES)


@pytest.mark.parametrize(
    ("name", "pack"),
    [("log.gz", gzip.compress), ("log.xz", lzma.compress), ("log.bz2", bz2.compress), ("log.txt", bytes)],
)
def test_packed_logs_are_read(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    log = _log(tmp_path / name, pack(STEP * 50 + OOM))
    assert [(line.number, line.who.rank) for line in log.lines] == [(54, 3)]
    assert log.tracebacks[0].place is not None
    assert (log.tracebacks[0].place.file, log.tracebacks[0].place.line) == ("/job/train.py", 42)


def test_zstd_is_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    assert len(_log(tmp_path / "log.zst", zstandard.compress(OOM)).lines) == 1


def test_what_stands_before_the_break_of_a_packed_log_is_read_and_the_break_is_said(tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(200_000).hex().encode()
    packed = gzip.compress(OOM + b"\n".join(noise[i : i + 90] for i in range(0, len(noise), 90)))
    log = _log(tmp_path / "log.gz", packed[:-9000])
    assert len(log.lines) == 1
    assert log.sources[0].problem
    assert log.gaps


def test_standard_input_is_read_packed_or_not() -> None:
    for data in (OOM, gzip.compress(OOM)):
        assert len(collect(["-"], SIGNATURES, io.BytesIO(data)).lines) == 1


def test_text_in_utf_16_is_read(tmp_path: Path) -> None:
    assert len(_log(tmp_path / "log.txt", OOM.decode().encode("utf-16")).lines) == 1


def test_what_is_no_log_is_said(tmp_path: Path) -> None:
    assert _log(tmp_path / "a", random.Random(2).randbytes(9000)).sources[0].kind is InputKind.BINARY
    assert _log(tmp_path / "b", b"").sources[0].kind is InputKind.EMPTY
    assert collect([str(tmp_path / "missing")], SIGNATURES).sources[0].problem == "no such file"
    (tmp_path / "folder").mkdir()
    assert collect([str(tmp_path / "folder")], SIGNATURES).sources[0].problem


def test_a_line_of_10_mb_does_not_matter(tmp_path: Path) -> None:
    log = _log(
        tmp_path / "log.txt",
        b"x" * 10_000_000 + b" CUDA out of memory. Tried to allocate \xff" + b"y" * 99 + b"\n" + OOM,
    )
    assert [line.number for line in log.lines] == [1, 5]
    assert all(len(line.text) <= 2000 for line in log.lines)
    assert log.sources[0].lines == 5


def test_carriage_returns_and_colours_are_seen_through(tmp_path: Path) -> None:
    log = _log(
        tmp_path / "log.txt", BAR * 30 + b"\x1b[31m[rank1]:\x1b[0m CUDA out of memory. Tried to allocate 1 GiB\n"
    )
    assert (log.lines[0].text, log.lines[0].who.rank) == ("CUDA out of memory. Tried to allocate 1 GiB", 1)


def test_of_a_long_line_the_part_that_matters_is_kept(tmp_path: Path) -> None:
    for before in (100, 2_500, 50_000):
        log = _log(tmp_path / "log.txt", b"x" * before + b" CUDA out of memory. Tried to allocate 1 GiB" + b"y" * 9_000)
        assert ["CUDA out of memory. Tried to allocate" in line.text for line in log.lines] == [True]


def test_what_follows_a_line_that_matters_between_carriage_returns_is_seen(tmp_path: Path) -> None:
    data = b"NCCL WARN Call failure\r" + BAR * 2_000 + OOM.replace(b"\n", b"\r\n") + BAR * 2_000
    assert [line.text[:9] for line in _log(tmp_path / "log.txt", data).lines] == ["NCCL WARN", "torch.Out"]


def test_the_same_line_a_million_times_is_kept_once(tmp_path: Path) -> None:
    line = b"[rank%d]: NCCL WARN Cuda failure 2 'out of memory' at %d\n"
    log = _log(tmp_path / "log.txt", b"".join(line % (i % 2, i) for i in range(20_000)))
    assert len(log.lines) == 16
    assert sum(each.count for each in log.lines) == 20_000
    assert max(each.last for each in log.lines) == 20_000


@given(
    st.lists(
        st.sampled_from(
            [STEP, OOM, b"\n", b"\r", b"x" * 300 + b"\n", b"exitcode  : -9 (pid: 7)\n", BAR, STEP[:-1] + b"\r\n"]
        ),
        max_size=40,
    ),
    st.integers(40, 4000),
)
def test_a_file_read_in_spans_gives_what_it_gives_as_a_whole(pieces: list[bytes], span_bytes: int) -> None:
    text = b"".join(pieces)
    with tempfile.NamedTemporaryFile(suffix=".log") as file, pytest.MonkeyPatch.context() as patch:
        file.write(text)
        file.flush()
        whole = collect([file.name], SIGNATURES)
        patch.setattr("ddpdoctor.collectors.log.read_logs.SPAN_BYTES", span_bytes)
        patch.setattr("ddpdoctor.collectors.log.parallel_read.SPAN_BYTES", span_bytes)
        patch.setattr("ddpdoctor.collectors.log.windows.CHUNK_BYTES", 70)
        assert collect([file.name], SIGNATURES) == whole
    assert whole.sources[0].lines == text.count(b"\n")


@given(st.binary(max_size=3000), st.integers(1, 700))
def test_windows_cover_every_byte_once(data: bytes, size: int) -> None:
    class Small(io.BytesIO):
        def read(self, wanted: int | None = -1, /) -> bytes:
            return super().read(size)

    assert b"".join(window[start:end] for window, start, end in windows(Small(data))) == data


@given(
    st.lists(
        st.sampled_from(["step 1", "step 22", "CUDA out of memory 3", "a needle 7 here", "needle", "hay"]), max_size=30
    )
)
def test_both_engines_find_the_same_lines(lines: list[str]) -> None:
    pytest.importorskip("re2")
    data = "\n".join(lines).encode() + b"\n"
    literals = {b"needle", b"out of memory 3"}
    with pytest.MonkeyPatch.context() as patch:
        fast = _lines(engine(literals).candidates(data, 0, len(data)), data)
        patch.setenv("DDPDOCTOR_ENGINE", "python")
        plain = _lines(engine(literals).candidates(data, 0, len(data)), data)
    assert fast <= plain
    assert {i for i in plain if any(each in data.split(b"\n")[i] for each in literals)} == fast


def _lines(places: object, data: bytes) -> set[int]:
    return {data.count(b"\n", 0, place) for place in places}  # type: ignore[attr-defined]


@given(st.text(max_size=400))
def test_no_line_makes_the_prefixes_stumble(line: str) -> None:
    assert len(split_prefix(without_control_codes(line)).text) <= len(line)


@given(st.text(alphabet="ab0/._-rank123nodeattempt_stdout.log", max_size=80))
def test_no_file_name_does(name: str) -> None:
    who_of_name(name)


@given(st.binary(max_size=2000))
def test_any_bytes_are_read_to_their_end(data: bytes) -> None:
    part = Scanner(SIGNATURES).scan(io.BytesIO(OOM + data))
    assert part.newlines == (OOM + data).count(b"\n")


def test_where_the_logs_lie_says_nothing_of_who_wrote_them(tmp_path: Path) -> None:
    folder = tmp_path / "node7" / "rank5"
    folder.mkdir(parents=True)
    log = _log(folder / "job.txt", b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    assert (log.lines[0].who.rank, log.lines[0].who.host) == (None, None)


def test_a_log_survives_being_saved(tmp_path: Path) -> None:
    log = _log(tmp_path / "rank3.txt", OOM * 3)
    assert decode(Log, encode(log)) == log


def test_many_files_are_read_on_all_cores(tmp_path: Path) -> None:
    for rank in range(80):
        (tmp_path / f"rank{rank}.txt").write_bytes(STEP * 20 + (OOM.replace(b"[rank3]: ", b"") if rank == 63 else b""))
    assert parallel_read.WORTH_FILES <= 80
    log = collect([str(tmp_path)], SIGNATURES)
    assert [line.who.rank for line in log.lines] == [63]
    assert len(log.sources) == 80


@pytest.mark.parametrize(
    ("line", "rank", "local_rank", "host", "task", "text"),
    [
        ("[rank3]: hello", 3, None, None, None, "hello"),
        ("[default1]:[rank5]: hello", 5, 1, None, None, "hello"),
        ("[1,7]<stderr>:hello", 7, None, None, None, "hello"),
        ("12: hello", None, None, None, 12, "hello"),
        (
            "[pod/bert-worker-1/pytorch] 2025-04-12T09:30:11.123456789Z hello",
            None,
            None,
            "bert-worker-1",
            None,
            "hello",
        ),
        ("2025-04-12T09:30:11.123456789Z stdout F hello", None, None, None, None, "hello"),
        ("gpu7:112:340 [4] NCCL WARN hello", None, None, "gpu7", None, "NCCL WARN hello"),
        ("[2025-01-02 03:04:05] gpu7:112:340 [4] NCCL WARN hello", None, None, "gpu7", None, "NCCL WARN hello"),
        ("(RayTrainWorker pid=99, ip=10.0.0.7) hello", None, None, "10.0.0.7", None, "hello"),
        ("node12: hello", None, None, "node12", None, "hello"),
        ("`gpu7:112:340 [4] NCCL WARN hello", None, None, "gpu7", None, "NCCL WARN hello"),
        ("> [rank1]: hello", 1, None, None, None, "hello"),
        ("10.0.0.7:112:340 [4] NCCL WARN hello", None, None, "10.0.0.7", None, "NCCL WARN hello"),
        ("[gpu7:112 :0:340] Caught signal 7", None, None, "gpu7", None, "[gpu7:112 :0:340] Caught signal 7"),
        ("[gpu7:112] *** Process received", None, None, "gpu7", None, "[gpu7:112] *** Process received"),
        ("[train.py:112] hello", None, None, None, None, "[train.py:112] hello"),
        ("worker-1  | hello", None, None, "worker-1", None, "hello"),
        ("stderr: hello", None, None, None, None, "hello"),
        ("ValueError: 3: hello", None, None, None, None, "ValueError: 3: hello"),
    ],
)
def test_prefixes_say_who(
    line: str, rank: int | None, local_rank: int | None, host: str | None, task: int | None, text: str
) -> None:
    found = split_prefix(line)
    who = found.who
    assert (who.rank, who.local_rank, who.host, who.task, found.text) == (rank, local_rank, host, task, text)


@pytest.mark.parametrize(
    ("name", "rank", "host", "node_rank"),
    [
        ("logs/rank3.txt", 3, None, None),
        ("out/global_rank_12.log", 12, None, None),
        ("slurm-991-node05.out", None, "node05", None),
        ("node1.log", None, "node1", None),
        ("train_gpu1.log", None, None, None),
        ("c1.log", None, None, None),
        ("c1-12.log", None, "c1-12", None),
        ("job/node_rank_2/torchrun.log", None, None, 2),
        ("train.log", None, None, None),
        ("run/none_ab/attempt_0/1/stderr.log", None, None, None),
    ],
)
def test_file_names_say_who(name: str, rank: int | None, host: str | None, node_rank: int | None) -> None:
    who, _ = who_of_name(name)
    assert (who.rank, who.host, who.node_rank) == (rank, host, node_rank)


def _killed_at_seven(number: int) -> str:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"read {number}"


def test_a_killed_reader_does_not_stop_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_read, "LOST_SECONDS", 1.0)
    monkeypatch.setattr(parallel_read, "cores", lambda: 2)
    tasks = range(80)
    results = list(parallel_read.on_all_cores(_killed_at_seven, tasks, 0, lambda task, why: f"{why} {task}"))
    assert len(results) == 80
    assert f"{parallel_read.KILLED} 7" in results
    assert set(results) <= {f"read {task}" for task in tasks} | {f"{parallel_read.KILLED} {task}" for task in tasks}
