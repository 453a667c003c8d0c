"""Reads files with launch lines: their kind, their lines, and the comments that suppress findings."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

from ddpdoctor.examined import ExaminedInput
from ddpdoctor.facts.launch.record import LaunchLine, StartedScript
from ddpdoctor.facts.submission import Submission
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.evaluator.jobs import ImaginedJob
from ddpdoctor.launch.ignore_comments import codes_in
from ddpdoctor.launch.lookup import FileLookup
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.system.budget import OverBudgetError, within_budget
from ddpdoctor.system.process import LateError, run
from ddpdoctor.system.regular_file import read_regular

if TYPE_CHECKING:
    from ddpdoctor.launch.evaluator.task_files import TaskFile

__all__ = ["LaunchFiles", "may_hold_launches", "read_files", "read_text", "shell_error"]

MAX_BYTES = 1 << 20
"""The size limit: launch scripts and manifests are far smaller."""
HEAD_BYTES = 200
CHECK_SECONDS = 3.0
READ_SECONDS = 10.0
"""Time limit for one file: the largest in public repositories take 1 s."""

_SHELL_NAME = re.compile(r"\.(sh|bash|ksh|sbatch|slurm|job|qsub|pbs|lsf|bsub|sge)$")
_YAML_NAME = re.compile(r"\.(ya?ml|json)$")
_DOCKERFILE = re.compile(r"(?:^|/)(?:[\w.-]+\.)?(?:Dockerfile|Containerfile|dockerfile)(?:\.[\w-]+)?$")
_ENDS_IN_RETURN = re.compile(r"(#!|\s*[^#\s]).*\r$")
"""A line with a carriage return that matters to bash: not a comment, not an empty line."""
_LAUNCHES = re.compile(
    rb"torchrun|torch\.distributed|accelerate|deepspeed|srun|mpirun|mpiexec|jsrun|python|#SBATCH"
    rb"|\bssh\b.{0,200}?\bbash \S{1,200}\.sh\b"
)
_SHELL_FIRST = re.compile(r"#!.{0,200}?\b(?:bash|sh|dash|ksh)\b")


@dataclass(slots=True)
class LaunchFiles:
    """What was read: the lines of each file, in order, the code prefixes suppressed per line of a file, and the failures.

    An empty prefix suppresses every code. `inputs` are the files as the report lists them, in order. `jobs` are what shell
    files and manifests start on an imagined cluster, `submissions` the same as facts, and `left_out` what was not understood.
    """

    lines: dict[str, tuple[LaunchLine, ...]] = field(default_factory=dict)
    silenced: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    inputs: dict[str, ExaminedInput] = field(default_factory=dict)
    jobs: dict[str, tuple[ImaginedJob, ...]] = field(default_factory=dict)
    left_out: dict[str, tuple[str, ...]] = field(default_factory=dict)
    submissions: dict[str, Submission] = field(default_factory=dict)

    def silences(self, code: str, file: str, rows: Iterable[int]) -> bool:
        """Whether a comment on one of these lines suppresses the code."""
        return any(code.startswith(self.silenced.get((file, row)) or ("\0",)) for row in rows)


@dataclass(frozen=True, slots=True)
class _Start:
    """With what files are read: the environment and the folder that shell scripts start in, torch, and this machine's files."""

    environ: Mapping[str, str]
    version: Version
    cwd: str
    files: FileLookup


def read_files(
    paths: Iterable[str], environ: Mapping[str, str], version: Version, cwd: str, files: FileLookup
) -> LaunchFiles:
    """Read shell scripts, sbatch files and manifests. `inputs` has the other files, and why they have no lines.

    Args:
        environ: the initial environment of shell scripts; manifests start with an empty one.
        cwd: where shell scripts would be started.
        files: examines the training scripts that the lines name.
    """
    found, start = LaunchFiles(), _Start(environ, version, cwd, files)
    for path in dict.fromkeys(paths):
        if path.endswith(".py"):
            continue
        text, reason = _text(path, found)
        if text is None:
            found.inputs[path] = ExaminedInput(path, "unknown", is_understood=False, reason=reason)
        else:
            found.inputs[path] = _limited(path, text, found, start)
    return found


def read_text(
    path: str, text: str, environ: Mapping[str, str], version: Version, cwd: str, files: FileLookup
) -> LaunchFiles:
    """A file as if it had this text."""
    found = LaunchFiles()
    found.inputs[path] = _read(path, text, found, _Start(environ, version, cwd, files))
    return found


def may_hold_launches(path: str) -> bool:
    """A quick check whether a file in a folder is a shell script, a manifest or another task file with a launch."""
    is_manifest = path.endswith((".yaml", ".yml"))
    is_named = is_manifest or _SHELL_NAME.search(path) is not None or _DOCKERFILE.search(path) is not None
    if not (is_named or "." not in os.path.basename(path)) or not os.path.isfile(path):
        return False
    try:
        head = read_regular(path, HEAD_BYTES)
        if not is_named and _SHELL_FIRST.match(head.decode("utf-8", "replace")) is None:
            return False
        text = read_regular(path, MAX_BYTES)
    except OSError:
        return False
    has_launch = _LAUNCHES.search(text) is not None
    is_task = has_launch and re.search(rb"(?m)^(?:run|services):", text) is not None  # of SkyPilot or Compose
    return b"\0" not in text and (b"kind:" in text or is_task if is_manifest else has_launch)


def _text(path: str, found: LaunchFiles) -> tuple[str | None, str]:
    """The text of a file; or None and the reason."""
    try:
        data = read_regular(path, MAX_BYTES + 1)
    except OSError as error:
        found.failures.append(f"{path}: not read: {error.strerror}")
        return None, (error.strerror or "not readable").lower()
    if len(data) > MAX_BYTES:
        found.failures.append(f"{path}: not read: larger than {MAX_BYTES >> 20} MiB")
        return None, f"larger than {MAX_BYTES >> 20} MiB"
    if b"\0" in data:
        return None, "binary"
    text = data.decode("utf-8-sig", "replace")
    return (text, "") if text.strip() else (None, "empty")


def _limited(path: str, text: str, found: LaunchFiles, start: _Start) -> ExaminedInput:
    """As `_read`, within a budget of time and memory."""
    try:
        return within_budget(lambda: _read(path, text, found, start), READ_SECONDS)
    except OverBudgetError as error:
        for by_path in (found.lines, found.jobs, found.left_out):
            by_path.pop(path, None)
        found.failures.append(f"{path}: {error}")
        return ExaminedInput(path, "unknown", is_understood=False, lines=text.count("\n"), reason=str(error))


def _read(path: str, text: str, found: LaunchFiles, start: _Start) -> ExaminedInput:
    """The lines of one file, by its kind. The readers of a format are imported only for such files."""
    for row, line in enumerate(text.split("\n"), 1):
        codes = codes_in(line)
        if codes is not None:
            found.silenced[path, row] = codes
    rows = text.split("\n") if "\r\n" in text else ()
    text = text.replace("\r\n", "\n")
    count = text.count("\n") + (not text.endswith("\n"))
    if _YAML_NAME.search(path):
        from ddpdoctor.launch.evaluator.manifests import imagined_manifest_jobs
        from ddpdoctor.launch.evaluator.task_files import yaml_task
        from ddpdoctor.launch.manifests.manifest import lines_of_manifest, why_no_launch

        task = yaml_task(text, path, start.version, start.files)
        if task is not None and (task.lines or task.jobs):
            return _of_task(path, task, found, count)
        lines, failures = lines_of_manifest(path, text, start.version)
        found.lines[path] = lines
        found.failures += failures
        jobs, left_out, submission = imagined_manifest_jobs(text, path, start.version)
        found.jobs[path], found.left_out[path], found.submissions[path] = jobs, left_out, submission
        if lines or submission.demands or any(group.told is not None for group in submission.ray_groups):
            return ExaminedInput(path, "manifest", lines=count, left_out=left_out)
        why = "not YAML" if failures else why_no_launch(path, text)
        return ExaminedInput(path, "manifest", is_understood=False, lines=count, reason=why)
    if _DOCKERFILE.search(path):
        from ddpdoctor.launch.evaluator.task_files import dockerfile_task

        return _of_task(path, dockerfile_task(text, path, start.version), found, count)
    if _is_shell(path, text):
        from ddpdoctor.launch.shell.reader import MOST_LINES, lines_of_shell
        from ddpdoctor.launch.shell.text import ShellSource

        lines = lines_of_shell(
            ShellSource(text, path, start.environ, start.version, _folders(path, start.cwd), files=start.files)
        )
        ends = next((i for i, line in enumerate(rows, 1) if _ENDS_IN_RETURN.match(line)), None)
        found.lines[path] = tuple(replace(line, carriage_return=ends) for line in lines)
        error = shell_error(path, text)
        if error is not None:
            found.failures.append(error)
        _imagine(path, text, found, start)
        is_understood = bool(lines or found.jobs[path])
        reason = None if is_understood else "no launch line found"
        left_out = found.left_out[path]
        if len(lines) >= MOST_LINES:
            left_out = found.left_out[path] = (*left_out, f"{path}: only the first {MOST_LINES} launch lines are read")
        return ExaminedInput(path, "shell", is_understood=is_understood, lines=count, reason=reason, left_out=left_out)
    return ExaminedInput(
        path, "unknown", is_understood=False, lines=count, reason="neither Python, shell, notebook nor manifest"
    )


def _of_task(path: str, task: TaskFile, found: LaunchFiles, count: int) -> ExaminedInput:
    """A SkyPilot task, a Compose file or a Dockerfile."""
    found.lines[path], found.jobs[path] = task.lines, task.jobs
    found.submissions[path], found.left_out[path] = task.submission, task.left_out
    is_understood = bool(task.lines or task.jobs or task.submission.word_lists)
    reason = None if is_understood else "no launch line found"
    left_out = tuple(each if each.startswith(f"{path}:") else f"{path}: {each}" for each in task.left_out)
    return ExaminedInput(path, "manifest", is_understood=is_understood, lines=count, reason=reason, left_out=left_out)


def _imagine(path: str, text: str, found: LaunchFiles, start: _Start) -> None:
    """Execute a shell file on an imagined cluster."""
    from ddpdoctor.facts.launch.record import Launch
    from ddpdoctor.launch.evaluator.jobs import jobs_of_run
    from ddpdoctor.launch.evaluator.launches import run_job_file
    from ddpdoctor.launch.evaluator.shell_settings import refused_in_shell
    from ddpdoctor.launch.evaluator.shell_text import shell_text_of
    from ddpdoctor.launch.evaluator.submissions import submission_of

    folder = os.path.dirname(os.path.abspath(path))
    texts = _FilesOfJob(start.files, folder)
    run_of_file = run_job_file(text, path, start.environ, start.version, folder, texts)
    found.jobs[path] = jobs_of_run(run_of_file, Launch(), path, text, start.version, texts)
    shell = shell_text_of(text, start.version, run_of_file)
    found.submissions[path] = submission_of(
        path,
        text,
        run_of_file,
        found.jobs[path],
        found.lines[path],
        shell=shell,
        script=texts.started_script,
        refused=refused_in_shell(text, path, run_of_file, start.environ),
    )
    found.left_out[path] = tuple(dict.fromkeys(run_of_file.left_out))


@dataclass(frozen=True)
class _FilesOfJob:
    """Files that a job file reads itself; where its training script is on the cluster is unknown.

    A file of another machine, `/nfs/team/cluster.env` in a folder that is not here, is taken to be the one of that name next to
    the job file in `folder`, if there is one.
    """

    files: FileLookup
    folder: str

    def script(self, path: str) -> StartedScript | None:
        return None

    def started_script(self, path: str) -> StartedScript | None:
        """The training script that a process starts; None where there is none here."""
        found = self.files.script(self._here(path))
        return found if found is not None and found.exists else None

    def text(self, path: str) -> str | None:
        return self.files.text(self._here(path))

    def is_folder(self, path: str) -> bool:
        return self.files.is_folder(path)

    def _here(self, path: str) -> str:
        above = os.path.dirname(path)
        if not os.path.isabs(path) or path.startswith(("/dev/", "/proc/", "/etc/")) or self.files.is_folder(above):
            return path
        beside = os.path.join(self.folder, os.path.basename(path))
        return beside if self.files.text(beside) is not None else path


def _is_shell(path: str, text: str) -> bool:
    if text.startswith("#!"):
        return bool(_SHELL_FIRST.match(text))
    return bool(_SHELL_NAME.search(path)) or "\n#SBATCH" in text or text.startswith("#SBATCH")


def _folders(path: str, cwd: str) -> tuple[str, ...]:
    """Folders that a relative path may start from: the current one, the file's, or its parent (`bash scripts/run.sh`)."""
    folder = os.path.dirname(os.path.abspath(os.path.join(cwd, path)))
    above = os.path.dirname(folder)
    return tuple(dict.fromkeys((cwd, folder, above)))


def shell_error(path: str, text: str) -> str | None:
    """bash's syntax error for a script; None if bash can parse it, or is not installed."""
    from ddpdoctor.launch.shell.text import parse

    if not parse(text).has_error:
        return None
    bash = shutil.which("bash")
    if bash is None:
        return None
    try:
        done = run(
            [bash, "--norc", "-n"], CHECK_SECONDS, stdin=text.encode("utf-8", "replace"), environ={"LC_ALL": "C"}
        )
    except (OSError, LateError):
        return None
    if done.code == 0:
        return None
    said = done.err.decode("utf-8", "replace").strip().splitlines()
    match = re.search(r"line (\d+): (.*)", said[0]) if said else None
    return f"{path}:{match[1]}: {match[2]}" if match else f"{path}: not a shell script"
