"""LAUNCH071: torchrun and python of two environments."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.versions import Versions
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import rule


@rule(
    "LAUNCH071",
    "torchrun-of-other-python",
    Severity.ERROR,
    signatures=("torchrun: command not found", r"No module named torch\.distributed"),
)
def check(versions: Versions) -> Iterator[Finding]:
    """The torchrun on PATH belongs to another Python environment than the python on PATH.

    ## Why it matters
    torchrun starts the ranks with the Python in its own first line: `ModuleNotFoundError` for packages that `python`
    imports in the same shell, or quite another torch. A user-wide torchrun in ~/.local/bin is the usual one.

    ## Fix
    Start with the right interpreter: python -m torch.distributed.run in place of torchrun.
    """
    if versions.torchrun_path is None:
        not_here("there is no torchrun on PATH")
    own, shell = versions.torchrun_prefix, versions.shell_prefix
    if own is None or shell is None:
        not_here("torchrun or python on PATH is a shim: which environment it chooses cannot be read")
    if own != shell:
        yield Finding(
            f"{versions.torchrun_path} belongs to the Python of {own}: expected that of {shell}, as {versions.shell_python} does",
            (Evidence("versions.torchrun_prefix", own, shell),),
            fix_command="python -m torch.distributed.run",
        )
