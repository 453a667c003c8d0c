"""One run of one command with one fault, and what must hold afterwards."""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
from commandline import ROOT

from chaos.commands import Command, Materials, argv, environ, stuck_rank
from chaos.faults import Fault

__all__ = ["Outcome", "Runner"]

MARK = "DDPDOCTOR_CHAOS_RUN"
"""The variable by which a command and all that it started are found in /proc."""
GONE_SECONDS = 15.0
"""How long what a command started may take to end after it, on a busy machine."""
CLONE_NEWNS = 0x20000
ALWAYS = (0, 1, 2, 3, 130)
SIGNALS = {"terminate": signal.SIGTERM, "hang-up": signal.SIGHUP}
SCHEMA = json.loads((ROOT / "ddpdoctor" / "render" / "report.schema.json").read_text())
BAD_WORDS = (b"internal error", b"Exception ignored", b"Fatal Python error", b"Segmentation fault", b"core dumped")
STARTING = ("interrupt", "little-memory", "few-descriptors", "few-processes", "file-size")
"""The begins of kinds of faults that may hit Python itself, before it runs a line of ddpdoctor."""
libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Outcome:
    """What happened in one run; `problems` are violations of the contract."""

    command: str
    fault: str
    code: int | None = None
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    report: dict[str, Any] | None = None
    errors: str = ""


class Runner:
    """Runs commands with faults; `folder` takes everything that they write."""

    def __init__(self, materials: Materials, folder: Path) -> None:
        self._materials = materials
        self._folder = folder
        self._clock: Path | None = None
        self._has_namespaces = os.geteuid() == 0 and _can_unshare()
        self._usual: dict[str, Outcome] = {}

    def usual(self, command: Command) -> Outcome:
        """The run without a fault, made once."""
        if command.name not in self._usual:
            self._usual[command.name] = self.run(command, Fault("none"))
        return self._usual[command.name]

    def run(self, command: Command, fault: Fault, usual: Outcome | None = None) -> Outcome:
        """One run; `usual` is the one without a fault."""
        place = Path(tempfile.mkdtemp(dir=self._folder, prefix="run_"))
        try:
            return _Run(command, fault, self._materials, place, self._preload(fault), self._has_namespaces, usual).go()
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _preload(self, fault: Fault) -> dict[str, str]:
        if fault.kind != "clock-jump":
            return {}
        if self._clock is None:
            self._clock = self._folder / "clock.so"
            source = Path(__file__).with_name("clock.c")
            subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", self._clock, source, "-ldl"], check=True)
        return {
            "LD_PRELOAD": str(self._clock),
            "CHAOS_JUMP_AFTER": str(fault.moment),
            "CHAOS_JUMP_BY": str(fault.number),
        }


def _can_unshare() -> bool:
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return done.returncode == 0


class _Run:
    def __init__(
        self,
        command: Command,
        fault: Fault,
        materials: Materials,
        place: Path,
        preload: dict[str, str],
        has_namespaces: bool,
        usual: Outcome | None,
    ) -> None:
        self.command, self.fault, self.materials, self.place = command, fault, materials, place
        self.usual = usual
        self.mark = f"{MARK}={place.name}"
        self.outcome = Outcome(command.name, fault.text)
        for name in ("tmp", "out", "cwd", "home", "shm"):
            (place / name).mkdir()
            (place / name).chmod(0o777)
        place.chmod(0o755)
        # Only while it is needed: other tests look at all ranks of this machine.
        self.stuck = stuck_rank() if "{pid}" in command.words else None
        self.places = {
            "m": str(materials.folder),
            "o": str(place / "out"),
            "pid": "" if self.stuck is None else str(self.stuck.pid),
            "port": str(_free_port()),
        }
        # Python itself leaves truncated .pyc files where they do not fit: https://github.com/python/cpython/issues/126606
        own = {
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(place / "tmp"),
            "HOME": str(place / "home"),
            MARK: place.name,
        }
        self.environ = environ(command, self.places, own | preload)
        self.has_namespaces = has_namespaces
        self.holder: subprocess.Popen[bytes] | None = None
        self.is_cut = False
        """Whether the fault reached the command while it ran."""

    def go(self) -> Outcome:
        """Start, injure, wait, look."""
        try:
            if self.has_namespaces:
                self._hold()
            self._go()
        finally:
            self._end_all()
            if self.stuck is not None:
                self.stuck.kill()
                self.stuck.wait()
            if self.holder is not None:
                self.holder.kill()
                self.holder.communicate()
        return self.outcome

    def _hold(self) -> None:
        """A mount namespace with a /dev/shm of its own, and a small file system for temporary files if they shall not fit."""
        lines = [f"mount --bind {self.place}/shm /dev/shm"]
        if self.fault.kind == "full-disk":
            lines += [
                f"mount -t tmpfs -o mode=1777,size={self.fault.number} tmpfs {self.place}/{name}"
                for name in ("tmp", "out")
            ]
        script = "set -e\n" + "\n".join(lines) + "\necho ready\nexec sleep 3600"
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == b"ready\n", "no mount namespace"

    def _seen(self, name: str) -> Path:
        """A folder of this run, as the command sees it."""
        own = self.place / name
        return own if self.holder is None else Path(f"/proc/{self.holder.pid}/root{own}")

    def _prepare(self) -> Callable[[], None]:
        namespace = None if self.holder is None else os.open(f"/proc/{self.holder.pid}/ns/mnt", os.O_RDONLY)
        self.namespace = namespace
        cwd = self.place / "cwd"
        limits = self.fault.limits

        def prepare() -> None:
            if namespace is not None:
                if libc.setns(namespace, CLONE_NEWNS):
                    os._exit(99)
                os.close(namespace)
            os.chdir(cwd)
            if self.fault.kind == "no-folder":
                os.rmdir(cwd)
            for name, most in limits:
                resource.setrlimit(name, (most, most))

        return prepare

    def _other_user(self) -> list[str]:
        """Runs a command as another user, who may read what we may: root's processes are not limited."""
        if self.fault.kind != "few-processes" or os.geteuid() != 0:
            return []
        kept = "+dac_override,+dac_read_search"
        user = str(40000 + os.getpid() % 20000)
        return ["setpriv", "--reuid", user, "--clear-groups", f"--inh-caps={kept}", f"--ambient-caps={kept}"]

    def _go(self) -> None:
        streams = {name: (self.place / name).open("w+b") for name in ("stdout", "stderr")}
        given = self.command.standard_input
        source = None if given is None else (self.materials.folder / given).open("rb")
        reader, writer = os.pipe() if self.fault.kind.startswith("close-") else (-1, -1)
        full = os.open("/dev/full", os.O_WRONLY)
        targets: dict[str, Any] = dict(streams)
        broken = {"close-output": "stdout", "close-errors": "stderr"}.get(self.fault.kind)
        if broken is not None:
            targets[broken] = writer
        filled = {"full-output": "stdout", "full-errors": "stderr"}.get(self.fault.kind)
        if filled is not None:
            targets[filled] = full
        prepare = self._prepare()
        started = time.monotonic()
        try:
            self.process = subprocess.Popen(
                [*self._other_user(), *argv(self.command, self.places)],
                env=self.environ,
                stdin=subprocess.DEVNULL if source is None else source,
                stdout=targets["stdout"],
                stderr=targets["stderr"],
                pass_fds=() if self.namespace is None else (self.namespace,),
                preexec_fn=prepare,
                start_new_session=True,
            )
        except OSError as error:
            self.outcome.problems.append(f"the test itself failed: {error}")
            return
        finally:
            if source is not None:
                source.close()
            for fd in (full, writer, self.namespace):
                if fd is not None and fd >= 0:
                    os.close(fd)
        try:
            self._injure(started, reader)
            self.process.wait(max(1.0, self.command.bound - (time.monotonic() - started)))
        except subprocess.TimeoutExpired:
            self.outcome.problems.append(f"did not end within {self.command.bound:g} s: {self._where()}")
            self._end_all()
            self.process.wait()
        finally:
            if reader >= 0:
                os.close(reader)
        self.outcome.seconds = time.monotonic() - started
        self.outcome.code = self.process.returncode
        self._look_at_leftovers()
        texts = {}
        for name, file in streams.items():
            file.seek(0)
            texts[name] = file.read()
            file.close()
        self._look_at_errors(texts["stderr"])
        self._look_at_code()
        self._look_at_report(texts["stdout"], texts["stderr"])

    def _injure(self, started: float, reader: int) -> None:
        kind, number = self.fault.kind, self.fault.number
        if kind.startswith("close-"):
            left = number
            while left > 0 and (piece := os.read(reader, min(left, 4096))):
                left -= len(piece)
                with (self.place / ("stdout" if kind == "close-output" else "stderr")).open("ab") as file:
                    file.write(piece)
            os.close(reader)
            os.dup2(os.open(os.devnull, os.O_RDONLY), reader)  # `go` closes it
            return
        if self.fault.limits or kind in ("none", "full-output", "full-errors", "full-disk", "no-folder", "clock-jump"):
            return
        self._sleep_until(started + self.fault.moment)
        if self.process.poll() is not None:
            return
        if kind == "folder-removed":
            shutil.rmtree(self.place / "cwd", ignore_errors=True)
            return
        self.is_cut = True
        if kind.startswith("interrupt"):
            self._signal(signal.SIGINT, to_group=kind == "interrupt-group")
            if kind == "interrupt-twice":
                self._sleep_until(time.monotonic() + (number % 100) / 100)
                self._signal(signal.SIGINT)
        elif kind in SIGNALS:
            self._signal(SIGNALS[kind])
        elif kind == "kill":
            self._signal(signal.SIGKILL)
        elif kind == "stop-and-continue":
            self._signal(signal.SIGSTOP)
            self._sleep_until(time.monotonic() + number / 1000)
            self._signal(signal.SIGCONT)
        elif kind == "stop-and-kill":
            self._signal(signal.SIGSTOP)
            self._sleep_until(time.monotonic() + (number % 500) / 1000)
            self._signal(signal.SIGKILL)
        else:
            self._injure_child()

    def _injure_child(self) -> None:
        """Kill or stop one of the processes that the command started; the job of `run` is the user's, not ours."""
        others = [pid for pid in self._marked() if pid != self.process.pid]
        if not others:
            self.is_cut = False
            return
        victim = random.Random(self.fault.number).choice(sorted(others))
        self.outcome.fault += f" pid {victim} {_words_of(victim)[:120]}"
        try:
            os.kill(victim, signal.SIGKILL if self.fault.kind == "kill-child" else signal.SIGSTOP)
        except ProcessLookupError:
            return
        if self.fault.kind == "stop-child" and self.command.name.startswith("run"):
            self._sleep_until(time.monotonic() + 0.5)  # a stopped job is the user's: they continue it
            try:
                os.kill(victim, signal.SIGCONT)
            except ProcessLookupError:
                return

    def _sleep_until(self, moment: float) -> None:
        while (left := moment - time.monotonic()) > 0 and self.process.poll() is None:
            time.sleep(min(left, 0.01))

    def _signal(self, number: int, *, to_group: bool = False) -> None:
        if self.process.poll() is not None:
            return
        if to_group:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def _marked(self) -> list[int]:
        """The processes of this run."""
        needle, found = self.mark.encode(), []
        for name in os.listdir("/proc"):
            if not name.isdecimal():
                continue
            try:
                content = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            if needle in content.split(b"\0") and (self.holder is None or int(name) != self.holder.pid):
                found.append(int(name))
        return found

    def _end_all(self) -> None:
        deadline = time.monotonic() + GONE_SECONDS
        while (left := self._marked()) and time.monotonic() < deadline:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)

    def _where(self) -> str:
        """What the processes of a run that does not end are doing."""
        texts = []
        for pid in self._marked():
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                texts.append(f"{pid} {state} {Path(f'/proc/{pid}/wchan').read_text()} {_words_of(pid)[:150]}")
            except OSError:
                continue
        return "; ".join(texts)

    def _look_at_leftovers(self) -> None:
        deadline = time.monotonic() + GONE_SECONDS
        while (left := self._marked()) and time.monotonic() < deadline:
            time.sleep(0.02)
        if left:
            self.outcome.problems.append(
                "left processes: " + "; ".join(f"{pid} {_words_of(pid)[:160]}" for pid in left)
            )
        allowed = {"out": ("report.json", "facts.json")}
        for name in ("tmp", "out", "cwd", "home", "shm"):
            deadline = time.monotonic() + 5.0
            while (files := self._files(name, allowed.get(name, ()))) and time.monotonic() < deadline:
                time.sleep(0.05)  # whoever cleans up after a killed command may be about to
            if files:
                self.outcome.problems.append(f"left in {name}: {files}")

    def _files(self, name: str, allowed: tuple[str, ...]) -> list[str]:
        try:
            found = os.listdir(self._seen(name))
        except FileNotFoundError:
            return []
        texts = [(self.place / each).read_bytes() for each in ("stdout", "stderr")]
        told = [
            each
            for each in found
            if each.startswith(self.command.keeps or "\0") and any(each.encode() in t for t in texts)
        ]
        return sorted(each for each in found if each not in allowed and each not in told)

    def _look_at_errors(self, text: bytes) -> None:
        self.outcome.errors = text.decode("utf-8", "replace")[-3000:]
        for words in BAD_WORDS:
            if words in text and not self._is_before_start(text):
                self.outcome.problems.append(f"on standard error: {words.decode()}")
        if b"Traceback (most recent call last)" in text and not self._is_before_start(text):
            self.outcome.problems.append("a traceback on standard error")

    def _is_before_start(self, text: bytes) -> bool:
        """Whether only Python itself was running, or the job of `run`: no line of ddpdoctor is in the traceback."""
        if self.command.name in RUNS:
            return str(ROOT / "ddpdoctor").encode() not in text and b"in ddpdoctor" not in text
        return (
            self.fault.kind.startswith(STARTING)
            and str(ROOT / "ddpdoctor").encode() not in text
            and b"ddpdoctor:" not in text
        )

    def _look_at_code(self) -> None:
        code, kind = self.outcome.code, self.fault.kind
        assert code is not None
        allowed = {*ALWAYS, *self.command.codes}
        sent = {
            "kill": 9,
            "stop-and-kill": 9,
            "terminate": 15,
            "hang-up": 1,
            "close-output": 13,
            "close-errors": 13,
        }.get(kind)
        if sent is not None:
            allowed |= {128 + sent, -sent}
        if kind.startswith("interrupt"):
            allowed |= {-signal.SIGINT}
        if self.command.name.startswith("run") and kind in ("kill-child",):
            allowed |= {137}
        if self.command.name.startswith("run"):
            allowed |= {120, 126, 143}
        text = self.outcome.errors.encode()
        if code not in allowed and not (self._is_before_start(text) and code in (1, 127, -6, 120)):
            self.outcome.problems.append(f"exit code {code}")
        elif code == 2 and not (kind in ("no-folder", "folder-removed") or self._cannot_look_up()):
            self.outcome.problems.append("exit code 2: the use was right")
        elif code == 0 and self.command.is_wrong:
            self.outcome.problems.append("exit code 0 with a faulty input")
        elif kind == "none" and code not in self.command.codes:
            self.outcome.problems.append(f"exit code {code} without a fault")
        elif kind == "full-output" and code == 0 and self.command.name not in ("collect", *RUNS):
            self.outcome.problems.append("exit code 0 though nothing could be written")

    def _cannot_look_up(self) -> bool:
        """Whether a rehearsal was refused because the interpreter of its command could not be asked, which it says."""
        return self.command.name == "rehearse" and "would run the script is unknown: " in self.outcome.errors

    def _look_at_report(self, out: bytes, errors: bytes) -> None:
        text: bytes | None = None
        target = self._seen("out") / "report.json"
        if self.command.writes == "output" and target.exists():
            text = target.read_bytes()
        elif self.command.writes == "stdout" and out and self.fault.kind not in ("file-size", "close-output"):
            text = out
        elif self.command.name == "collect" and (self._seen("out") / "facts.json").exists():
            try:
                json.loads((self._seen("out") / "facts.json").read_bytes())
            except ValueError as error:
                self.outcome.problems.append(f"the facts are not valid: {error}")
        if text is None:
            return
        try:
            report = json.loads(text)
            jsonschema.validate(report, SCHEMA)
        except (ValueError, jsonschema.ValidationError) as error:
            self.outcome.problems.append(f"the report is not valid: {str(error)[:200]}")
            return
        self.outcome.report = report
        verdict, code = report["verdict"], self.outcome.code
        if verdict == "pass" and self.command.is_wrong:
            self.outcome.problems.append("verdict pass with a faulty input")
        if code == 0 and verdict == "fail":
            self.outcome.problems.append(f"exit code 0 with verdict {verdict}")
        if not 0 <= report["seconds"] < self.command.bound:
            self.outcome.problems.append(f"it says that it took {report['seconds']} s")
        if verdict == "pass" and self.usual is not None and self.usual.report is not None:
            lost = set(self.usual.report["passed"]) - set(report["passed"])
            if lost:
                reasons = {each["code"]: each["reason"] for each in report["skipped"] if each["code"] in lost}
                self.outcome.problems.append(
                    f"pass without {len(lost)} rules that otherwise pass: {str(reasons)[:300]}"
                )


RUNS = ("run-healthy", "run-failing", "run-checked")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _words_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return "?"
    return re.sub(r"\s+", " ", " ".join(words))
