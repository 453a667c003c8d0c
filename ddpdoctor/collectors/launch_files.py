"""Reads files with launch lines: their kind, their lines, and the comments that suppress findings."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.ignore_comments import codes_in
from ddpdoctor.launch.lookup import FileLookup
from ddpdoctor.system.process import LateError, run

__all__ = ["LaunchFiles", "read_files", "shell_error"]

MAX_BYTES = 1 << 20
"""The size limit: launch scripts and manifests are far smaller."""
CHECK_SECONDS = 3.0

_SHELL_NAME = re.compile(r"\.(sh|bash|ksh|sbatch|slurm|job|qsub)$")
_YAML_NAME = re.compile(r"\.(ya?ml|json)$")
_ENDS_IN_RETURN = re.compile(r"(#!|\s*[^#\s]).*\r$")
"""A line with a carriage return that matters to bash: not a comment, not an empty line."""
_SHELL_FIRST = re.compile(r"#!.*?\b(?:bash|sh|dash|ksh)\b")


@dataclass(slots=True)
class LaunchFiles:
    """What was read: the lines of each file, in order, the code prefixes suppressed per line of a file, and the failures.

    An empty prefix suppresses every code.
    """

    lines: dict[str, tuple[LaunchLine, ...]] = field(default_factory=dict)
    silenced: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def silences(self, code: str, file: str, rows: Iterable[int]) -> bool:
        """Whether a comment on one of these lines suppresses the code."""
        return any(code.startswith(self.silenced.get((file, row)) or ("\0",)) for row in rows)


def read_files(
    paths: Iterable[str], environ: Mapping[str, str], version: Version, cwd: str, files: FileLookup
) -> LaunchFiles:
    """Read shell scripts, sbatch files and manifests. Other files, and files without a launch, have no lines.

    Args:
        environ: the initial environment of shell scripts; manifests start with an empty one.
        cwd: where shell scripts would be started.
        files: examines the training scripts that the lines name.
    """
    found = LaunchFiles()
    for path in dict.fromkeys(paths):
        if path.endswith(".py"):
            continue
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            found.failures.append(f"{path}: not read: {error.strerror}")
            continue
        if len(data) > MAX_BYTES:
            found.failures.append(f"{path}: not read: larger than {MAX_BYTES >> 20} MiB")
        elif b"\0" not in data:
            _read(path, data.decode("utf-8-sig", "replace"), found, environ, version, cwd, files)
    return found


def _read(
    path: str,
    text: str,
    found: LaunchFiles,
    environ: Mapping[str, str],
    version: Version,
    cwd: str,
    files: FileLookup,
) -> None:
    """The lines of one file, by its kind. The readers of a format are imported only for such files."""
    for row, line in enumerate(text.split("\n"), 1):
        codes = codes_in(line)
        if codes is not None:
            found.silenced[path, row] = codes
    rows = text.split("\n") if "\r\n" in text else ()
    text = text.replace("\r\n", "\n")
    if _YAML_NAME.search(path):
        from ddpdoctor.launch.manifests.manifest import lines_of_manifest

        lines, failures = lines_of_manifest(path, text, version)
        found.lines[path] = lines
        found.failures += failures
    elif _is_shell(path, text):
        from ddpdoctor.launch.shell.reader import lines_of_shell
        from ddpdoctor.launch.shell.text import ShellSource

        lines = lines_of_shell(ShellSource(text, path, environ, version, _folders(path, cwd), files=files))
        ends = next((i for i, line in enumerate(rows, 1) if _ENDS_IN_RETURN.match(line)), None)
        found.lines[path] = tuple(replace(line, carriage_return=ends) for line in lines)
        error = shell_error(path, text)
        if error is not None:
            found.failures.append(error)


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
