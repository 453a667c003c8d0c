"""The environment variables that configure NCCL, torch, Gloo and CUDA: names, allowed values, and versions.

A row is `NAME kind since`, then, where they apply, `deprecated:RELEASE`, `removed:RELEASE` (the last one that read it),
`by:NAME` (what replaces it) and `# what it means`. A release is NCCL's; `-` means older than every supported torch. Kinds:

** `number`: NCCL's `strtoll(value, NULL, 0)`: leading digits count, the rest is ignored, a word is 0 (src/misc/param.cc).
* `truth`: a number up to NCCL 2.29, `1`, `t`, `true` and their opposites from 2.30 on.
* `word`, `words` (a list): any case. `exact`: this spelling only. `level`: the same, or an old number such as 3.
** `integer`, `boolean`: torch's, which rejects anything else (c10d/Utils.hpp: getCvarInt, getCvarBool).
* `path`, `text`: anything.
"""

from __future__ import annotations

from ddpdoctor.facts.nccl_variables import NCCL
from ddpdoctor.late_pattern import pattern
from ddpdoctor.light_dataclass import dataclass

__all__ = ["MAX_NUMBER", "TABLE", "KnownVariable", "read_number"]

TORCH = """
GLOO_DEVICE_TRANSPORT text - # transport of Gloo: TCP, TCP_TLS, IBVERBS, UV
GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE text -
GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_PATH text -
GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT text -
GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY text -
GLOO_DISABLE_CONNECTION_RETRIES text -
GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER text -
GLOO_ENABLE_STORE_V2_API text -
GLOO_LOG_LEVEL text - # log level of Gloo
GLOO_SOCKET_IFNAME text - # interface for Gloo, exact name
NCCL_ASYNC_ERROR_HANDLING integer:0|1|2|3 - by:TORCH_NCCL_ASYNC_ERROR_HANDLING
NCCL_BLOCKING_WAIT boolean - by:TORCH_NCCL_BLOCKING_WAIT
NCCL_DESYNC_DEBUG boolean - by:TORCH_NCCL_DESYNC_DEBUG
NCCL_ENABLE_TIMING boolean - by:TORCH_NCCL_ENABLE_TIMING
NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK boolean - by:TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK
PYTORCH_ALLOC_CONF text - # settings of torch's memory allocators
PYTORCH_CUDA_ALLOC_CONF text - # settings of torch's CUDA memory allocator
PYTORCH_HIP_ALLOC_CONF text -
PYTORCH_NO_CUDA_MEMORY_CACHING text -
PYTORCH_NVML_BASED_CUDA_CHECK text -
TORCH_CPP_LOG_LEVEL text - # how much the C++ side of torch logs
TORCH_DISABLE_SHARE_RDZV_TCP_STORE text - # 1: rank 0 hosts its own store under c10d
TORCH_DISTRIBUTED_COMPILE_ON_ONE_RANK text -
TORCH_DISTRIBUTED_DEBUG word:OFF|INFO|DETAIL - # OFF, INFO or DETAIL checks of every collective
TORCH_DISTRIBUTED_PIPELINE_PER_DIRECTION_P2P text - # torch 2.14 only
TORCH_DISTRIBUTED_PIPELINE_PER_EDGE_P2P text - # since torch 2.15
TORCH_DISTRIBUTED_USE_TORCHCOMMS text -
TORCH_DIST_INIT_BARRIER text - # 1: a barrier at the end of init_process_group
TORCH_DIST_NAN_CHECK boolean - # since torch 2.14; 1: check the inputs of collectives for NaN
TORCH_DIST_USE_NCCL2 text - # which NCCL backend `nccl` is: 1 the new one (torch 2.14), 0 the old one (2.15)
TORCH_ELASTIC_SHUTDOWN_TIMEOUT text - # seconds between the agent's signal and SIGKILL
TORCH_ELASTIC_WORKER_IDENTICAL text - # 1: agents assume equal process counts and skip the exchange
TORCH_FR_BUFFER_SIZE integer - # collectives that the Flight Recorder keeps
TORCH_FR_CPP_STACK boolean -
TORCH_FR_DUMP_DYNAMIC_FILE_NAME text -
TORCH_FR_DUMP_ON_TIMEOUT boolean - # since torch 2.15; 1: write a Flight Recorder dump at a timeout
TORCH_FR_DUMP_TEMP_FILE text - # where Flight Recorder dumps go
TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC integer - # since torch 2.15
TORCH_GLOO_LAZY_INIT boolean -
TORCH_INCLUDE_ONLY_ACTIVE text -
TORCH_INCLUDE_STACK_TRACE text -
TORCH_NCCL_ASYNC_ERROR_HANDLING integer:0|1|2|3 - # what the watchdog does on an error: 0 nothing, 1 abort, exit, 2 abort, 3 exit
TORCH_NCCL_AVOID_RECORD_STREAMS boolean -
TORCH_NCCL_BCAST_UNIQUEID boolean -
TORCH_NCCL_BLOCKING_WAIT boolean - # 1: wait() blocks the CPU and raises at the timeout
TORCH_NCCL_COORD_CHECK_MILSEC integer -
TORCH_NCCL_CUDA_EVENT_CACHE boolean -
TORCH_NCCL_DEBUG_INFO_PIPE_FILE text -
TORCH_NCCL_DEBUG_INFO_TEMP_FILE text -
TORCH_NCCL_DESYNC_DEBUG boolean - # 1: report which rank lags after a timeout
TORCH_NCCL_DUMP_ON_TIMEOUT boolean - # 1: write a Flight Recorder dump at a timeout
TORCH_NCCL_ENABLE_MONITORING boolean - # 1: kill the process when the watchdog itself is stuck
TORCH_NCCL_ENABLE_TIMING boolean -
TORCH_NCCL_EXTRA_DUMP_ON_EXEC boolean -
TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC integer - # seconds without a watchdog heartbeat before the process is killed
TORCH_NCCL_HIGH_PRIORITY boolean -
TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN boolean -
TORCH_NCCL_NAN_CHECK boolean -
TORCH_NCCL_NONBLOCKING_TIMEOUT text -
TORCH_NCCL_PROPAGATE_ERROR boolean -
TORCH_NCCL_RANKS_PER_ROOT integer -
TORCH_NCCL_RETHROW_CUDA_ERRORS boolean -
TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING boolean -
TORCH_NCCL_TEARDOWN_ON_TIMEOUT boolean - # since torch 2.15
TORCH_NCCL_TRACE_BUFFER_SIZE integer - # collectives that the Flight Recorder keeps (old name)
TORCH_NCCL_TRACE_CPP_STACK boolean -
TORCH_NCCL_USE_COMM_NONBLOCKING text -
TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK boolean -
TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC integer -
TORCH_SHOW_CPP_STACKTRACES text - # 1: C++ stacks in error messages
TP_SOCKET_IFNAME text - # interface for TensorPipe (RPC)
TP_VERBOSE_LOGGING text -
"""

CUDA = """
COMPUTE_PROFILE text -
CUBLAS_WORKSPACE_CONFIG text -
CUDA_AUTO_BOOST text -
CUDA_CACHE_DISABLE text -
CUDA_CACHE_PATH text -
CUDA_COREDUMP_FILE text -
CUDA_DEVICE_MAX_CONNECTIONS text - # hardware queues per device
CUDA_DEVICE_ORDER text - # FASTEST_FIRST or PCI_BUS_ID
CUDA_DEVICE_WAITS_ON_EXCEPTION text -
CUDA_DISABLE_PERF_BOOST text -
CUDA_ENABLE_COREDUMP_ON_EXCEPTION text -
CUDA_FORCE_PTX_JIT text -
CUDA_HOME text - # CUDA toolkit for building extensions
CUDA_INJECTION32_PATH text -
CUDA_INJECTION64_PATH text -
CUDA_LAUNCH_BLOCKING text - # 1: every kernel launch waits for the kernel
CUDA_MODULE_LOADING text - # LAZY or EAGER loading of kernels
CUDA_MPS_ACTIVE_THREAD_PERCENTAGE text -
CUDA_MPS_LOG_DIRECTORY text -
CUDA_MPS_PIPE_DIRECTORY text - # where the MPS daemon listens
CUDA_PROFILE text -
CUDA_SCALE_LAUNCH_QUEUES text -
CUDA_VISIBLE_DEVICES text - # GPUs that CUDA may use, in this order
NSIGHT_CUDA_DEBUGGER text -
NVIDIA_DISABLE_REQUIRE text -
NVIDIA_DRIVER_CAPABILITIES text - # driver libraries that the container runtime mounted into this container
NVIDIA_IMEX_CHANNELS text -
NVIDIA_TF32_OVERRIDE text -
NVIDIA_VISIBLE_DEVICES text - # GPUs that the container runtime gave to this container
OPENCL_PROFILE text -
"""

MAX_NUMBER = (1 << 63) - 1
MAX_DIGITS = 64
"""More digits than a 64-bit number has; Python reads longer ones slowly."""
_NUMBER = pattern(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class KnownVariable:
    """One variable. `family` is `nccl`, `torch` or `cuda`; `replaced_by` may name something other than a variable."""

    name: str
    family: str
    kind: str
    allowed: tuple[str, ...] = ()
    since: str | None = None
    deprecated: str | None = None
    removed: str | None = None
    replaced_by: str | None = None
    meaning: str = ""

    @property
    def is_renamed(self) -> bool:
        """A torch variable's name from before torch 2.2, which torch still reads."""
        return self.family == "torch" and self.replaced_by is not None

    def allows(self, value: str) -> bool:
        """Whether the documentation allows the value. An empty value counts as not set."""
        value = value.strip()
        if not value or self.kind in ("path", "text"):
            return True
        if self.kind in ("number", "integer"):
            return self._is_number(value)
        if self.kind in ("truth", "boolean"):
            return value.lower() in ("1", "0", "t", "f", "true", "false") or (
                self.kind == "boolean" and value.lower() in ("y", "n", "yes", "no")
            )
        if self.kind == "words":
            return all(not w or w.upper() in self.allowed for w in value.removeprefix("^").split(","))
        if self.kind == "level" and value[0] in "0123456789":
            return True
        return (value if self.kind in ("exact", "level") else value.upper()) in self.allowed

    def _is_number(self, value: str) -> bool:
        number, is_whole = read_number(value)
        if not is_whole:
            return False
        if not self.allowed or number < 0:  # below zero means: not set
            return True
        if len(self.allowed) == 1 and ".." in self.allowed[0]:
            low, _, high = self.allowed[0].partition("..")
            return int(low) <= number <= int(high)
        return str(number) in self.allowed


def read_number(value: str) -> tuple[int, bool]:
    """What C's `strtoll(value, NULL, 0)` gives, and whether that is the whole value.

    `08` and `1e6` are not: a leading 0 means octal, and parsing stops at the first character that is not a digit.
    """
    match = _NUMBER.match(value)
    if match is None:
        return 0, False
    digits = match[2].lower()
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    number = min(int(digits[:MAX_DIGITS].removeprefix("0x"), base), MAX_NUMBER)
    is_whole = not value[match.end() :].strip()
    if base == 8 and is_whole:
        is_whole = number == int(digits[:MAX_DIGITS])
    is_whole = is_whole and number < MAX_NUMBER
    return (-number if match[1] == "-" else number), is_whole


def _rows(text: str, family: str) -> list[KnownVariable]:
    return [_setting(line, family) for line in text.strip().splitlines()]


def _setting(line: str, family: str) -> KnownVariable:
    row, _, meaning = line.partition(" # ")
    name, kind, since, *more = row.split()
    kind, _, allowed = kind.partition(":")
    marks = dict(mark.split(":", 1) for mark in more)
    return KnownVariable(
        *(name, family, kind, tuple(allowed.split("|")) if allowed else ()),
        since=None if since == "-" else since,
        deprecated=marks.get("deprecated"),
        removed=marks.get("removed"),
        replaced_by=marks.get("by"),
        meaning=meaning,
    )


TABLE = {variable.name: variable for variable in (*_rows(NCCL, "nccl"), *_rows(TORCH, "torch"), *_rows(CUDA, "cuda"))}
"""Every known variable by name."""
