"""LAUNCH595, LAUNCH596: a stray word in the options of sbatch, and signal handlers that run too late."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.shell_text import ShellCommand, TextSpan
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.launch.sbatch import batch_rows
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.job_file.places import edit, shell_of, where
from ddpdoctor.rules.launch.submitted import at_mark, mark_of

__all__: list[str] = []

_VALUE = r"[^\s\"'\\]+"
_TAKES_VALUE = (
    r"--(?:job-name|output|error|partition|account|time|nodes|ntasks|ntasks-per-node|cpus-per-task|gres|gpus|gpus-per-node|"
    r"gpus-per-task|mem|mem-per-cpu|mem-per-gpu|qos|constraint|comment|chdir|array|mail-type|mail-user|reservation)"
)
_STRAY = re.compile(rf"(?:--[\w-]+=|-[JNncptAoeGqC]\s*|{_TAKES_VALUE}\s+)({_VALUE})((?:\s+[^\s\"'\\#-][^\s\"'\\]*)+)")
"""An option with its value, and the words after it that no option takes."""


@cause(
    "LAUNCH595",
    "stray-word-in-sbatch-options",
    Severity.ERROR,
    explains=("LAUNCH510", "LAUNCH023", "LAUNCH035", "LAUNCH054", "LAUNCH058", "LAUNCH061"),
)
def stray_word_in_sbatch_options(submission: Submission) -> Iterator[Finding]:
    """A value with an unquoted space makes sbatch refuse the file.

    ## Why it matters
    sbatch takes the second word for a directive and stops: `Invalid directive found in batch script: LM`.

    ## Fix
    Quote the value, or write it without a space.

    ## Example
        error[LAUNCH595]: sbatch refuses `LM run` after --job-name=Big: the value is not quoted

        # before
        #SBATCH --job-name=Big LM run
        #SBATCH --nodes=2
        #SBATCH --gpus-per-node=4

        # after
        #SBATCH --job-name="Big LM run"
        #SBATCH --nodes=2
        #SBATCH --gpus-per-node=4

    ## Source
    sbatch 22.05.8 with such a file, also where the word is on the last line.
    """
    shell = shell_of(submission)
    for start, option in batch_rows(shell.text):
        found = _STRAY.match(option)
        if found is None:
            continue
        words = found[2].strip()
        at, end = start + found.start(1), start + found.end(2)
        yield Finding(
            f"sbatch refuses `{words:.30}` after {option[: found.end(1)]:.40}: the value is not quoted",
            (Evidence("submission.shell.text", option, "a value in quotes"),),
            where=where(submission, start + found.start(2) + len(found[2]) - len(found[2].lstrip())),
            label="quote the value",
            edits=(edit(submission, at, end, f'"{found[1]}{found[2]}"'),),
        )
        return


@cause("LAUNCH596", "batch-trap-runs-too-late", Severity.WARNING)
def batch_trap_runs_too_late(submission: Submission) -> Iterator[Finding]:
    """The batch script has a handler for the time limit's signal, which never runs in time.

    ## Why it matters
    bash runs a handler only after its foreground command, srun, has ended: at the time limit, when Slurm kills the script
    too, so nothing is requeued or saved. Without `B:` only the job steps get the signal.

    ## Fix
    Ask for `--signal=B:…`, start srun with `&`, and add `wait $!`.

    ## Example
        warning[LAUNCH596]: the handler of USR1 waits for srun, which runs in the foreground

        # before
        #SBATCH --signal=B:USR1@300
        trap requeue USR1
        srun torchrun --standalone --nproc-per-node=4 train.py

        # after
        #SBATCH --signal=B:USR1@300
        trap requeue USR1
        srun torchrun --standalone --nproc-per-node=4 train.py &
        wait $!

    ## Source
    bash(1), "SIGNALS"; sbatch(1), `--signal`: "all job steps will be signaled, but not the batch shell itself".
    """
    shell = shell_of(submission)
    signal, to_shell, row = _signal_of(shell.text)
    trap = next((each for each in shell.commands if signal and _handles(each, signal)), None)
    if trap is None or not shell.is_complete:
        return
    if not to_shell:
        yield Finding(
            f"--signal without `B:` does not reach the handler of {signal} in this script",
            (Evidence("submission.shell.text", "no B:", "B:"),),
            where=where(submission, row.start),
            label=f"use --signal=B:{signal}",
        )
        return
    steps = [each for each in submission.steps if each.tasks and each.tasks[0].span.start > trap.span.start]
    if not steps or any(each.is_background or not each.is_certain for each in steps):
        return
    task = steps[0].tasks[0]
    name = task.layer.name if task.launcher is None else task.launcher.name
    mark = mark_of(task, None) if task.launcher is None else task.launcher.at
    text = f"the handler of {signal} waits for {name}, which runs in the foreground"
    yield at_mark(submission, mark, text, seen="in the foreground", expected="& and wait", label="add & and wait $!")


def _signal_of(text: str) -> tuple[str, bool, TextSpan]:
    """The signal that `--signal` asks for, without SIG ("" if it asks for none), whether the script gets it, and its place."""
    for start, option in batch_rows(text):
        found = re.match(r"--signal[= ]([RB]*)(:?)(?:SIG)?([A-Z]+\d?)(?:@\d+)?$", option)
        if found is not None:
            return found[3], "B" in found[1] and bool(found[2]), TextSpan(start, start + len(option))
    return "", False, TextSpan(0, 0)


def _handles(command: ShellCommand, signal: str) -> bool:
    """Whether this is a `trap` with a handler for the signal."""
    words = command.words
    names = [word.removeprefix("SIG") for word in words[2:]]
    return words[0] == "trap" and command.is_certain and signal in names and words[1] not in ("", "-", "--")
