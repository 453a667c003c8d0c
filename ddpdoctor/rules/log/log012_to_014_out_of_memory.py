"""LOG012, LOG013, LOG014: the memory that ran out: the GPU's, what is left of it for NCCL, the host's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.signatures import signed

if TYPE_CHECKING:
    from ddpdoctor.facts.hang import Hang


@cause(
    "LOG012",
    "gpu-out-of-memory",
    Severity.ERROR,
    signatures=(
        r"\b[A-Z]{3,4} out of memory\. (?:\w+ )?[Tt]ried to allocate [\d.]+ ([KMGT]i)?[Bb]",
        r"([Cc]uda|CUDA|HIP)[^\n]{0,300}\b[Ee]rror[ =]?(\(?2\)?|\[CUDA\])? ?: out of memory\b",
        r"\bCUDA_ERROR_OUT_OF_MEMORY\b",
        r"(HIP_ERROR_|hipError)OutOfMemory",
        r"memory mapping failed with OOM on device \d",
        r"\b(CUBLAS|CUDNN|CUSPARSE)_STATUS_ALLOC_FAILED\b",
    ),
)
def gpu_out_of_memory() -> None:
    """A rank ran out of GPU memory.

    ## Why it matters
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB" stands once, on one rank; its peers follow
    with thousands of lines about closed connections and, 10 to 30 minutes later, about timeouts.

    ## Fix
    Smaller batches, sequences of like length in a batch, activation checkpointing. Look with nvidia-smi for other
    processes on that GPU, and for ranks that all put something on GPU 0.
    """


@cause(
    "LOG013",
    "nccl-out-of-memory",
    Severity.ERROR,
    signatures=(r"NCCL WARN Cuda failure (\d+ )?'out of memory'", r"Cuda failure 2 'out of memory'"),
)
def nccl_out_of_memory() -> None:
    """NCCL could not allocate its own buffers on the GPU.

    ## Why it matters
    "NCCL WARN Cuda failure 'out of memory'" under "unhandled cuda error": torch's cache has taken the memory, and NCCL
    needs some hundred MiB for each communicator and channel, outside of that cache.

    ## Fix
    Leave memory for NCCL: a smaller batch, torch.cuda.set_per_process_memory_fraction(0.9), NCCL_NVLS_ENABLE=0, fewer
    process groups; torch.cuda.empty_cache() before the first collective of a new group.
    """


@cause(
    "LOG014",
    "host-out-of-memory",
    Severity.ERROR,
    signatures=(
        r"Out of memory: Kill(ed)? process",
        r"Memory cgroup out of memory: Kill(ed)? process",
        r"invoked oom-killer",
        r",task=[^,\n]+,pid=\d+,uid=\d",
        r"systemd-oomd\[\d+\]: Killed \S+ due to memory",
        r"killed due to (the node running low on memory|memory pressure \(OOM\))",
        r"DefaultCPUAllocator: (can't|not enough memory)",
        r"(OSError: \[Errno 12\]|\bfork:|unable to mmap \d+ bytes from file [^\n]{0,200}) Cannot allocate memory( \(12\))?$",
        r"\bMemory on the node \([^\n]{0,300}\bpid=\d+, memory used=|exceeds the memory usage threshold of",
        r"MemoryError: std::bad_alloc",
        r"worker \(pid\(?s?\)? \d+\)? is killed by signal: Killed",
    ),
)
def host_out_of_memory(log: Log) -> Iterator[Finding]:
    """The memory of the host ran out: the kernel killed a process, or refused it more.

    ## Why it matters
    The rank ends with exit code -9 and no traceback, and people suspect the GPU. Only the kernel's log says "Out of memory:
    Killed process 7815 (python)". Each rank of the node held the model, or each DataLoader worker a copy of the dataset.

    ## Fix
    Load the checkpoint on rank 0 only, or on the meta device; fewer DataLoader workers; mmap the data set; more memory.
    Where `unable to mmap` stands though there is memory, workers share more tensors than vm.max_map_count allows.
    """
    yield from signed(host_out_of_memory, _with_victims_first(log))


def _with_victims_first(log: Log) -> Log:
    """Who asks for memory last is not who is killed for it."""
    asking = [line for line in log.lines if "invoked oom-killer" in line.text]
    others = tuple(line for line in log.lines if line not in asking) if asking else log.lines
    return replace(log, lines=(*others, *asking)) if asking else log


@host_out_of_memory.look
def killed(hang: Hang) -> Iterator[Finding]:
    """A rank without a process where the kernel has killed for want of memory."""
    from ddpdoctor.rules.hang.rank_findings import jobs_of, process_gone_finding, was_oom_killed

    for job in jobs_of(hang):
        if job.missing and was_oom_killed(job):
            yield process_gone_finding(
                job, job.missing, "; the kernel has killed processes of its cgroup for want of memory"
            )
