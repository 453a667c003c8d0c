"""What a report of `lint` or `check` says that it was about: launch lines, files, what a folder held besides, in one line."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ddpdoctor.examined import ExaminedInput
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.wording import counted
from ddpdoctor.launch.judged import described, why_not_judged

__all__ = ["folder_inputs", "line_inputs", "subject_of"]

BATCH = (".sbatch", ".slurm")
JOB_FILES = (".sh", ".bash", ".ksh", ".job", ".qsub", *BATCH, ".yaml", ".yml")


def line_inputs(launch: Launch | None, facts: Path | None, failures: Sequence[str]) -> list[ExaminedInput]:
    """The launch lines that were given, and the file of saved facts."""
    found = []
    if facts is not None:
        reason = failures[0].rpartition(": ")[2].lower() if failures else None
        found.append(ExaminedInput(str(facts), "facts", is_understood=not failures, reason=reason))
    for line in launch.lines if launch is not None and facts is None else ():
        reason = why_not_judged(line)
        found.append(ExaminedInput(line.source, "launch line", is_understood=reason is None, reason=reason))
    return found


def folder_inputs(
    others: Mapping[str, Sequence[str]], judged: Iterable[str], passed_over: Sequence[str], broken: Sequence[str]
) -> list[ExaminedInput]:
    """For each folder one entry about its files that were not judged; a folder without any to judge was not understood."""
    done = set(judged)
    found = []
    for folder, files in others.items():
        left = [path for path in files if path not in done]
        plain = [path for path in passed_over if _is_below(path, folder)]
        bad = [path for path in broken if _is_below(path, folder)]
        has_judged = any(_is_below(path, folder) for path in done)
        if not (left or plain or bad) and has_judged:
            continue
        is_empty = not has_judged and not plain
        reason = "; ".join(_reasons(left, plain, bad)) or "it holds no files"
        found.append(
            ExaminedInput(
                folder,
                "unknown",
                is_understood=False,
                reason=f"nothing to judge: {reason}" if is_empty else f"skipped {reason}",
                is_named=is_empty,
            )
        )
    return found


def _is_below(path: str, folder: str) -> bool:
    return (folder == "." and not path.startswith(("/", ".."))) or path.startswith(os.path.join(folder, ""))


def _reasons(left: Sequence[str], plain: Sequence[str], broken: Sequence[str]) -> list[str]:
    found = []
    if broken:
        more = ", …" if len(broken) > 3 else ""
        found.append(f"{counted(len(broken), 'file')} with Python syntax errors: {', '.join(broken[:3])}{more}")
    found += [f"{counted(len(plain), 'Python file')} without distributed training"] if plain else []
    kinds = Counter("job" if path.endswith(JOB_FILES) else "other" for path in left)
    if kinds["job"]:
        found.append(f"{counted(kinds['job'], 'shell or YAML file')} without a launch")
    if kinds["other"]:
        found.append(counted(kinds["other"], "other file"))
    return found


def subject_of(launch: Launch, inputs: Iterable[ExaminedInput]) -> str:
    """What was examined, in one line: `torchrun: 2 nodes x 4 ranks, train.py; 2 scripts, 1 sbatch file`."""
    inputs = tuple(inputs)
    given = [each for each in inputs if each.kind == "launch line"]
    pieces = [described(launch)] if given and launch.lines else []
    from_lines = {line.script.path for line in launch.lines if line.script is not None and line.file is None}
    files = [each for each in inputs if each.is_understood and os.path.abspath(each.path) not in from_lines]
    counts = Counter(_noun(each) for each in files if each.kind != "launch line")
    kinds = ", ".join(counted(number, noun) for noun, number in counts.items())
    return "; ".join([*pieces, *([kinds] if kinds else [])])


def _noun(each: ExaminedInput) -> str:
    if each.kind == "shell":
        return "sbatch file" if each.path.endswith(BATCH) else "shell script"
    return "facts file" if each.kind == "facts" else each.kind
