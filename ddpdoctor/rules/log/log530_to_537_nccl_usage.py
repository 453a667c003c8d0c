"""LOG530 to LOG537: calls of NCCL that NCCL refuses, in its own words (NCCL_DEBUG=WARN)."""

from __future__ import annotations

from ddpdoctor.findings import CausalStage, Severity
from ddpdoctor.rules import cause

__all__: list[str] = []


@cause(
    "LOG530",
    "nccl-buffer-on-other-device",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    signatures=(r"allocated on device \d+ mismatchs with NCCL device \d+",),
)
def nccl_buffer_on_other_device() -> None:
    """A tensor is on another GPU than the communicator of its process group.

    ## Why it matters
    `AllReduce : sendbuff allocated on device 1 mismatchs with NCCL device 0`: the process group was created on one GPU, and the
    collective was called with a tensor of another one. NCCL checks this only with NCCL_CHECK_POINTERS=1; without it the job
    crashes or hangs.

    ## Fix
    Call `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before init_process_group, pass `device_id`, and keep all tensors
    of a rank on that device.

    ## Example

        NCCL WARN AllReduce : sendbuff allocated on device 1 mismatchs with NCCL device 0

        # before
        loss = loss.to("cuda:1")
        # after
        loss = loss.to(f"cuda:{local_rank}")

    ## Source
    NCCL src/misc/argcheck.cc: CudaPtrCheck, 2.18 to 2.30.7.
    """


@cause(
    "LOG531",
    "nccl-argument-refused",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    signatures=(
        r"NCCL WARN \w+ : invalid root -?\d+ \(root should be in the",
        r"NCCL WARN \w+ : (invalid (type|reduction operation)|reduction operation -?\d+ unknown)",
        r"NCCL WARN \w+ : \w+ (0x[0-9a-f]+|\(nil\)) is not a valid pointer",
        r"NCCL WARN \w+ : \w+ argument is NULL",
        r"NCCL WARN Invali[dg] config \w[\w /]{0,60} attribute value",
        r"NCCL WARN invalid device count \(\d+\) requested",
    ),
)
def nccl_argument_refused() -> None:
    """A collective was called with an argument that NCCL rejects.

    ## Why it matters
    The exception only says `ncclInvalidArgument` or `invalid usage`. NCCL's warning names the call and the argument, such as
    `Broadcast : invalid root 8 (root should be in the 0..8 range)`: a rank that the group does not have, a dtype that NCCL cannot
    reduce, or a buffer that is not GPU memory.

    ## Fix
    Correct that call in the script: `src` and `dst` must be ranks of the group, tensors must be contiguous CUDA
    tensors of a supported dtype, and ProcessGroupNCCL.Options must have values that this NCCL accepts.

    ## Example

        NCCL WARN Broadcast : invalid root 8 (root should be in the 0..8 range)

        # before: ranks count from 0
        dist.broadcast(tensor, src=dist.get_world_size())
        # after
        dist.broadcast(tensor, src=dist.get_world_size() - 1)

    ## Source
    NCCL src/misc/argcheck.cc: ArgsCheck, PtrCheck, CudaPtrCheck; src/init.cc: parseCommConfig; 2.18 to 2.30.7.
    """


@cause(
    "LOG532",
    "nccl-self-message-unmatched",
    Severity.ERROR,
    stage=CausalStage.MISMATCH,
    signatures=(r"Trying to (recv|send) to self without a matching (send|recv)",),
)
def nccl_self_message_unmatched() -> None:
    """A rank sends to itself or receives from itself without the other half.

    ## Why it matters
    NCCL needs the send and the receive of the same rank in one group and prints `Trying to recv to self without a matching send`.
    The usual reason is a peer that is computed wrongly, such as `(rank + 1) % world_size` with one rank.

    ## Fix
    Skip the exchange where the peer is the rank itself, or put both halves into one `batch_isend_irecv`.

    ## Example

        NCCL WARN Trying to send to self without a matching recv

        # before
        dist.send(tensor, dst=(rank + 1) % world_size)
        # after
        if world_size > 1:
            dist.send(tensor, dst=(rank + 1) % world_size)

    ## Source
    NCCL src/enqueue.cc: scheduleP2pTasksToPlan.
    """


@cause(
    "LOG533",
    "nccl-graph-capture-broken",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    signatures=(
        r"must either be all uncaptured or all captured by the same graph",
        r"communicators in a ncclGroup\(\) can be CUDA graph captured",
        r"Stream is not being captured by the expected graph",
        r"operation not permitted when stream is capturing",
        r"operation failed due to a previous error during capture",
        r"operation would make the legacy stream depend on a capturing blocking stream",
    ),
)
def nccl_graph_capture_broken() -> None:
    """A call is not allowed while a CUDA graph is captured.

    ## Why it matters
    `operation not permitted when stream is capturing` comes from whatever call synchronizes during the capture: the
    watchdog of another process group, an allocation, `.item()`, or a collective on a stream that is not part of the
    capture. NCCL prints `Streams given to a communicator within a NCCL group must either be all uncaptured or all
    captured by the same graph`.

    ## Fix
    Warm up all collectives on a side stream before the capture, put every stream of the group into it, and let other
    threads (data loaders, evaluation, checkpoints) wait until it ends. With `capture_error_mode="thread_local"`, calls
    of other threads do not break the capture.

    ## Example

        Cuda failure 900 'operation not permitted when stream is capturing'

        # before
        with torch.cuda.graph(graph):
            train_step()
        # after: the first collectives run before the capture
        for _ in range(11):
            train_step()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            train_step()

    ## Source
    NCCL src/enqueue.cc: ncclPlannerSetCapturingGraph; src/group.cc: doLaunches; CUDA runtime errors 900 to 906.
    """


@cause(
    "LOG534",
    "nccl-communicator-revoked",
    Severity.ERROR,
    stage=CausalStage.PEER_ERROR,
    kind="umbrella",
    candidates=("LOG001", "PROBE006", "LOG005"),
    signatures=(r"communicator was revoked", r"NCCL WARN Comm 0x[0-9a-f]+ is in abort state"),
)
def nccl_communicator_revoked() -> None:
    """A collective was called on a communicator that had been revoked or aborted.

    ## Why it matters
    `AllReduce: communicator was revoked` follows from an earlier failure: a rank ended, or a timeout made torch abort the group.
    The rank that prints it is not at fault.

    ## Fix
    Look for the first failure of another rank. Code that shrinks or restarts the group has to create a new communicator before
    its next collective.

    ## Example

        NCCL WARN ncclAllReduce: communicator was revoked

        # before
        dist.all_reduce(tensor)  # the group was shrunk without this rank
        # after
        group = dist.shrink_group([3])
        dist.all_reduce(tensor, group=group)

    ## Source
    NCCL src/enqueue.cc: ncclEnqueueCheck (2.28 and newer); src/proxy.cc: ncclPollProxyResponse.
    """


@cause(
    "LOG535",
    "nccl-communicator-misused",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    signatures=(
        r"Attempt to use communicator before the previous operation returned ncclSuccess",
        r"NCCL WARN comm (0x[0-9a-f]+|\(nil\)) has already been destroyed",
        r"Error: corrupted comm object detected",
        r"Blocking and nonblocking communicators are not allowed in the same group",
        r"NCCL WARN ncclGroupEnd: not in a group call",
    ),
)
def nccl_communicator_misused() -> None:
    """NCCL was called with a communicator that is not ready or no longer exists.

    ## Why it matters
    `Attempt to use communicator before the previous operation returned ncclSuccess` appears with nonblocking communicators
    (TORCH_NCCL_USE_COMM_NONBLOCKING=1); `has already been destroyed` or `corrupted comm object` after destroy_process_group,
    often from a destructor or a second thread.

    ## Fix
    Unset TORCH_NCCL_USE_COMM_NONBLOCKING, call destroy_process_group once as the last call of every rank, and use one thread per
    process group.

    ## Example

        NCCL WARN Attempt to use communicator before the previous operation returned ncclSuccess

        # before
        export TORCH_NCCL_USE_COMM_NONBLOCKING=1
        # after
        unset TORCH_NCCL_USE_COMM_NONBLOCKING

    ## Source
    NCCL src/init.cc: ncclCommEnsureReady, ncclCommDestroy; src/misc/argcheck.cc: CommCheck; src/group.cc.
    """


@cause(
    "LOG536",
    "fp8-reduction-unsupported",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    signatures=(r"FP8 reduction support begins with sm90",),
)
def fp8_reduction_unsupported() -> None:
    """NCCL cannot reduce FP8 values on this GPU.

    ## Why it matters
    `FP8 reduction support begins with sm90 capable devices.` An A100 or an older GPU can send FP8 tensors, but not sum them.

    ## Fix
    Reduce in bf16 and convert afterwards, or use a Hopper or newer GPU.

    ## Example

        NCCL WARN FP8 reduction support begins with sm90 capable devices.

        # before
        dist.all_reduce(tensor_fp8)
        # after
        total = tensor_fp8.to(torch.bfloat16)
        dist.all_reduce(total)

    ## Source
    NCCL src/enqueue.cc: taskAppend, 2.24 and newer.
    """


@cause(
    "LOG537",
    "nccl-windows-differ",
    Severity.ERROR,
    stage=CausalStage.MISMATCH,
    signatures=(
        r"symmetric registration check failed on rank \d+",
        r"all ranks must have identical segment configurations",
        r"Window registration capabilities disagree between rank \d+",
    ),
)
def nccl_windows_differ() -> None:
    """Ranks registered different buffers as symmetric memory.

    ## Why it matters
    `symmetric registration check failed on rank 3: recv buffer window (…) mismatch with rank 0`: a symmetric collective needs the
    same window and the same offset on all ranks. Buffers of an allocator whose history differs between ranks do not have this.

    ## Fix
    Allocate symmetric buffers on all ranks in the same order and with the same sizes, before anything that depends on the
    rank.

    ## Example

        NCCL WARN Coll AllReduce size 4096 symmetric registration check failed on rank 3: recv buffer window (0x10) …

        # before
        if rank == 0:
            extra = symm_mem.empty(1024, device="cuda")
        buffer = symm_mem.empty(4096, device="cuda")
        # after
        buffer = symm_mem.empty(4096, device="cuda")

    ## Source
    NCCL src/misc/argcheck.cc: registrationCheck; src/dev_runtime_segments.cc: ncclDevrVerifySegmentLayouts.
    """
