"""LOG011, LOG020: errors of CUDA that name the wrong place, or that have several causes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.logs.distances import SIBLING_PID_GAP
from ddpdoctor.rules import in_logs, rule
from ddpdoctor.rules.log.signatures import as_signed, finding_of, matching

NOT_LOADED = (
    r"couldn't communicate with the NVIDIA driver",
    r"NVML: Driver Not Loaded",
    r"NVRM: The NVIDIA probe routine (was not called|failed)",
    r"NVRM: No NVIDIA (GPU|devices?|graphics adapter)",
)
OFF_THE_BUS = (r"fallen off the bus",)
UNAVAILABLE = (
    r"RmInitAdapter failed",
    r"rm_init_adapter failed",
    r"Unexpected error from cudaGetDeviceCount\(\).*Error [1-79]\d*:",
    r"CUDA error: all CUDA-capable devices are busy",
)
ASSERTED = r"block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion "
NOT_STARTED = (r"CUDA error: initialization error",)
TAKEN = (
    "CUDA calls a GPU busy or unavailable. Undetermined: its compute mode lets only one process in, and another one is there "
    "(GPU013), or an earlier fault left it unusable (GPU004); `ddpdoctor gpus` on that node decides"
)
NO_GPU = (r"No CUDA GPUs are available",)
EMPTY = re.compile(r"CUDA_VISIBLE_DEVICES ?(?:=|is set to) ?(?:['\"]{2}|-1\b|$)")
HIDDEN = "CUDA_VISIBLE_DEVICES is set and hides every GPU"
UNSEEN = (
    "torch sees no GPU. Undetermined: CUDA_VISIBLE_DEVICES is empty or names none of this node (ENV062), the job or the "
    "container was given no GPU, or the driver does not work; `ddpdoctor gpus` on that node decides"
)
ASKED = (r"You requested (?i:gpus?): ?\[", r"But your machine only has: ?\[")
ORDINAL = (r"invalid device ordinal",)
ISOLATED = (r"transport/p2p\.cc:\d+ NCCL WARN Cuda failure (101 )?'invalid device ordinal'",)
NOT_FOUND = (r"nvmlDeviceGetHandleByPciBusId\(\) failed: Not Found",)
TOLD = (
    r"Child failed to attach to shmseg",
    r"local_rank \d+ exceeds available GPUs in CUDA_VISIBLE_DEVICES",
)
IN_USE = (r"Process \d+ has [\d.]+ (GiB|MiB) memory in use",)
BUSY = re.compile(r"Process (?P<pid>\d+) has (?P<size>[\d.]+) (?P<unit>[GM])iB memory in use")
OWN = re.compile(r"this process has (?P<size>[\d.]+) (?P<unit>[GM])iB memory in use")
ALLOCATED = re.compile(r"Of the allocated memory (?P<size>[\d.]+) (?P<unit>[GM])iB is allocated by PyTorch")
CONTEXT_MIB = 1500
"""CUDA's context and the libraries of one process."""
SIBLINGS = 3
SHARE = 0.2
"""A foreign process that holds less than this part of what the rank itself holds is not why memory ran out."""


@rule(
    "LOG011",
    "asynchronous-cuda-error",
    Severity.ERROR,
    kind="umbrella",
    signatures=(
        r"illegal memory access was encountered",
        r"device-side assert triggered",
        ASSERTED,
        r"unspecified launch failure",
        r"the launch timed out and was terminated",
        r"CUDA error: misaligned address",
        r"CUDA error: an illegal instruction was encountered",
        r"\b(Memory access fault|HW Exception) by GPU node-\d",
    ),
)
def asynchronous_cuda_error() -> None:
    """A CUDA kernel failed earlier than the line that reports it.

    ## Why it matters
    "CUDA error: an illegal memory access was encountered" or "device-side assert triggered" comes from the watchdog's
    thread or from a later, innocent line of Python, because kernels run asynchronously. An index out of range (labels,
    embeddings), a custom kernel, or a sick GPU may be behind it.

    ## Fix
    Run that rank's part alone with CUDA_LAUNCH_BLOCKING=1; the traceback then ends at the kernel. Check the range of labels
    and of embedding indices. The same GPU in unlike jobs: look for Xid lines in its kernel log.
    """


@rule(
    "LOG020",
    "device-ordinal-invalid",
    Severity.ERROR,
    kind="umbrella",
    signatures=ORDINAL,
)
def device_ordinal_invalid() -> None:
    """A rank selects a GPU number that does not exist for it.

    ## Why it matters
    "CUDA error: invalid device ordinal", followed by advice about device-side assertions that does not apply. More
    processes than GPUs, the global rank used as index, a CUDA_VISIBLE_DEVICES that is cut at a wrong entry, or one GPU
    per rank while the script selects cuda:LOCAL_RANK.

    ## Fix
    Compare, for the rank that failed, LOCAL_RANK, CUDA_VISIBLE_DEVICES and torch.cuda.device_count(); select the device
    with torch.cuda.set_device(int(os.environ["LOCAL_RANK"])). `ddpdoctor check -- LAUNCH…` says which of the four it is.
    """


@in_logs("GPU004")
def cuda_not_started(log: Log) -> Iterator[Finding]:
    """CUDA does not start in a process: it says the same in a forked child as on a GPU that is broken."""
    lines = matching(log, UNAVAILABLE)
    if lines:
        yield finding_of(
            log, lines, "CUDA cannot start on a GPU that is listed: it is busy or broken", blames_speaker=True
        )
    lines = [] if lines else matching(log, NOT_STARTED)
    if lines:
        title = (
            "CUDA did not start in this process. Undetermined: a forked child, as a DataLoader's worker, used CUDA (SCRIPT068), "
            "the GPU is busy or broken (GPU004), or the fabric manager does not run (TOPO007); `ddpdoctor gpus` on that node "
            "decides"
        )
        yield finding_of(log, lines, title, blames_speaker=True)


@in_logs("GPU013")
def gpu_taken(log: Log) -> Iterator[Finding]:
    """CUDA refuses a GPU to a second process in the words that it also has for one that is broken."""
    for found in as_signed("GPU013", log):
        yield replace(found, message=f"{TAKEN}: {found.message.partition(': ')[2]}")


@in_logs("ENV062")
def no_gpu_seen(log: Log) -> Iterator[Finding]:
    """torch sees no GPU: only an empty variable that is told is known to be the reason."""
    lines = matching(log, NO_GPU)
    if lines:
        yield finding_of(
            log, lines, HIDDEN if any(EMPTY.search(each.text) for each in lines) else UNSEEN, blames_speaker=True
        )


@in_logs("LAUNCH023")
def high_local_ranks(log: Log) -> Iterator[Finding]:
    """Only the high local ranks of a node select a GPU that is not there."""
    asked = matching(log, ASKED)
    if asked:
        yield finding_of(log, asked, "The job asks for GPUs that this process does not see", blames_speaker=True)
        return
    lines = matching(log, ORDINAL)
    failed = {line.who.local_rank for line in lines} - {None}
    others = {each.who.local_rank for each in (*log.spoken, *log.tails)} - failed - {None}
    if failed and others and min(map(int, map(str, failed))) > max(map(int, map(str, others))):
        title = f"More processes per node than visible GPUs: local ranks from {min(map(int, map(str, failed)))} on have no GPU"
        yield finding_of(log, lines, title, blames_speaker=True)


@in_logs("ENV064")
def peers_gpu_unseen(log: Log) -> Iterator[Finding]:
    """NCCL could not find, in one process, the GPU of another one."""
    lines = matching(log, ISOLATED)
    if lines:
        title = (
            "NCCL cannot open the GPU of a peer: each process sees only its own. Undetermined: CUDA_VISIBLE_DEVICES, srun's "
            "--gpus-per-task or the container gives one GPU to each rank (ENV064), or IMEX between the machines does not work "
            "(TOPO023)"
        )
        yield finding_of(log, lines, title, blames_speaker=True)
    hidden = matching(log, NOT_FOUND)
    if hidden:
        title = (
            "NCCL does not find, in this process, the GPU of a peer on the same machine. Undetermined: several containers "
            "on one machine that were given different GPUs, or one GPU for each task by CUDA_VISIBLE_DEVICES or srun (ENV064)"
        )
        yield replace(
            finding_of(log, hidden, title, blames_speaker=True),
            fix="Give every container all GPUs of the machine and choose by CUDA_VISIBLE_DEVICES, or give each an NCCL_HOSTID of "
            "its own so that they talk as two machines; under Slurm use --gpus-per-node instead of --gpus-per-task.",
        )
    told = matching(log, TOLD)
    if told:
        yield finding_of(log, told, "Every rank sees only its own GPU", blames_speaker=True)


@in_logs("SCRIPT001")
def ranks_of_later_nodes(log: Log) -> Iterator[Finding]:
    """All ranks of a later node, and none of the first, select a GPU that is not there."""
    lines = matching(log, ORDINAL)
    nodes = {_node(each) for each in lines}
    first = {_node(line) for line in (*log.lines, *log.tails) if line.who.rank == 0}
    if not lines or None in nodes or not first or first & nodes:
        return
    own = {line.who.rank for line in log.lines if _node(line) in nodes} - {None}
    if own and own <= {line.who.rank for line in lines}:
        title = "The device is chosen by the global rank: all ranks of a later node fail, none of the first"
        yield finding_of(log, lines, title, blames_speaker=True)


def _node(line: LogLine) -> object:
    return line.who.host if line.who.host is not None else line.who.node_rank


@in_logs("GPU002")
def driver_not_loaded(log: Log) -> Iterator[Finding]:
    """The driver is not there; a GPU that has fallen off the bus makes its probe fail as well."""
    lines = matching(log, NOT_LOADED)
    if matching(log, OFF_THE_BUS):
        lines = [line for line in lines if "probe routine failed" not in line.text]
    if lines:
        yield finding_of(
            log, lines, "The NVIDIA kernel driver is not loaded, or has not taken the GPUs", blames_speaker=True
        )


@in_logs("GPU010")
def foreign_memory(log: Log) -> Iterator[Finding]:
    """A rank ran out of memory on a GPU of which another process holds a good part."""
    lines = [line for line in matching(log, IN_USE) if _is_foreign(line.text)]
    if not lines:
        return
    title = "Another process uses the GPU"
    if _are_siblings(lines[0].text):
        title = (
            "Several processes with neighbouring numbers, as one launcher starts them, use this GPU: ranks that did not select "
            "one of their own (SCRIPT002, SCRIPT003), more ranks than GPUs (GPU005), or another job"
        )
    yield finding_of(log, lines, title, blames_speaker=True)


def _are_siblings(text: str) -> bool:
    """Whether the processes that are listed beside the rank itself are as many, as alike and as close as ranks are."""
    others = list(BUSY.finditer(text))
    pids, sizes = [int(found["pid"]) for found in others], {_mib(found) for found in others}
    return (
        len(pids) >= SIBLINGS
        and max(pids) - min(pids) <= SIBLING_PID_GAP * len(pids)
        and max(sizes) <= 1.1 * min(sizes)
    )


def _is_foreign(text: str) -> bool:
    """In a container the rank does not know itself by number: then what is about its own share is itself."""
    listed = sum(_mib(found) for found in BUSY.finditer(text))
    own = OWN.search(text)
    if own is not None:
        return listed > SHARE * _mib(own)
    allocated = ALLOCATED.search(text)
    if allocated is None:
        return len(BUSY.findall(text)) > 1
    return listed > (1 + 2 * SHARE) * _mib(allocated) + CONTEXT_MIB


def _mib(found: re.Match[str]) -> float:
    return float(found["size"]) * (1024 if found["unit"] == "G" else 1)
