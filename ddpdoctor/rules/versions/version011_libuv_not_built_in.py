"""VERSION011: the store's libuv."""

from __future__ import annotations

from ddpdoctor.findings import Severity
from ddpdoctor.rules import cause


@cause("VERSION011", "libuv-not-built-in", Severity.ERROR, signatures=("use_libuv was requested",))
def libuv_not_built_in() -> None:
    """The store would use libuv, but torch was built without it.

    ## Why it matters
    Since torch 2.4 the store uses libuv by default. A build without it (Windows wheels, some source builds) fails
    with `use_libuv was requested but PyTorch was built without libuv support` before the script runs; only logs show this cause.

    ## Fix
    Set USE_LIBUV=0.

    ## Example

        DistStoreError: use_libuv was requested but PyTorch was built without libuv support

        # before
        torchrun --nproc-per-node 2 train.py
        # after
        USE_LIBUV=0 torchrun --nproc-per-node 2 train.py
    """
