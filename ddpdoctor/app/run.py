"""`ddpdoctor run -- LAUNCH…`: check, then run the job; if it fails, triage its output."""

from __future__ import annotations

import functools
import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.app.request import UsageError
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.system.lifetime import TemporaryFolder, die_with, prepare_to_die_with
from ddpdoctor.system.process import ended_within, start
from ddpdoctor.system.selfexec import command
from ddpdoctor.system.timeouts import call_with_timeout
from ddpdoctor.system.whole_file import write_whole

if TYPE_CHECKING:
    from ddpdoctor.app.request import Request
    from ddpdoctor.collectors.job import JobRun
    from ddpdoctor.examined import ExaminedJob
    from ddpdoctor.findings import Finding, Report
    from ddpdoctor.rehearsal.watcher import JobWatcher

__all__ = ["FailureDiagnosis", "JobEnd", "RunOptions", "diagnose", "run_job"]

NOT_FOUND, NOT_STARTED = 127, 126
"""A shell's exit codes for a command that does not exist, and for one that cannot be started."""
INTERRUPTED = 130
CHECK_SECONDS = 120.0
"""The default `--timeout` of `check`."""
ENDING_SECONDS = 5.0
"""Seconds that a check may take beyond its own time limit, and after SIGTERM."""
ERROR_FILE = re.compile(rb"error_file: (/\S+\.json)")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
LOG_DIR = ("--log-dir", "--log_dir")
MOST_FILES = 600
REDACTION_SECONDS = 10.0
"""Time limit for removing secrets from the kept output; of what is left, the end is kept."""
FILE_SECONDS = 5.0
"""Time limit for listing the job's files: its folders may be on a server that does not answer."""


@dataclass(frozen=True)
class RunOptions:
    """How the job is started: whether it is checked, with which options, and whether it starts in spite of errors."""

    is_checked: bool = True
    check_words: tuple[str, ...] = ()
    despite_errors: bool = False
    watched_steps: int | None = None
    """Optimizer steps for which the ranks' calls are compared while the job runs; None: not at all."""
    tell: Callable[[Finding], None] = lambda finding: None
    """Called from a thread with the first difference between the ranks, while the job runs."""


@dataclass(frozen=True)
class JobEnd:
    """The exit code of `ddpdoctor run`, and the job that ended with it; None if it was not started.

    `started` is the time of day, which files have, and `begun` the same by `time.monotonic()`.
    """

    code: int
    job: JobRun | None = None
    started: float = 0.0
    begun: float = 0.0

    @property
    def has_failed(self) -> bool:
        """Whether the job ran, and neither succeeded nor was interrupted."""
        return self.job is not None and self.code not in (0, INTERRUPTED)


@dataclass(frozen=True)
class FailureDiagnosis:
    """The triage of a failed job, and where its output is; None if it printed nothing.

    `folder` has the output: its user calls `keep` when they have said where it is, and `remove`.
    """

    report: Report
    output: Path | None
    folder: TemporaryFolder


def run_job(request: Request, options: RunOptions) -> JobEnd:
    """Check the launch command unless disabled, then run the job with its own terminal, streams and signals.

    Raises:
        UsageError: no launch command, or saved facts.
    """
    if request.launch is None:
        raise UsageError("nothing to run; expected a launch command: ddpdoctor run -- torchrun …")
    if request.facts is not None:
        raise UsageError("--facts: `run` starts the job on this machine; saved facts are not allowed")
    if options.is_checked:
        code = _check(request, request.launch, options.check_words)
        if code == 1 and not options.despite_errors:
            request.listener.notice("job not started; --anyway starts it in spite of the errors")
        if code in (2, INTERRUPTED) or (code == 1 and not options.despite_errors):
            return JobEnd(code)
        if not request.quiet:
            request.listener.notice(f"starting: {shlex.join(request.launch)}")
    return _run(request, request.launch, options)


def _run(request: Request, launch: tuple[str, ...], options: RunOptions) -> JobEnd:
    from ddpdoctor.collectors.job import JobRun

    variables, argv = _command(launch)
    environ = {**os.environ, **variables}
    watch = _watcher(request, options)
    job = JobRun(argv, environ if watch is None else watch.environ(environ), when_quiet=_get_ready)
    started, begun = time.time(), time.monotonic()
    try:
        return JobEnd(job.run(), job, started, begun)
    except OSError as error:
        request.listener.error(f"{argv[0]}: {error.strerror}")
        return JobEnd(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED)
    finally:
        if watch is not None:
            _end_watch(request, watch)


def _watcher(request: Request, options: RunOptions) -> JobWatcher | None:
    """The watch of the job, already reading; None without one."""
    if options.watched_steps is None:
        return None
    from ddpdoctor.app.watched_job import watcher

    try:
        watch = watcher(options.tell, options.watched_steps)
    except OSError as error:
        request.listener.warning(f"the job runs without --watch: {error.strerror or error}")
        return None
    watch.start()
    return watch


def _end_watch(request: Request, watch: JobWatcher) -> None:
    from ddpdoctor.app.watched_job import ended

    watch.close()
    if not request.quiet:
        request.listener.notice(ended(watch))


def _command(launch: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """The variables before the command, and the command; one word that contains spaces is a command for the shell."""
    if len(launch) == 1 and " " in launch[0].strip():
        return {}, ["/bin/sh", "-c", launch[0]]
    count = next((i for i, word in enumerate(launch) if not ASSIGNMENT.fullmatch(word)), len(launch))
    if count == len(launch):
        raise UsageError(f"{shlex.join(launch)}: only variables; expected a command after them")
    pairs = (word.partition("=") for word in launch[:count])
    return {name: value for name, _, value in pairs}, list(launch[count:])


def _check(request: Request, launch: Sequence[str], words: Sequence[str]) -> int:
    """`ddpdoctor check` on this launch command, in a process of its own: standard output belongs to the job."""
    limit = (request.timeout or CHECK_SECONDS) + ENDING_SECONDS
    code = _run_check(
        [*command("ddpdoctor"), "check", *_shared_words(request), *words, "--format", "table", "--", *launch], limit
    )
    if code == 3:
        request.listener.warning("the check was not completed; the job starts anyway")
    return code


def _shared_words(request: Request) -> list[str]:
    """The shared options that are passed to the check."""
    given = {"--select": request.select, "--ignore": request.ignore, "--timeout": request.timeout}
    words = [word for option, value in given.items() if value is not None for word in (option, str(value))]
    flags = {"--quiet": request.quiet, "--verbose": request.verbose, "--no-color": request.no_color}
    return [*words, "--fail-on", request.fail_on.value, *(flag for flag, is_set in flags.items() if is_set)]


def _run_check(argv: list[str], limit: float) -> int:
    """Run a check for at most `limit` seconds; 3 if it had to be killed."""
    # A signal that arrives while the check is being started is handled when there is a process to end.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    unblock = functools.partial(signal.pthread_sigmask, signal.SIG_SETMASK, before)
    parent = os.getpid()
    prepare_to_die_with()

    def in_child() -> None:
        die_with(parent, signal.SIGTERM)
        unblock()

    child = start(argv, stdout=sys.stderr.fileno(), in_child=in_child, is_foreground=True)
    try:
        unblock()
        _get_ready()
        code = ended_within(child, limit)
    except BaseException:
        _end(child)
        raise
    if code is None:  # it should have ended by its own --timeout
        _end(child)
        return 3
    return code


def _get_ready() -> None:
    """Import what the triage needs while the user does not wait for it."""
    try:
        importlib.import_module("ddpdoctor.app.triage")
        views = importlib.import_module("ddpdoctor.rules.views")
        views.log_rules_alone(lambda code: True)
    except Exception:  # the job continues whatever is wrong with ddpdoctor: the triage itself reports it
        return


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a check and everything that it started (it does so itself on SIGTERM)."""
    child.terminate()
    if ended_within(child, ENDING_SECONDS) is None:
        child.kill()


def diagnose(request: Request, end: JobEnd) -> FailureDiagnosis:
    """The report about the output, error files, dumps and kernel log of a failed job together.

    Raises:
        OSError: a copy of the output cannot be written.
        CallTimeout: the folders with the job's files do not answer.
    """
    begun = time.monotonic()
    folder = TemporaryFolder("ddpdoctor_output_")
    try:
        report, output = _diagnosed(request, end, Path(folder.path), begun)
    except BaseException:
        folder.remove()
        raise
    return FailureDiagnosis(report, output, folder)


def _diagnosed(request: Request, end: JobEnd, folder: Path, begun: float) -> tuple[Report, Path | None]:
    """The report, and the file in this folder that the job's output was written to; None if it printed nothing."""
    from ddpdoctor.app.triage import triaged
    from ddpdoctor.privacy.long_texts import without_secrets_of_lines

    job = end.job
    assert job is not None
    output = folder / "output.log"
    limit = time.monotonic() + REDACTION_SECONDS
    kept = job.copy.content().decode("utf-8", "replace")
    write_whole(output, without_secrets_of_lines(kept, lambda: time.monotonic() < limit), 0o600)
    kernel = _kernel_log(folder, begun - end.begun)
    left = call_with_timeout(lambda: _left_behind(job, end.started), FILE_SECONDS)
    paths = [str(output), *kernel, *left]
    found, _ = triaged(paths, replace(request, launch=None), started=begun, command="run", is_one_job=True)
    report = replace(found, jobs=tuple(_ended(each, end.code) for each in found.jobs))
    return report, output if output.stat().st_size or kernel else None


def _ended(job: ExaminedJob, code: int) -> ExaminedJob:
    """The job with the exit code that `run` saw, which its output may not contain."""
    return replace(job, outcome=job.outcome if job.outcome == "interrupted" else "failed", exit_code=code, open_end="")


def _kernel_log(folder: Path, seconds: float) -> list[str]:
    """What the kernel logged while the job ran, as a file; nothing if it is not readable."""
    from ddpdoctor.collectors.kernel_log import read_warnings
    from ddpdoctor.system.machine import this_machine

    try:
        since = time.clock_gettime(time.CLOCK_BOOTTIME) - seconds
        lines = [line for line in read_warnings(this_machine(1.0)) if float(line[1:].partition("]")[0]) >= since]
    except OSError:
        return []
    if not lines:
        return []
    path = folder / "kernel.log"
    write_whole(path, "\n".join(lines) + "\n", 0o600)
    return [str(path)]


def _left_behind(job: JobRun, started: float) -> list[str]:
    """The error files that torchrun names, the ranks' own logs, and the dumps that are newer than the job."""
    files = [os.fsdecode(path) for path in ERROR_FILE.findall(job.copy.content())]
    argv = job.argv
    folders = [argv[i + 1] for i, word in enumerate(argv[:-1]) if word in LOG_DIR]
    folders += [word.partition("=")[2] for word in argv if word.startswith(tuple(f"{option}=" for option in LOG_DIR))]
    folders += [folder for folder in (job.environ.get("PET_LOG_DIR"),) if folder]
    files += [str(path) for folder in folders for path in sorted(Path(folder).rglob("*"))]
    prefix = job.environ.get("TORCH_FR_DUMP_TEMP_FILE") or job.environ.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    dump = Path(prefix or "/tmp/nccl_trace_rank_")
    files += [str(path) for path in sorted(dump.parent.glob(f"{dump.name}*"))]
    return [path for path in dict.fromkeys(files) if _is_newer(path, started)][:MOST_FILES]


def _is_newer(path: str, moment: float) -> bool:
    try:
        return os.path.isfile(path) and os.stat(path).st_mtime >= moment - 1.0
    except OSError:
        return False
