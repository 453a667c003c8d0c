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
    Set USE_LIBUV=0 if init_process_group raised it. The store of torchrun itself does not read that variable: if the traceback
    shows `elastic/rendezvous`, start the ranks without torchrun, with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
    USE_LIBUV=0, or run in WSL2.

    ## Example

        DistStoreError: use_libuv was requested but PyTorch was built without libuv support

        # before
        torchrun --nproc-per-node 2 train.py
        # after
        USE_LIBUV=0 RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python train.py

    ## Source
    https://github.com/pytorch/pytorch/issues/139990; confirmed in https://github.com/kohya-ss/musubi-tuner/issues/100, where
    USE_LIBUV=0 had no effect and one GPU without the launcher worked: static_tcp_rendezvous.py of torch 2.13 makes a TCPStore
    with the default use_libuv=True.
    """
