"""LAUNCH071: torchrun and python of two environments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.versions import Versions
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import correcting, replace_word

__all__ = ["is_plain_torchrun"]


@cause(
    "LAUNCH071",
    "torchrun-of-other-python",
    Severity.ERROR,
    also_in=("versions",),
    signatures=("torchrun: command not found", r"No module named torch\.distributed"),
)
def torchrun_of_other_python(versions: Versions, launch: Launch | None = None) -> Iterator[Finding]:
    """The torchrun on PATH is missing or belongs to another Python than the python on PATH.

    ## Why it matters
    torchrun starts the ranks with the Python named in its first line: they fail with `ModuleNotFoundError` for
    packages that `python` can import, or use another version of torch. Often it is a torchrun in ~/.local/bin.

    ## Fix
    Use `python -m torch.distributed.run` in place of torchrun.

    ## Example
        ModuleNotFoundError: No module named 'transformers'

        # before
        torchrun --nproc-per-node=2 train.py

        # after
        python -m torch.distributed.run --nproc-per-node=2 train.py
    """
    if versions.torchrun_path is None:
        if launch is None or not launch.lines or not is_plain_torchrun(launch.lines[0]):
            not_here("no torchrun on PATH")
        yield Finding(
            "no torchrun on PATH (the shell reports `command not found`)",
            (Evidence("versions.torchrun_path", "none", "a path"),),
            fix="Activate the environment in which torch is installed.",
            # ddpdoctor's own environment has torch: its folder may be added to PATH before the job starts.
            severity=None if versions.torch is None else Severity.WARNING,
        )
        return
    own, shell = versions.torchrun_prefix, versions.shell_prefix
    if own is None or shell is None:
        not_here("torchrun or python on PATH is a shim, so its environment is unknown")
    if own != shell:
        mismatch = Finding(
            f"torchrun is from {own}, but python from {shell}",
            (
                Evidence("versions.torchrun_prefix", own, shell),
                Evidence("versions.torchrun_path", versions.torchrun_path),
            ),
        )
        if versions.shell_has_torch is False:
            yield replace(mismatch, fix=f"Activate {own}, or install torch for {versions.shell_python}.")
        else:
            yield _with_python(mismatch, launch)


def _with_python(finding: Finding, launch: Launch | None) -> Finding:
    """The finding with the launcher started by the interpreter: in the line, if there is one."""
    if launch is None or not launch.lines or not is_plain_torchrun(launch.lines[0]):
        return replace(finding, fix_command="python -m torch.distributed.run")
    line = launch.lines[0]
    word = line.layers[0].program
    return correcting(finding, launch, (line, [replace_word(word, "python", "-m", "torch.distributed.run")]))


def is_plain_torchrun(line: LaunchLine) -> bool:
    """Whether the shell of this machine looks for torchrun on PATH when it runs the line."""
    command = next((word for word in line.argv if word.assignment is None), None)
    is_here = line.file is None and line.starter is not None and line.layers[0] is line.starter
    return (
        is_here
        and "PATH" not in {each.name for each in line.layers[0].variables}
        and command is not None
        and command.text == "torchrun"
    )
