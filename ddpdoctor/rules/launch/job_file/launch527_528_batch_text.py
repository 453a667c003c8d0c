"""LAUNCH527, LAUNCH528: lines of a batch script that have no effect: late #SBATCH options, conda without its function."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.shell_text import TextSpan
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Edit, Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.job_file.places import edit, row_of, shell_of, text_of, where

_SIZES = re.compile(
    r"#SBATCH\s+(?:--(?:nodes|ntasks|ntasks-per-node|gres|gpus|gpus-per-node|gpus-per-task|cpus-per-task|mem|time|partition|"
    r"account|array|exclusive|constraint)\b|-[NnGcCtpAa](?:\s|\d|$))"
)
"""Options without which the job gets other resources."""
_HOOKS = (
    "source",
    ".",
    "eval",
    "module",
    "ml",
    "spack",
    "bash",
    "sh",
    "exec",
    "use",
    "conda.sh",
    "micromamba",
    "mamba",
)
"""Commands that may define conda's shell function, or replace this shell."""
_LOGIN = re.compile(r"#!.*\b(?:ba|z|k)?sh\s+(?:-\w*[li]|--login)|#!.*\benv -S .*-l")


@cause(
    "LAUNCH527",
    "sbatch-option-after-command",
    Severity.ERROR,
    explains=("LAUNCH510", "LAUNCH023", "LAUNCH035", "LAUNCH054", "LAUNCH058", "LAUNCH061"),
)
def sbatch_option_after_command(submission: Submission) -> Iterator[Finding]:
    """#SBATCH lines are after the first command, so sbatch ignores them.

    ## Why it matters
    sbatch stops reading options at the first command, so the job gets the defaults: one node and one task. The launcher
    then waits for nodes that were never allocated.

    ## Fix
    Move all #SBATCH lines above the first command.

    ## Example
        error[LAUNCH527]: sbatch ignores #SBATCH --nodes=2: it is after the first command

        # before
        #!/bin/bash
        module load cuda
        #SBATCH --nodes=2

        # after
        #!/bin/bash
        #SBATCH --nodes=2
        module load cuda

    ## Source
    sbatch(1): "sbatch will stop processing further #SBATCH directives once the first non-comment non-whitespace line has
    been reached in the script."
    """
    shell = shell_of(submission)
    late = shell.late_options
    if not late or not (shell.commands or submission.tasks):
        return
    worst = next((each for each in late if _SIZES.match(text_of(submission, each))), late[0])
    is_size = _SIZES.match(text_of(submission, worst)) is not None
    option = re.sub(r"\s#.*|(?<!\s)\s+$", "", text_of(submission, worst))
    more = f" and {len(late) - 1} more" if len(late) > 1 else ""
    verb = "it is" if len(late) == 1 else "they are"
    yield Finding(
        f"sbatch ignores {option:.40}{more}: {verb} after the first command",
        (Evidence("submission.shell.late_options", option, "above the first command"),),
        where=where(submission, worst.start),
        severity=None if is_size else Severity.WARNING,
        label="move it above the first command",
        edits=tuple(_moved_up(submission, late)),
    )


def _moved_up(submission: Submission, late: tuple[TextSpan, ...]) -> Iterator[Edit]:
    """The rows below the last option that sbatch reads, or below the first line."""
    rows = [row_of(submission, each.start) for each in late]
    options = [found.start() for found in re.finditer(r"^#SBATCH", submission.text, re.MULTILINE)]
    read = [at for at in options if at < rows[0].start]
    at = row_of(submission, read[-1]).end if read else 0
    if not read and submission.text.startswith("#!"):
        at = row_of(submission, 0).end
    yield edit(submission, at, at, "".join(text_of(submission, row).rstrip("\n") + "\n" for row in rows))
    for row in rows:
        yield edit(submission, row.start, row.end, "")


@cause("LAUNCH528", "conda-activate-without-hook", Severity.WARNING)
def conda_activate_without_hook(submission: Submission) -> Iterator[Finding]:
    """A script runs `conda activate` in a shell that does not have conda's shell function.

    ## Why it matters
    `conda activate` needs a function that ~/.bashrc defines for interactive shells only. The script prints
    `CondaError: Run 'conda init' before 'conda activate'` and continues with the Python of the shell that started it.

    ## Fix
    Load the function first: `eval "$(conda shell.bash hook)"`.

    ## Example
        CondaError: Run 'conda init' before 'conda activate'

        # before
        conda activate train
        torchrun --standalone --nproc-per-node=4 train.py

        # after
        eval "$(conda shell.bash hook)"
        conda activate train
        torchrun --standalone --nproc-per-node=4 train.py
    """
    shell = shell_of(submission)
    if not submission.tasks or _LOGIN.match(shell.text):
        return
    for command in shell.commands:
        name = command.words[0].rpartition("/")[2]
        if name in _HOOKS or (name == "conda" and command.words[1:2] == ("init",)):
            return
        if command.words[:2] == ("conda", "activate"):
            row = row_of(submission, command.span.start)
            indent = submission.text[row.start : command.span.start]
            can_insert = not indent.strip() and command.is_certain
            hook = f'{indent}eval "$(conda shell.bash hook)"\n'
            yield Finding(
                "conda activate fails: this shell does not have conda's function",
                (Evidence("submission.shell.commands", " ".join(command.words)[:60], "the hook before it"),),
                where=where(submission, command.span.start),
                label="load conda's hook first",
                edits=(edit(submission, row.start, row.start, hook),) if can_insert else (),
            )
            return
