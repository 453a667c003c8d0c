"""VERSION011: the store's libuv."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.versions import Versions
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause


@cause("VERSION011", "libuv-not-built-in", Severity.ERROR, signatures=("use_libuv was requested",))
def libuv_not_built_in(versions: Versions, environ: Environ) -> Iterator[Finding]:
    """The store would use libuv, but torch was built without it.

    ## Why it matters
    Since torch 2.4 the store uses libuv by default. A build without it (Windows wheels, some source builds) fails
    with `use_libuv was requested but PyTorch was built without libuv support` before the script runs.

    ## Fix
    Set USE_LIBUV=0.

    ## Example

        DistStoreError: use_libuv was requested but PyTorch was built without libuv support

        # before
        torchrun --nproc-per-node 2 train.py
        # after
        USE_LIBUV=0 torchrun --nproc-per-node 2 train.py
    """
    if versions.torch is None:
        not_here("no torch is installed")
    if versions.has_libuv is None:
        not_here("the files do not show whether libuv is built in")
    if not versions.has_libuv and environ.get("USE_LIBUV") != "0":
        yield Finding(
            f"torch {versions.torch} has no libuv, but USE_LIBUV=0 is not set",
            (Evidence("environ.variables.USE_LIBUV", environ.get("USE_LIBUV") or "not set", "0"),),
            fix_command="export USE_LIBUV=0",
        )
