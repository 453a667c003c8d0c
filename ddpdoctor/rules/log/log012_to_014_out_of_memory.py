"""LOG012, LOG013, LOG014: the memory of the GPU, of NCCL on the GPU, or of the host ran out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.signatures import retitled, signed

if TYPE_CHECKING:
    from ddpdoctor.facts.hang import Hang


_WANTED = re.compile(r"\b([A-Z]{3,4}) out of memory\b.{0,40}?[Tt]ried to allocate ([\d.]+ (?:[KMGT]i)?[Bb])")


@cause(
    "LOG012",
    "gpu-out-of-memory",
    Severity.ERROR,
    signatures=(
        r"\b[A-Z]{3,4} out of memory\. (?:\w+ )?[Tt]ried to allocate [\d.]+ ([KMGT]i)?[Bb]",
        r"([Cc]uda|CUDA|HIP)[^\n]{0,100}\b[Ee]rror[ =]?(\(?2\)?|\[CUDA\])? ?: out of memory\b",
        r"\bCUDA_ERROR_OUT_OF_MEMORY\b",
        r"\bMPS backend out of memory\b",
        r"\b(?:ZE_RESULT|UR_RESULT|CL)_(?:ERROR_)?OUT_OF_DEVICE_MEMORY\b",
        r"Error: (?:CUDA|HIP|XPU|NPU) out of memory\b",
        r"(HIP_ERROR_|hipError)OutOfMemory",
        r"memory mapping failed with OOM on device \d",
        r"\b(CUBLAS|CUDNN|CUSPARSE)_STATUS_ALLOC_FAILED\b",
        r"^\W{0,4}(?:CUDA|HIP|NPU|XPU) out of memory\b",
        r"RESOURCE_EXHAUSTED: (?:[^\n]{0,80}: )?(?:Out of memory|Error loading program|Error allocating|Failed to allocate|"
        r"Attempting to (?:reserve|allocate)|Ran out of memory)",
        r"Ran out of memory in memory space (?:hbm|vmem|smem)",
        r"Attempting to (?:reserve|allocate) [\d.]+[KMGT]i?B? at the bottom of memory",
        r"PI_ERROR_OUT_OF_(?:RESOURCES|DEVICE_MEMORY)",
        r"RayTaskError\((?:torch\.)?OutOfMemoryError\): ray::",
    ),
)
def gpu_out_of_memory(log: Log) -> Iterator[Finding]:
    """GPU out of memory.

    ## Why it matters
    `torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB` appears once, on one rank. Its peers then print
    thousands of lines about closed connections and, 10 to 30 minutes later, about timeouts.

    ## Fix
    Reduce the batch size, group sequences of similar length into batches, or use activation checkpointing. Run
    `nvidia-smi` to find other processes on that GPU, and ranks that all allocate on GPU 0.

    ## Example

        torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.10 GiB …

        # before
        loader = DataLoader(dataset, batch_size=64)
        # after
        loader = DataLoader(dataset, batch_size=32)
        model.gradient_checkpointing_enable()
    """
    for found in signed(gpu_out_of_memory, log):
        wanted = _WANTED.search(found.quote)
        yield found if wanted is None else retitled(found, f"{wanted[1]} out of memory: {wanted[2]} more requested")


@cause(
    "LOG013",
    "nccl-out-of-memory",
    Severity.ERROR,
    signatures=(
        r"Cuda failure (\d+ )?'out of memory'",
        r"Failed to CUDA (?:host )?[cm]alloc (?:async )?\d+ bytes",
    ),
)
def nccl_out_of_memory() -> None:
    """NCCL could not allocate its own buffers on the GPU.

    ## Why it matters
    `NCCL WARN Cuda failure 'out of memory'` with `unhandled cuda error`: torch's cache holds the memory, and NCCL needs some
    hundred MiB per communicator and channel outside of that cache.

    ## Fix
    Leave memory for NCCL with a smaller batch or `torch.cuda.set_per_process_memory_fraction(0.9)`. NCCL_NVLS_ENABLE=0, fewer
    process groups, and torch.cuda.empty_cache() before the first collective of a new group also help.

    ## Example

        NCCL WARN Cuda failure 'out of memory'

        # before
        model = Net().cuda()
        # after
        torch.cuda.set_per_process_memory_fraction(0.9)
        model = Net().cuda()
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
        r"after throwing an instance of 'std::bad_alloc'",
        r"NCCL WARN Failed to malloc \d+ bytes",
        r"Unrecoverable error detected: malloc\(size=",
        r"worker \(pid\(?s?\)? [\d.]+\)? is killed by signal: Killed",
    ),
)
def host_out_of_memory(log: Log) -> Iterator[Finding]:
    """Host out of memory: a process was killed or could not allocate.

    ## Why it matters
    The rank ends with exit code -9 and without a traceback, which looks like a GPU fault; only the kernel log shows `Out of
    memory: Killed process 7815 (python)`. Each rank of the node held the model, or each DataLoader worker a copy of the data
    set.

    ## Fix
    Load the checkpoint on rank 0 only or on the meta device, use fewer DataLoader workers, or mmap the data set. Under Slurm,
    request more memory (`--mem`). If `unable to mmap`
    appears while memory is free, the workers share more tensors than vm.max_map_count allows.

    ## Example

        Out of memory: Killed process 7815 (python) total-vm:812345678kB

        # before, in each of 8 ranks
        state = torch.load("model.pt")
        # after
        state = torch.load("model.pt", mmap=True, map_location="cpu")

    ## Source
    Confirmed in https://github.com/pytorch/pytorch/issues/8976 (more `--mem-per-cpu` under Slurm),
    https://github.com/open-mmlab/mmrotate/issues/501 (24 instead of 16 GB), and https://github.com/dbolya/yolact/issues/680 and
    https://github.com/hezhangsprinter/DCPDN/issues/12 (no DataLoader workers).
    """
    yield from signed(host_out_of_memory, _with_victims_first(log))


def _with_victims_first(log: Log) -> Log:
    """The process that requests memory last is often not the one that is killed."""
    requesting = [line for line in log.lines if "invoked oom-killer" in line.text]
    others = tuple(line for line in log.lines if line not in requesting) if requesting else log.lines
    return replace(log, lines=(*others, *requesting)) if requesting else log


@host_out_of_memory.look
def killed(hang: Hang) -> Iterator[Finding]:
    """A rank without a process in a cgroup in which the kernel has OOM-killed processes."""
    from ddpdoctor.rules.hang.rank_findings import jobs_of, process_gone_finding, was_oom_killed

    for job in jobs_of(hang):
        if job.missing and was_oom_killed(job):
            yield process_gone_finding(job, job.missing, "; the kernel OOM-killed processes of its cgroup")
