"""`ddpdoctor run -- LAUNCH…`: check, then the job itself; when it fails, the triage of what it left."""

from __future__ import annotations

import functools
import importlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.app.request import Common, Format, UsageError
from ddpdoctor.cli.options import seconds_option
from ddpdoctor.system.selfexec import command
from ddpdoctor.system.timeouts import NoAnswer, answer

if TYPE_CHECKING:
    from ddpdoctor.collectors.job import Job

__all__ = ["run"]

NOT_FOUND, NOT_STARTED = 127, 126
"""A shell's own exit codes for a command that does not exist, and one that cannot be started."""
INTERRUPTED = 130
CHECK_SECONDS = 120.0
"""The default `--timeout` of `check`."""
ENDING_SECONDS = 5.0
"""How long a check may take beyond its own time limit, and to end when it is told to."""
ERROR_FILE = re.compile(rb"error_file: (/\S+\.json)")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
LOG_DIR = ("--log-dir", "--log_dir")
MOST_FILES = 600
FILE_SECONDS = 5.0
"""How long the list of what the job left may take: its folders may lie on a server that does not answer."""


def run(
    common: Common,
    anyway: Annotated[bool, typer.Option("--anyway", help="Start the job also when the check found errors.")] = False,
    no_check: Annotated[bool, typer.Option("--no-check", help="Start the job at once.")] = False,
    no_probe: Annotated[bool, typer.Option("--no-probe", help="Check without starting ranks.")] = False,
    no_meet: Annotated[bool, typer.Option("--no-meet", help="Check this node alone.")] = False,
    join_timeout: Annotated[
        float,
        typer.Option(
            "--join-timeout", metavar="SECONDS", parser=seconds_option, help="How long to wait for the other nodes."
        ),
    ] = 30.0,
) -> int:
    """Check, then run the job with its own terminal, signals and exit code; when it fails, say why."""
    if common.launch is None:
        raise UsageError("nothing to start: expected a launch line: ddpdoctor run -- torchrun …")
    if common.facts is not None:
        raise UsageError("--facts: a job is started on this machine; expected no saved facts")
    if not no_check:
        options = [*(["--no-probe"] if no_probe else []), *(["--no-meet"] if no_meet else [])]
        code = _check(common, [*options, "--join-timeout", str(join_timeout)])
        if code in (2, INTERRUPTED) or (code == 1 and not anyway):
            if code == 1:
                print("ddpdoctor: the job was not started; --anyway starts it all the same", file=sys.stderr)
            return code
    from ddpdoctor.collectors.job import Job

    variables, argv = _command(common.launch)
    job = Job(argv, {**os.environ, **variables}, when_quiet=_get_ready)
    started = time.time()
    try:
        code = job.run()
    except OSError as error:
        print(f"ddpdoctor: {argv[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED
    if code not in (0, INTERRUPTED):
        try:
            _triage(common, job, code, started)
        except Exception as error:  # a fault of ours included: the exit code stays the job's
            why = error if isinstance(error, (OSError, NoAnswer)) else f"a bug in ddpdoctor: {error!r}"
            print(f"\nddpdoctor: the job ended with exit code {code}; no triage of it: {why}", file=sys.stderr)
    return code


def _command(launch: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """The variables before the command, and the command; one word with blanks in it is a line for the shell."""
    if len(launch) == 1 and " " in launch[0].strip():
        return {}, ["/bin/sh", "-c", launch[0]]
    count = next((i for i, word in enumerate(launch) if not ASSIGNMENT.fullmatch(word)), len(launch))
    if count == len(launch):
        raise UsageError(f"{shlex.join(launch)}: variables alone; expected a command behind them")
    pairs = (word.partition("=") for word in launch[:count])
    return {name: value for name, _, value in pairs}, list(launch[count:])


def _check(common: Common, options: list[str]) -> int:
    """`ddpdoctor check` on this launch line, in a process of its own: standard output belongs to the job."""
    given = {"--select": common.select, "--ignore": common.ignore, "--timeout": common.timeout}
    words = [word for option, value in given.items() if value is not None for word in (option, str(value))]
    words += ["--fail-on", common.fail_on.value, *options, *(["--no-color"] if common.no_color else [])]
    argv = [*command("ddpdoctor"), "check", *words, "--quiet", "--", *(common.launch or ())]
    # A signal that comes while it is being started is heard when there is a process to end.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    unblock = functools.partial(signal.pthread_sigmask, signal.SIG_SETMASK, before)
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=unblock)
    try:
        unblock()
        _get_ready()
        code = child.wait((common.timeout or CHECK_SECONDS) + ENDING_SECONDS)
    except subprocess.TimeoutExpired:  # it should have ended by its own --timeout
        _end(child)
        code = 3
    except BaseException:
        _end(child)
        raise
    if code == 0 and not common.quiet:
        print("ddpdoctor: check passed; the job starts", file=sys.stderr)
    elif code == 3:
        print("ddpdoctor: the check could not be done; the job starts all the same", file=sys.stderr)
    return code


def _get_ready() -> None:
    """Import what the triage needs while nobody waits for it: when the job has failed, somebody does."""
    try:
        importlib.import_module("ddpdoctor.app.triage")
        views = importlib.import_module("ddpdoctor.rules.views")
        views.hang_rules(views.log_rules(views.load()))
    except Exception:  # the job goes on whatever is wrong with us: the triage itself will say it
        return


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a check and, as it does so itself on SIGTERM, everything that it started."""
    child.terminate()
    try:
        child.wait(ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()


def _triage(common: Common, job: Job, code: int, started: float) -> None:
    """What the output, the error files, the dumps and the kernel's log say together, on standard error."""
    from ddpdoctor.app.output_file import CannotWriteError, write_file
    from ddpdoctor.app.triage import triaged
    from ddpdoctor.cli.output import WIDEST, has_colour
    from ddpdoctor.render import render

    begun = time.time()
    folder = Path(tempfile.mkdtemp(prefix="ddpdoctor_output_"))
    output = folder / "output.log"
    output.write_bytes(job.copy.content())
    kernel = _kernel_log(folder, begun - started)
    left = answer(lambda: _left_behind(job, started), FILE_SECONDS)
    report, _ = triaged([str(output), *kernel, *left], replace(common, launch=None), started=begun, command="run")
    colour = has_colour(common, sys.stderr)
    text = render(report, "table", width=WIDEST, colour=colour, quiet=common.quiet)
    if not report.findings:
        text = "Nothing that it left says why: rerun it with NCCL_DEBUG=INFO TORCH_DISTRIBUTED_DEBUG=DETAIL\n"
    kept = f"its output is kept in {output}"
    if not output.stat().st_size and not kernel:
        shutil.rmtree(folder)
        kept = "it printed nothing"
    name = f" ({signal.Signals(code - 128).name})" if code - 128 in set(signal.Signals) else ""
    print(f"\nddpdoctor: the job ended with exit code {code}{name}; {kept}", file=sys.stderr)
    sys.stderr.write(text)
    if common.output is None:
        return
    options = {"width": WIDEST} if common.format is Format.table else {}
    try:
        write_file(common.output, render(report, common.format.value, **options))
    except CannotWriteError as error:
        print(f"ddpdoctor: {error}", file=sys.stderr)


def _kernel_log(folder: Path, seconds: float) -> list[str]:
    """What the kernel wrote while the job ran, as a file; nothing where it may not be read."""
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
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return [str(path)]


def _left_behind(job: Job, started: float) -> list[str]:
    """The error files that torchrun names, the ranks' own logs, and the dumps that are newer than the job."""
    files = [os.fsdecode(path) for path in ERROR_FILE.findall(job.copy.content())]
    words = job.argv
    folders = [words[i + 1] for i, word in enumerate(words[:-1]) if word in LOG_DIR]
    folders += [word.partition("=")[2] for word in words if word.startswith(tuple(f"{option}=" for option in LOG_DIR))]
    folders += [folder for folder in (job.environ.get("PET_LOG_DIR"),) if folder]
    files += [str(path) for folder in folders for path in sorted(Path(folder).rglob("*"))]
    prefix = job.environ.get("TORCH_FR_DUMP_TEMP_FILE") or job.environ.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    place = Path(prefix or "/tmp/nccl_trace_rank_")
    files += [str(path) for path in sorted(place.parent.glob(f"{place.name}*"))]
    return [path for path in dict.fromkeys(files) if _is_newer(path, started)][:MOST_FILES]


def _is_newer(path: str, moment: float) -> bool:
    try:
        return os.path.isfile(path) and os.stat(path).st_mtime >= moment - 1.0
    except OSError:
        return False
