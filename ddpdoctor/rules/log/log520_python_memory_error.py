"""LOG520: Python or NumPy could not allocate memory."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.signatures import ending

__all__: list[str] = []


@cause(
    "LOG520",
    "python-memory-error",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    yields_to=("LOG014",),
    signatures=(
        r"_ArrayMemoryError: Unable to allocate ",
        r"^MemoryError$",
        r"\bMemoryError: (?:Unable to allocate|Out of memory) ",
        r"\bmemory allocation of (?:memory allocation of )?\d+ bytes failed",
        r"cannot allocate memory for thread-local data",
        r"\bcannot allocate memory in static TLS block",
    ),
)
def python_memory_error(log: Log) -> Iterator[Finding]:
    """Python or NumPy could not allocate memory on the host.

    ## Why it matters
    `numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.16 TiB for an array with shape (400000, 400000)` or a plain
    `MemoryError` is about the host's memory, not the GPU's. Each rank and each DataLoader worker of the node holds its own copy.

    ## Fix
    Read the shape and the dtype in the message: if they are wrong, correct the data; otherwise, load it with `mmap_mode="r"` or
    in parts, with fewer DataLoader workers, and compare `free -g`, `ulimit -v` and the cgroup's limit with ranks x size.

    ## Example

        numpy.core._exceptions._ArrayMemoryError: Unable to allocate 74.5 GiB for an array with shape (100000, 100000)

        # before, in each of 8 ranks
        x = np.load("all.npy")
        # after
        x = np.load("all.npy", mmap_mode="r")
    """
    yield from ending(python_memory_error, log)
