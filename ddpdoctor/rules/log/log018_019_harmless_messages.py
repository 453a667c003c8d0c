"""LOG018, LOG019: lines that look like errors in successful runs."""

from __future__ import annotations

from ddpdoctor.findings import Severity
from ddpdoctor.rules import cause


@cause(
    "LOG018",
    "address-family-warning",
    Severity.NOTE,
    kind="noise",
    signatures=(
        r"errno: 97 - Address family not supported",
        r"hostname of the client socket cannot be retrieved",
    ),
)
def address_family_warning() -> None:
    """The store falls back from IPv6 to IPv4 and warns about it.

    ## Why it matters
    `errno: 97 - Address family not supported by protocol` only means that IPv6 is off. It is often the first warning of a log and
    is mistaken for the cause.

    ## Fix
    Do nothing about it, and read the next error.

    ## Example

        [W socket.cpp:697] [c10d] The client socket … (errno: 97 - Address family not supported by protocol).

        # before and after: without IPv6, this warning is normal
        torchrun … train.py
    """


@cause(
    "LOG019",
    "nccl-startup-warning",
    Severity.NOTE,
    kind="noise",
    signatures=(
        r"No plugin found \(libnccl-net\.so\)",
        r"Failed to open libibverbs\.so",
        r"process group has NOT been destroyed",
        r"destroy_process_group\(\) was not called before program exit",
        r"Setting OMP_NUM_THREADS environment variable",
        r"NET/IB : No device found",
        r"Could not find: libnccl-(net|tuner)",
        r"NCCL WARN Failed to find CUDA library",
        r"ras/client_support\.cc:\d+ NCCL WARN Call to bind failed",
        r"\bdlerror[=:] ?\S{1,200}: cannot open shared object file",
        r"Could not load dynamic library '",
        r"Failed to load generation config for ",
        r"Ignore import error when loading ",
        r"[Cc]ustom all-?_?reduce[^\n]{0,300}To silence this warning",
    ),
)
def nccl_startup_warning() -> None:
    """Harmless warnings of NCCL or the launcher.

    ## Why it matters
    Successful runs also print `No plugin found (libnccl-net.so)` and `Failed to open libibverbs.so` on machines without RDMA,
    `process group has NOT been destroyed before we destruct ProcessGroupNCCL`, and the OMP_NUM_THREADS banner.

    ## Fix
    Do nothing about them, and read the next error.

    ## Example

        NCCL INFO NET/Plugin : No plugin found (libnccl-net.so)

        # before: the job prints a banner about OMP_NUM_THREADS
        torchrun … train.py
        # after: the variable is set, and the banner is gone
        OMP_NUM_THREADS=8 torchrun … train.py
    """
