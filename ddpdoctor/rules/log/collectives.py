"""LOG001, LOG002, LOG003: ranks that waited for others in a collective, and what their lines say of those others."""

from __future__ import annotations

from ddpdoctor.findings import Severity
from ddpdoctor.rules import rule


@rule(
    "LOG001",
    "collective-timeout",
    Severity.ERROR,
    kind="umbrella",
    signatures=(
        r"Watchdog caught collective operation timeout",
        r"To avoid data inconsistency, we are taking the entire process down",
        r"Timed out waiting \d+ms for (recv|send) operation to complete",
        r"Some NCCL operations have failed or timed out",
        r"\[Rank \d+\]: Ranks? [\d, ]+ failed to pass monitoredBarrier in \d+ ms",
        r"to our best knowledge, the lagging/dead/mismatched ranks",
        r"Rank \d+ successfully reached monitoredBarrier, but received errors while waiting",
    ),
)
def collective_timeout() -> None:
    """A collective timed out because some rank did not take part in it.

    ## Why it matters
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=…, OpType=ALLREDUCE, …) ran for 600000 milliseconds"
    (NCCL) or "Timed out waiting 1800000ms for recv operation to complete" (Gloo) is printed by the ranks that waited,
    10 or 30 minutes after the job stopped. The rank that prints it is usually the victim; its exit code -6 is only the
    watchdog that ends the process.

    ## Fix
    Look at the rank that printed nothing, or whose sequence number is behind: what it did in those minutes is the cause.
    Raise the timeout only where the work is legitimate: init_process_group(timeout=timedelta(hours=2)).

    TORCH_NCCL_TRACE_BUFFER_SIZE=2000 (TORCH_FR_BUFFER_SIZE since torch 2.9) keeps what each rank called last, and
    `ddpdoctor triage` reads those dumps; TORCH_DISTRIBUTED_DEBUG=DETAIL names ranks that call different collectives.

    ## Source
    torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (watchdogHandler), gloo/transport/tcp/unbound_buffer.cc.
    """


@rule(
    "LOG002",
    "watchdog-stuck",
    Severity.ERROR,
    kind="umbrella",
    signatures=(
        r"Heartbeat monitor timed out",
        r"watchdog got stuck for \d+ seconds",
        r"due to ProcessGroupNCCL watchdog hang",
    ),
)
def watchdog_stuck() -> None:
    """The NCCL watchdog thread of a rank is blocked in a call that does not return.

    ## Why it matters
    "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives":
    the message recommends a longer heartbeat, which rarely helps. A CUDA or NCCL call of that very process hangs, or its
    Python holds the GIL: a sick GPU, a deadlock while a communicator is destroyed, a driver that does not answer.

    ## Fix
    Read the kernel log of that node (dmesg | grep -i xid) and the native stack of the process (py-spy dump --native -p
    PID, gdb -p PID -batch -ex "thread apply all bt") before it is ended.

    ## Source
    torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (heartbeatMonitor).
    """


@rule(
    "LOG003",
    "nccl-id-exchange-timeout",
    Severity.ERROR,
    kind="umbrella",
    signatures=(
        r"retri?e[ie]?ving ncclUniqueId from \[\d+\]",
        r"Timeout waiting for key: \S+",
    ),
)
def nccl_id_exchange_timeout() -> None:
    """Rank 0 never published the id of the communicator, so it did not reach the first collective.

    ## Why it matters
    "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but
    store->get('0') got error": the store works. The rank in the second brackets, which has to make the id, was somewhere
    else: still preparing data, dead, or in another branch of the script.

    ## Fix
    Look at what the rank in the second brackets printed last, and at what it does before its first collective. Let all
    ranks reach the first collective within the timeout, or raise timeout= of init_process_group.

    ## Source
    torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (broadcastUniqueNCCLID).
    """
