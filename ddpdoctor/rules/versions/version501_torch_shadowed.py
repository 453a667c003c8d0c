"""VERSION501: several installations of torch."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.versions import Versions
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause


@cause("VERSION501", "torch-shadowed", Severity.WARNING)
def torch_shadowed(versions: Versions) -> Iterator[Finding]:
    """Two versions of torch are installed for this Python, and one hides the other.

    ## Why it matters
    The user's own site-packages or PYTHONPATH come before the environment. `pip list` shows one version and the ranks
    import another, possibly on some nodes only.

    ## Fix
    Uninstall one of them; PYTHONNOUSERSITE=1 makes Python ignore the user's own packages.

    ## Example

        torch 2.1.0 in ~/.local/lib/python3.11/site-packages hides torch 2.5.1 in /opt/env/lib/python3.11/site-packages

        # before
        torchrun --nproc-per-node 8 train.py
        # after
        PYTHONNOUSERSITE=1 torchrun --nproc-per-node 8 train.py
    """
    if not versions.torches:
        not_here("no torch")
    first, *others = versions.torches
    hidden = next((other for other in others if other.version != first.version), None)
    if hidden is not None:
        yield Finding(
            f"torch {first.version} in {first.path} hides torch {hidden.version} in {hidden.path}",
            (Evidence("versions.torches", f"{first.version} before {hidden.version}", "one"),),
        )
