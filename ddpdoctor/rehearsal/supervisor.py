"""Starts the ranks of a rehearsal, reads their records as they run, and ends it: at the first difference, after enough steps,
when all ranks wait, or when the time is up. Standard library only."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.rehearsal.hook.leftovers import end_marked
from ddpdoctor.rehearsal.stage import RehearsalFolder
from ddpdoctor.sequences.comparison import Comparison
from ddpdoctor.sequences.records import Record, RecordReader
from ddpdoctor.system.process import kill, start

__all__ = ["RehearsalPlan", "RehearsalRun", "rehearse"]

CONFIG_VARIABLE = "DDPDOCTOR_REHEARSAL"
GRACE = 0.3
"""Seconds between the first difference and the end: other ranks may still announce their calls."""
RAISED_GRACE = 1.0
"""Seconds that the other ranks have after one raised: the same exception on all ranks is one finding."""
STALLED = 1.0
"""Seconds without a record and without CPU time after which ranks that all wait are stuck."""
JOINING = 8.0
"""Seconds without CPU time after which no further process is expected to join."""
HEAD, TAIL = 64 * 1024, 192 * 1024
"""Bytes of a rank's output that are kept, from its begin and its end."""
STACK_SIGNAL = signal.SIGRTMAX - 3


@dataclass(frozen=True)
class RehearsalPlan:
    """What is started. `environs` are the variables of each rank; one process without any for a script that starts its ranks.

    `gpus` is the number of imagined devices of a node, `steps` the steps that each rank makes at least; `is_strict` ends it after
    exactly these.
    """

    python: str
    argv: tuple[str, ...]
    cwd: str
    environs: tuple[Mapping[str, str], ...]
    extra: tuple[tuple[str, ...], ...]
    gpus: int
    script: str = ""
    module: str = ""
    steps: int = 3
    is_strict: bool = False
    seconds: float = 60.0
    epoch_steps: int | None = None
    cuts_network: bool = True
    has_scratch: bool = True
    modules: tuple[str, ...] = ()
    expected: int | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass
class RehearsalRun:
    """The result. `outputs` are what the ranks printed, `stacks` where ranks were that waited or were busy."""

    comparison: Comparison
    outputs: dict[int, bytes] = field(default_factory=dict)
    stacks: dict[int, str] = field(default_factory=dict)
    isolation: dict[str, str] = field(default_factory=dict)
    torch: str = ""
    python: str = ""
    seconds: float = 0.0
    is_out_of_time: bool = False
    start_error: str = ""
    left: list[int] = field(default_factory=list)
    dropped: int = 0


class _Output:
    """The begin and the end of what one process printed."""

    def __init__(self) -> None:
        self._head, self._tail = b"", b""

    def add(self, data: bytes) -> None:
        room = HEAD - len(self._head)
        self._head += data[:room]
        self._tail = (self._tail + data[room:])[-TAIL:] if room < len(data) else self._tail

    @property
    def content(self) -> bytes:
        return self._head + self._tail


def rehearse(plan: RehearsalPlan, progress: Callable[[str], None] = lambda words: None) -> RehearsalRun:
    """Run the rehearsal; it always ends, and leaves no process.

    Raises:
        OSError: the interpreter cannot be started, or no temporary folder can be made.
    """
    stage = RehearsalFolder()
    try:
        return _Rehearsal(plan, stage, progress).run()
    finally:
        stage.close()


class _Rehearsal:
    """One run: its processes, its sockets, its clock."""

    def __init__(self, plan: RehearsalPlan, stage: RehearsalFolder, progress: Callable[[str], None]) -> None:
        self._plan, self._stage, self._progress = plan, stage, progress
        self._selector = selectors.DefaultSelector()
        self._comparison = Comparison(plan.expected)
        self._result = RehearsalRun(self._comparison)
        self._outputs = {index: _Output() for index in range(len(plan.environs))}
        self._own_output = _Output()
        self._open: set[int] = set()
        self._pids: dict[int, int] = {}
        self._readers: dict[int, RecordReader] = {}
        self._exits: dict[int, int] = {}
        self._child: subprocess.Popen[bytes] | None = None
        self._begun = time.monotonic()
        self._first_difference: float | None = None
        self._first_raise: float | None = None
        self._quiet_since = time.monotonic()
        self._cpu: dict[int, int] = {}
        self._first_key: int | None = None

    def run(self) -> RehearsalRun:
        lifeline = os.open(self._stage.lifeline, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(self._stage.socket))
            listener.listen(256)
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, self._accept)
            self._start()
            self._watch()
            self._look_at_stacks()
        finally:
            self._end(lifeline)
            for key in list(self._selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
                elif isinstance(key.fileobj, int):
                    os.close(key.fileobj)
            self._selector.close()
        self._result.outputs = {index: output.content for index, output in self._outputs.items()}
        self._result.seconds = time.monotonic() - self._begun
        self._result.dropped = sum(reader.dropped for reader in self._readers.values())
        return self._result

    def _start(self) -> None:
        plan, stage = self._plan, self._stage
        processes = []
        for index, environ in enumerate(plan.environs):
            os.mkfifo(stage.output(index))
            reader = os.open(stage.output(index), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._selector.register(reader, selectors.EVENT_READ, self._printing(self._outputs[index]))
            processes.append(
                {
                    "environ": dict(environ),
                    "output": str(stage.output(index)),
                    "stacks": str(stage.stacks(index)),
                    "extra": list(plan.extra[index]),
                }
            )
        first_path = plan.cwd if plan.module else os.path.dirname(os.path.abspath(os.path.join(plan.cwd, plan.script)))
        stage.write(
            {
                "socket": str(stage.socket),
                "lifeline": str(stage.lifeline),
                "cwd": plan.cwd,
                "first_path": first_path,
                "processes": processes,
                "gpus": plan.gpus,
                "steps": plan.steps,
                "strict": plan.is_strict,
                "last_step": str(stage.last_step),
                "epoch_steps": plan.epoch_steps,
                "cuts_network": plan.cuts_network,
                "scratch": plan.has_scratch,
                "overlay": str(stage.overlay),
                "modules": list(plan.modules),
                "script": os.path.join(plan.cwd, plan.script) if plan.script else "",
                "module": plan.module,
                "argv": list(plan.argv),
            }
        )
        environ = {**os.environ, **plan.environ, CONFIG_VARIABLE: str(stage.config), "PYTHONUNBUFFERED": "1"}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(stage.modules), environ.get("PYTHONPATH"))))
        own, theirs = os.pipe()
        os.set_blocking(own, False)
        self._selector.register(own, selectors.EVENT_READ, self._printing(self._own_output))
        try:
            self._child = start(
                [plan.python, "-u", str(stage.start)], environ, stdout=theirs, stderr=theirs, folder=plan.cwd
            )
        finally:
            os.close(theirs)
        self._progress(f"starting {len(plan.environs)} processes")

    def _printing(self, output: _Output) -> Callable[[Any], None]:
        def read(file: Any) -> None:
            try:
                data = os.read(file, 65536)
            except BlockingIOError:
                return
            if data:
                output.add(data)
            else:
                self._selector.unregister(file)
                os.close(file)

        return read

    def _accept(self, listener: Any) -> None:
        connection, _ = listener.accept()
        connection.setblocking(False)
        pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        key = connection.fileno() * 1_000_000 + len(self._readers)
        self._readers[key], self._pids[key] = RecordReader(), pid
        self._open.add(key)
        if self._first_key is None:
            self._first_key = key
        self._selector.register(connection, selectors.EVENT_READ, lambda file: self._read(file, key))

    def _read(self, connection: Any, key: int) -> None:
        try:
            data = connection.recv(1 << 18)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(connection)
            connection.close()
            self._open.discard(key)
            if key != self._first_key:
                self._comparison.disconnected(key)
            return
        for record in self._readers[key].feed(data):
            self._take(key, record)

    def _take(self, key: int, record: Record) -> None:
        if key == self._first_key:
            self._of_starter(record)
            return
        self._comparison.add(key, record)
        if record["k"] == "raised" and self._first_raise is None:
            self._first_raise = time.monotonic()

    def _of_starter(self, record: Record) -> None:
        if record["k"] == "ready":
            self._result.torch, self._result.python = str(record.get("torch")), str(record.get("python"))
            self._result.isolation = {
                k: str(v)
                for k, v in record.items()
                if k in ("network", "files", "reason", "network_reason", "files_reason")
            }
            self._progress("running the script")
        elif record["k"] == "exit" and isinstance(record.get("index"), int):
            self._exits[record["index"]] = int(record.get("code", 0))

    def _watch(self) -> None:
        deadline = self._begun + self._plan.seconds
        changes = -1
        while True:
            for key, _ in self._selector.select(0.05):
                key.data(key.fileobj)
            now = time.monotonic()
            self._settle_exits()
            if self._comparison.changes != changes:
                changes, self._quiet_since = self._comparison.changes, now
            if self._is_over(now):
                return
            if now > deadline:
                self._result.is_out_of_time = True
                return

    def _settle_exits(self) -> None:
        """Report exits to the comparison, after all records of the process were read."""
        for index, code in list(self._exits.items()):
            keys = [key for key, track in self._comparison.tracks.items() if track.index == index]
            if not any(key in self._open for key in keys):
                del self._exits[index]
                self._comparison.exited(index, code)

    def _is_over(self, now: float) -> bool:
        comparison = self._comparison
        assert self._child is not None
        if comparison.found is not None or comparison.difference is not None:
            self._first_difference = self._first_difference or now
            return now - self._first_difference > GRACE
        if self._child.poll() is not None and (not self._open or self._is_quiet(now)):
            self._result.start_error = (
                "" if self._result.torch else self._own_output.content.decode("utf-8", "replace")[-4000:]
            )
            return True
        active = [track for track in comparison.ranks if not track.is_done]
        if self._plan.expected is not None and len(comparison.ranks) < self._plan.expected:
            return False  # not all have begun
        if self._first_raise is not None and (not active or now - self._first_raise > RAISED_GRACE):
            return all(track.is_blocked for track in active) or now - self._first_raise > 5 * RAISED_GRACE
        if comparison.is_waiting_to_join and now - self._quiet_since > JOINING and self._is_idle():
            return True
        if comparison.can_never_join and self._is_quiet(now):
            return True
        if self._is_quiet(now):
            return self._is_stalled(active)
        return False

    def _is_quiet(self, now: float) -> bool:
        """Whether nothing happens any more. A process that a rank forked and left behind may sleep forever."""
        return now - self._quiet_since > STALLED and self._is_idle()

    def _is_stalled(self, active: list[Any]) -> bool:
        """Whether no rank can continue: all wait, or those that do not are ended."""
        if self._comparison.stalled() is not None:
            return True
        return bool(active) and all(t.is_blocked for t in active) and any(t.is_done for t in self._comparison.ranks)

    def _is_idle(self) -> bool:
        """Whether no process used CPU time since the last look, or waits for a CPU on a busy machine.

        Processes that the script started itself count as well, also before they have imported torch.
        """
        pids = set(self._pids.values())
        pids |= set() if self._child is None else _descendants(self._child.pid)
        before, self._cpu = self._cpu, {pid: _cpu_ticks(pid) for pid in pids}
        is_quiet = all(self._cpu[pid] - before.get(pid, -100) <= 1 for pid in self._cpu)
        return is_quiet and not any(_is_runnable(pid) for pid in self._cpu)

    def _look_at_stacks(self) -> None:
        """Request the Python stacks of ranks that are still running, if it is not known where they are."""
        comparison = self._comparison
        busy = [
            (key, t)
            for key, t in comparison.tracks.items()
            if t.index is not None and not t.is_done and not t.is_blocked and key in self._open
        ]
        if comparison.difference is not None or not busy:
            return
        for key, _ in busy:
            try:
                os.kill(self._pids[key], STACK_SIGNAL)
            except ProcessLookupError:
                continue
        time.sleep(0.2)
        for _, track in busy:
            assert track.index is not None
            path = self._stage.stacks(track.index)
            if path.exists():
                self._result.stacks[track.index] = path.read_text("utf-8", "replace")[:20000]

    def _end(self, lifeline: int) -> None:
        os.close(lifeline)  # every hooked process is killed by the kernel
        if self._child is not None:
            kill(self._child)
        self._result.left = end_marked(f"{CONFIG_VARIABLE}={self._stage.config}")


def _is_runnable(pid: int) -> bool:
    """Whether a thread of a process runs, waits for a CPU, or waits for a disk."""
    for each in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            if each.read_text().rpartition(")")[2].split()[0] in "RD":
                return True
        except (OSError, IndexError):
            continue  # the thread has ended
    return False


def _descendants(pid: int) -> set[int]:
    """The processes that a process and its children have started and that are still running."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for each in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            try:
                children = {int(child) for child in each.read_text().split()} - found
            except OSError:
                continue  # the thread has ended
            found |= children
            waiting += children
    return found


def _cpu_ticks(pid: int) -> int:
    """Clock ticks that a process used, 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
