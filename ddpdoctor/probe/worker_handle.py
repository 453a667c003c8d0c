"""A worker as its supervisor sees it: its messages, whether it runs, and where it is stuck if it sends nothing."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import time
from dataclasses import replace
from typing import Any

from ddpdoctor.facts.pairs import PairSpeed
from ddpdoctor.facts.probe import Kind, Measurement, Observation, RankReport, Unsupported
from ddpdoctor.probe.proc import STOPPED_SECONDS, ForeignProcess, ProcStat, read_stat
from ddpdoctor.probe.progress import WorkerProgress
from ddpdoctor.probe.rank_env import RankEnv
from ddpdoctor.probe.transport_capabilities import TransportCapabilities
from ddpdoctor.probe.worker_exit import exit_observation, reported_failure, wait_for_end
from ddpdoctor.probe.worker_output import WorkerOutput
from ddpdoctor.system.process import ended_within

__all__ = ["PHASE_SECONDS", "WorkerHandle"]

PHASE_SECONDS = {
    "start": 20.0,
    "import": 20.0,
    "init": 25.0,
    "barrier": 10.0,
    "all_reduce": 10.0,
    "collectives": 12.0,
    "measure": 20.0,
    "pairs": 30.0,
    "compute": 15.0,
}
"""How long a worker may stay in a phase. `start` and `import` may take longer while the process makes progress."""
DUE_CALL = "all_reduce of [1024] float64"
TRACED_SECONDS = 2.0
"""A process is suspended briefly when a debugger or strace attaches to it."""
BETWEEN_LOOKS_SECONDS = 0.2
STACK_SECONDS = 1.0
"""How long a process may take to write its stack; it needs 1 ms unless the machine is very busy."""
FRAME = re.compile(r'File "([^"\n]+)", line (\d+) in (.+)')


class WorkerHandle:
    """One worker. `exit_code` is set from outside if it is not a child of this process (the template of the local probe)."""

    def __init__(self, rank_env: RankEnv, messages: int, control: int, output: int) -> None:
        self.rank_env = rank_env
        self.messages, self.control, self.output = messages, control, output
        self.process: subprocess.Popen[bytes] | ForeignProcess | None = None
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.phase = "start"
        self.started = self.since = time.monotonic()
        self.ready: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.gpu: dict[str, Any] = {}
        self.device: str | None = None
        self.measurements: list[Measurement] = []
        self.unsupported: list[Unsupported] = []
        self.pairs: list[PairSpeed] = []
        self.took: dict[str, float] = {}
        self.rates: dict[str, float] = {}
        self.offers = TransportCapabilities()
        self.call = DUE_CALL  # the call that it made in the phase all_reduce
        self.printed = WorkerOutput(rank_env.rank)
        self.frames: list[tuple[str, int, str]] = []
        self._unread = b""
        self._is_mute = False
        self._still_since: float | None = None
        self._progress = WorkerProgress()
        for fd in (messages, output):
            os.set_blocking(fd, False)

    def files(self) -> list[int]:
        """The open descriptors to wait for."""
        return [fd for fd in (self.messages, self.output) if fd >= 0]

    def read(self) -> None:
        """Read everything that the worker has written, without waiting."""
        self.output, text = _drain(self.output)
        self.printed.take(text)
        self.messages, text = _drain(self.messages)
        *lines, self._unread = (self._unread + text).split(b"\n")
        for line in lines:
            self._take(line.decode("utf-8", "replace"))

    def _take(self, line: str) -> None:
        if not line.startswith("{"):
            frame = FRAME.search(line)
            if frame:
                self.frames.append((frame[1], int(frame[2]), frame[3]))
            return
        message: dict[str, Any] = json.loads(line)
        self._progress.note_message()
        self.pid = message.get("pid", self.pid)
        self.ready = message.get("ready", self.ready)
        self.error = message.get("error", self.error)
        self.gpu = message.get("gpu", self.gpu)
        self.device = message.get("device", self.device)
        self.exit_code = message.get("exit", self.exit_code)
        if "phase" in message:
            self.phase, self.since = message["phase"], time.monotonic()
        if "measured" in message:
            self.measurements.append(Measurement(**message["measured"]))
            self.since = time.monotonic()  # each measurement counts as progress: a slow link is not a hang
        if self.call == DUE_CALL:  # the first different call is reported
            self.call = message.get("call", self.call)
        self.took |= message.get("took", {})
        if "computed" in message:
            self.rates |= message["computed"]
            self.since = time.monotonic()
        if "pair" in message:
            self.pairs.append(PairSpeed(**message["pair"]))
        if "unsupported" in message:
            self.unsupported.append(Unsupported(**message["unsupported"]))

    def order(self, **order: Any) -> None:
        """Send the worker its next order; `look` notices a worker that is gone."""
        try:
            os.write(self.control, json.dumps(order).encode() + b"\n")
        except BrokenPipeError:
            return

    def look(self, now: float) -> Observation | None:
        """The problem with this worker: an error that it reported, its death, a suspension. None if it is healthy."""
        if self.call != DUE_CALL:
            words = f"{self.rank_env.name} calls {self.call}, but all others call {DUE_CALL}"
            return replace(self.observe(Kind.MISMATCH, words), value=self.call, expected=DUE_CALL)
        if self.error is not None:
            return reported_failure(self, self.error)
        if self.process is not None and self.exit_code is None:
            is_ending = self.messages < 0 and not self._is_mute
            self.exit_code = wait_for_end(self.process) if is_ending else self.process.poll()
            self._is_mute = self.messages < 0
        if self.exit_code is not None and self.phase != "done":
            self.read()
            return (
                reported_failure(self, self.error) if self.error is not None else exit_observation(self, self.exit_code)
            )
        if self.messages < 0 and self.phase != "done":
            words = f"its worker (pid {self.pid}) closed its files and is still running"
            return self.observe(Kind.EXCEPTION, f"{self.rank_env.name} failed in {self.phase}: {words}")
        stat = read_stat(self.pid) if self.pid else None
        if stat is None:
            return None
        self._progress.note(stat, now)
        return self._stopped(stat, now)

    def _stopped(self, stat: ProcStat, now: float) -> Observation | None:
        if stat.state not in "Tt":
            self._still_since = None
            return None
        self._still_since = self._still_since or now
        if now - self._still_since < (STOPPED_SECONDS if stat.state == "T" else TRACED_SECONDS):
            return None
        how = "is stopped (state T)" if stat.state == "T" else "is stopped by a debugger (state t)"
        return self.observe(Kind.STOPPED, f"{self.rank_env.name} {how} in {self.phase}: worker pid {self.pid}")

    @property
    def waits(self) -> bool:
        """Whether it has completed its order and waits for the next one."""
        return self.phase == "done" or (self.phase == "import" and self.ready is not None)

    def is_late(self, now: float) -> bool:
        """Whether the worker has been in its phase for too long; until torch is imported, only without progress."""
        if self.waits or now - self.since <= PHASE_SECONDS.get(self.phase, 20.0):
            return False
        return self.phase not in ("start", "import") or not self._progress.is_seen(now)

    def unfinished(self, now: float) -> Observation | None:
        """Why it has not finished at the end of the probe: still busy, or stuck, and where; None if it waits."""
        if self.waits:
            return None
        if not self._progress.is_seen(now):
            return self.locate()
        took = f"after {now - self.started:.1f} s"
        frame = self._innermost() if self.phase != "start" else None
        at = f" at {frame[0]}:{frame[1]}" if frame else ""
        message = f"{self.rank_env.name} was still busy in {self.phase}{at} {took}, at the end of --timeout"
        return self.observe(Kind.OUT_OF_TIME, message)

    def locate(self) -> Observation:
        """Where a late worker is stuck: outside of the collectives, waiting for its peers in one, or in the kernel."""
        stat = read_stat(self.pid) if self.pid else None
        if stat is not None and stat.state == "D":
            words = (
                f"{self.rank_env.name} blocks in an uninterruptible kernel call in {self.phase}: worker pid {self.pid}"
            )
            return self.observe(Kind.UNINTERRUPTIBLE, words)
        if self.phase == "start":  # no handler for the signal that asks for its stack yet: it would end the process
            words = f"{self.rank_env.name} does not start to import torch: worker pid {self.pid}"
            return self.observe(Kind.ELSEWHERE, words)
        first = self._innermost()
        time.sleep(BETWEEN_LOOKS_SECONDS)
        second = self._innermost()
        if first is None or second is None or first[0] != second[0] or self._is_inside(second[0]):
            return self.observe(Kind.HANG, f"{self.rank_env.name} waits for its peers in {self.phase}")
        file, line, function = second
        doing = "does not finish importing torch" if self.phase == "import" else f"did not enter {self.phase}"
        return replace(
            self.observe(Kind.ELSEWHERE, f"{self.rank_env.name} {doing}: it is at {file}:{line} in {function}"),
            file=file,
            line=line,
            function=function,
        )

    def _innermost(self) -> tuple[str, int, str] | None:
        self.read()
        self.frames.clear()
        try:
            os.kill(self.pid or 0, signal.SIGUSR1) if self.pid else None
        except ProcessLookupError:
            return None
        end = time.monotonic() + STACK_SECONDS
        while not self.frames and time.monotonic() < end and self.messages >= 0:
            select.select([self.messages], [], [], 0.05)
            self.read()
        return self.frames[0] if self.frames else None

    def _is_inside(self, file: str) -> bool:
        """Whether a frame is in torch or in the probe's collectives, so that the rank does the same as all ranks."""
        if self.phase == "import":
            return False
        folder = (self.ready or {}).get("folder") or "/torch/"
        return file.startswith(folder) or "/ddpdoctor/probe/" in file

    def observe(self, kind: Kind, message: str) -> Observation:
        """An observation about this worker's rank."""
        return self.rank_env.observe(kind, message, pid=self.pid, phase=self.phase)

    def report(self, waited_seconds: float | None = None) -> RankReport:
        """How far this rank got."""
        ready, rank_env = self.ready or {}, self.rank_env
        return RankReport(
            rank=rank_env.rank,
            local_rank=rank_env.local_rank,
            node_rank=rank_env.node_rank,
            host=rank_env.host,
            pid=self.pid,
            world_size=rank_env.world_size,
            gpu_uuid=self.gpu.get("gpu_uuid"),
            cuda_ordinal=self.gpu.get("cuda_ordinal"),
            torch=ready.get("torch"),
            nccl=ready.get("nccl"),
            phase=self.phase,
            seconds=round(time.monotonic() - self.started, 3),
            import_seconds=ready.get("import_seconds"),
            waited_seconds=waited_seconds,
            error=self.error["message"] if self.error else None,
            nccl_warnings=self.printed.warnings,
            took=dict(self.took),
            rates=dict(self.rates),
            transports=dict(self.printed.transports),
            offers=self.offers.of(self.gpu.get("gpu_uuid")),
            settings=self.offers.settings,
        )

    def end(self) -> None:
        """Kill the worker of this rank only, whichever process started it."""
        self.kill_fork()
        self.kill()

    def kill_fork(self) -> None:
        """Kill a live fork of a template: if it is suspended early, it does not notice that the template died."""
        if self.process is None or self.pid in (None, self.process.pid) or self.exit_code is not None:
            return
        assert self.pid is not None
        if self.process.poll() is None:  # the template is alive, so the fork's pid is valid: running or not yet reaped
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    def kill(self) -> None:
        """Kill the worker in any state, and close the pipes."""
        if self.process is not None:
            self._kill_group()
            self.process.kill()
            if isinstance(self.process, subprocess.Popen):
                ended_within(self.process, 1.0)  # else it is stuck in the kernel, and dies when the kernel call returns
        for fd in (self.messages, self.output, self.control):
            if fd >= 0:
                os.close(fd)
        self.messages = self.output = self.control = -1

    def _kill_group(self) -> None:
        """Kill the worker's children too: it leads its own process group, whose id is valid until the worker is reaped."""
        if isinstance(self.process, subprocess.Popen) and self.process.returncode is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                return  # it has just started, or changed its user


def _drain(fd: int) -> tuple[int, bytes]:
    """The data that can be read now; at end of file, the descriptor is closed and becomes -1."""
    chunks = []
    while fd >= 0:
        try:
            chunk = os.read(fd, 1 << 16)
        except BlockingIOError:
            break
        if not chunk:
            os.close(fd)
            fd = -1
        chunks.append(chunk)
    return fd, b"".join(chunks)
