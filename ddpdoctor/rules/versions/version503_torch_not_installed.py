"""VERSION503: no torch in the environment that is examined."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.versions import Versions
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause


@cause("VERSION503", "torch-not-installed", Severity.WARNING)
def torch_not_installed(versions: Versions) -> Iterator[Finding]:
    """torch is not installed for the Python that is examined.

    ## Why it matters
    A job that starts with this Python ends with `ModuleNotFoundError: No module named 'torch'`, and ddpdoctor cannot
    probe any rank. Often ddpdoctor is in its own environment (pipx, uv tool), and the job is in another one.

    ## Fix
    Install ddpdoctor in the environment of the job and run it there, or install torch for this Python.

    ## Example

        ModuleNotFoundError: No module named 'torch'

        # before: ddpdoctor is in an environment of its own
        pipx run ddpdoctor check

        # after, in the environment of the job
        python -m pip install ddpdoctor
        python -m ddpdoctor check
    """
    if versions.torches or versions.torch is not None:
        return
    python = versions.python_path or "this Python"
    yield Finding(
        f"torch is not installed for {python}",
        (Evidence("versions.torch", "not installed", "a version of torch"),),
    )
