"""What `lint` or `check` examined: launch lines, files, other files of folders, and one line that summarizes them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from ddpdoctor.examined import ExaminedInput
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.launch.judged import described, why_not_judged
from ddpdoctor.wording import counted

__all__ = ["folder_inputs", "line_inputs", "subject_of"]

MOST_LISTED = 1000
"""Files of one folder that are listed with the reason why they were not judged; of more, only the number is given."""
BATCH = (".sbatch", ".slurm")
JOB_FILES = (".sh", ".bash", ".ksh", ".job", ".qsub", ".pbs", ".lsf", ".bsub", ".sge", *BATCH, ".yaml", ".yml")


def line_inputs(launch: Launch | None, facts: Path | None, failures: Sequence[str]) -> list[ExaminedInput]:
    """The launch lines that were given, and the file of saved facts."""
    inputs = []
    if facts is not None:
        reason = failures[0].rpartition(": ")[2].lower() if failures else None
        inputs.append(ExaminedInput(str(facts), "facts", is_understood=not failures, reason=reason))
    for line in launch.lines if launch is not None and facts is None else ():
        reason = why_not_judged(line)
        inputs.append(ExaminedInput(line.source, "launch line", is_understood=reason is None, reason=reason))
    return inputs


def folder_inputs(
    others: Mapping[str, Sequence[str]], judged: Iterable[str], passed_over: Sequence[str], broken: Sequence[str]
) -> list[ExaminedInput]:
    """The files of folders that were not judged, and why; a folder with no file to judge was not understood."""
    done = set(judged)
    inputs = []
    for folder, files in others.items():
        reasons = dict.fromkeys((path for path in broken if _is_below(path, folder)), "Python syntax error")
        reasons |= dict.fromkeys((path for path in passed_over if _is_below(path, folder)), "no distributed training")
        has_python = bool(reasons) or any(_is_below(path, folder) for path in done)
        reasons |= {
            path: "no launch" if path.endswith(JOB_FILES) else "not a job file" for path in files if path not in done
        }
        if not has_python:
            count = counted(len(files), "other file") if files else "no files"
            inputs.append(_skipped(folder, f"nothing to judge: {count}", is_named=True))
            continue
        inputs += [_skipped(path, reason) for path, reason in islice(reasons.items(), MOST_LISTED)]
        if len(reasons) > MOST_LISTED:
            inputs.append(_skipped(folder, f"{len(reasons) - MOST_LISTED} more files that are not listed"))
    return inputs


def _skipped(path: str, reason: str, *, is_named: bool = False) -> ExaminedInput:
    return ExaminedInput(path, "unknown", is_understood=False, reason=reason, is_named=is_named)


def _is_below(path: str, folder: str) -> bool:
    return (folder == "." and not path.startswith(("/", ".."))) or path.startswith(os.path.join(folder, ""))


def subject_of(launch: Launch, inputs: Iterable[ExaminedInput]) -> str:
    """What was examined, in one line: `torchrun: 2 nodes x 4 ranks, train.py; 2 scripts, 1 sbatch file`."""
    inputs = tuple(inputs)
    given = [source for source in inputs if source.kind == "launch line"]
    pieces = [described(launch)] if given and launch.lines else []
    from_lines = {line.script.path for line in launch.lines if line.script is not None and line.file is None}
    files = [source for source in inputs if source.is_understood and os.path.abspath(source.path) not in from_lines]
    counts = Counter(_noun(file) for file in files if file.kind != "launch line")
    kinds = ", ".join(counted(number, noun) for noun, number in counts.items())
    return "; ".join([*pieces, *([kinds] if kinds else [])])


def _noun(each: ExaminedInput) -> str:
    if each.kind == "shell":
        return "sbatch file" if each.path.endswith(BATCH) else "shell script"
    return "facts file" if each.kind == "facts" else each.kind
