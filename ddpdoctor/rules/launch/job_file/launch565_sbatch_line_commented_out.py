"""LAUNCH565: `# SBATCH` with a space, which sbatch does not read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.job_file.places import edit, shell_of, where
from ddpdoctor.rules.launch.submitted import agents_of

__all__: list[str] = []

_GPUS = ("--gres", "--gpus", "--gpus-per-node", "--gpus-per-task", "-G")
_NODES = ("-N", "--nodes")
_ROW = re.compile(
    r"(?m)^#[ \t]+SBATCH[ \t]+(?P<option>(?P<flag>--(?:gres|gpus|gpus-per-node|gpus-per-task|nodes)|-[GN])[ =]?[^\s#]+)"
)


@cause("LAUNCH565", "sbatch-line-commented-out", Severity.WARNING, explains=("LAUNCH510",))
def sbatch_line_commented_out(submission: Submission) -> Iterator[Finding]:
    """A line begins with `# SBATCH`, and the job needs what it asks for.

    ## Why it matters
    sbatch reads only lines that begin with `#SBATCH`. With a space it is a comment: the job gets no GPU, or one node, and the
    ranks fail with `No CUDA GPUs are available`.

    ## Fix
    Remove the space: `#SBATCH`.

    ## Example
        warning[LAUNCH565]: sbatch does not read `# SBATCH --gres=gpu:4`

        # before
        #SBATCH --nodes=1
        # SBATCH --gres=gpu:4
        torchrun --standalone --nproc-per-node=4 train.py

        # after
        #SBATCH --nodes=1
        #SBATCH --gres=gpu:4
        torchrun --standalone --nproc-per-node=4 train.py

    ## Source
    sbatch(1): `#SBATCH` followed by options.
    """
    shell, given = shell_of(submission), submission.grant.places.keys()
    if submission.grant.scheduler != "Slurm":
        return
    plans = [agent.plan for _, _, agent in agents_of(submission)]
    for found in _ROW.finditer(shell.text):
        is_of_gpus = found["flag"] in _GPUS
        if given & set(_GPUS if is_of_gpus else _NODES) or _is_step_option(submission, is_of_gpus=is_of_gpus):
            continue
        needs = [(plan.nproc or 0) > 1 if is_of_gpus else plan.is_multinode for plan in plans]
        if not any(needs):
            continue
        yield Finding(
            f"sbatch does not read `# SBATCH {found['option']:.30}`",
            (Evidence("submission.shell.text", found[0], "#SBATCH"),),
            where=where(submission, found.start()),
            label="remove the space",
            edits=(edit(submission, found.start() + 1, found[0].index("SBATCH") + found.start(), ""),),
        )
        return


def _is_step_option(submission: Submission, *, is_of_gpus: bool) -> bool:
    """srun asks for it itself."""
    flags = set(_GPUS if is_of_gpus else _NODES)
    return any(flags & task.launcher.places.keys() for task in submission.tasks if task.launcher is not None)
