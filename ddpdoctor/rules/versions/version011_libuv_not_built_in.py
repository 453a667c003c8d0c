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
    """The store is asked to use libuv, but torch was built without it.

    ## Why it matters
    Since torch 2.4 the store takes libuv by default. A build without it (Windows wheels, some source builds) ends with
    `use_libuv was requested but PyTorch was built without libuv support` before the script runs.

    ## Fix
    Set USE_LIBUV=0.
    """
    if versions.torch is None:
        not_here("no torch is installed")
    if versions.has_libuv is None:
        not_here("whether libuv is built in cannot be read from files")
    if not versions.has_libuv and environ.get("USE_LIBUV") != "0":
        yield Finding(
            f"torch {versions.torch} has no libuv: expected USE_LIBUV=0",
            (Evidence("environ.variables.USE_LIBUV", environ.get("USE_LIBUV") or "not set", "0"),),
            fix_command="export USE_LIBUV=0",
        )
