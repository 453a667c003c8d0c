"""VERSION011: the store's libuv."""

from __future__ import annotations

from ddpdoctor.findings import Severity
from ddpdoctor.rules import cause


@cause("VERSION011", "libuv-not-built-in", Severity.ERROR, signatures=("use_libuv was requested",))
def libuv_not_built_in() -> None:
    """The store is asked to use libuv, but torch was built without it.

    ## Why it matters
    Since torch 2.4 the store takes libuv by default. A build without it (Windows wheels, some source builds) ends with
    `use_libuv was requested but PyTorch was built without libuv support` before the script runs. The files of torch do not
    say whether it is built in without reading hundreds of megabytes: only logs show this cause.

    ## Fix
    Set USE_LIBUV=0.
    """
