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
    """The torchrun on PATH belongs to another Python environment than the python on PATH, or there is none.

    ## Why it matters
    torchrun starts the ranks with the Python in its own first line: `ModuleNotFoundError` for packages that `python`
    imports in the same shell, or quite another torch. A user-wide torchrun in ~/.local/bin is the usual one.

    ## Fix
    Start with the right interpreter: python -m torch.distributed.run in place of torchrun.
    """
    if versions.torchrun_path is None:
        if launch is None or not launch.lines or not is_plain_torchrun(launch.lines[0]):
            not_here("there is no torchrun on PATH")
        yield Finding(
            "the line starts torchrun, and no folder of PATH has one on this machine: its shell ends with command not found;"
            " expected the environment in which torch is installed to be active",
            (Evidence("versions.torchrun_path", "none", "a path"),),
            # The doctor's own environment has torch: its folder may be put into PATH between this and the job.
            severity=None if versions.torch is None else Severity.WARNING,
        )
        return
    own, shell = versions.torchrun_prefix, versions.shell_prefix
    if own is None or shell is None:
        not_here("torchrun or python on PATH is a shim: which environment it chooses cannot be read")
    if own != shell:
        found = Finding(
            f"{versions.torchrun_path} belongs to the Python of {own}: expected that of {shell}, as {versions.shell_python} does",
            (Evidence("versions.torchrun_prefix", own, shell),),
        )
        if versions.shell_has_torch is False:
            fix = (
                f"Install torch for {versions.shell_python}, or activate the environment {own}, whose torchrun this is."
            )
            yield replace(found, fix=fix)
        else:
            yield _with_python(found, launch)


def _with_python(finding: Finding, launch: Launch | None) -> Finding:
    """The finding with the launcher started by the interpreter: in the line, where there is one."""
    if launch is None or not launch.lines or not is_plain_torchrun(launch.lines[0]):
        return replace(finding, fix_command="python -m torch.distributed.run")
    line = launch.lines[0]
    word = line.layers[0].program
    return correcting(finding, launch, (line, [replace_word(word, "python", "-m", "torch.distributed.run")]))


def is_plain_torchrun(line: LaunchLine) -> bool:
    """Whether the shell that reads the line looks for torchrun here."""
    command = next((word for word in line.argv if word.assignment is None), None)
    is_here = line.file is None and line.starter is not None and line.layers[0] is line.starter
    return (
        is_here
        and "PATH" not in {each.name for each in line.layers[0].variables}
        and command is not None
        and command.text == "torchrun"
    )
