"""SCRIPT030, SCRIPT052 to SCRIPT057: what only running ranks show of a script."""

from __future__ import annotations

from ddpdoctor.findings import CausalStage, Severity, Speaker
from ddpdoctor.rules import cause


@cause(
    "SCRIPT030",
    "collective-mismatch-detected",
    Severity.ERROR,
    stage=CausalStage.NOT_IN_COLLECTIVE,
    speaker=Speaker.VICTIM,
    kind="umbrella",
    signatures=(
        r"Detected mismatch between collectives",
        r"Mismatched collective detected",
        r"\bcollective mismatch (?:error|around rank|in your code)",
        r"op\.preamble\.length <= op\.nbytes",
        r"Forward order differs across ranks",
    ),
)
def collective_mismatch_detected() -> None:
    """The ranks do not call the same collectives.

    ## Why it matters
    "Detected mismatch between collectives on ranks" (TORCH_DISTRIBUTED_DEBUG=DETAIL) shows the two calls, "Is there a
    distributed collective mismatch in your code?" (Gloo) not even these; none shows the branch that led there.

    ## Fix
    Run once with TORCH_DISTRIBUTED_DEBUG=DETAIL, compare the two fingerprints, and find where the ranks' paths part: a
    branch on the rank, a skipped batch, tensors of another shape.
    """


@cause(
    "SCRIPT052",
    "ddp-unused-parameters",
    Severity.ERROR,
    signatures=(
        r"Expected to have finished reduction in the prior iteration",
        r"did not receive grad for rank \d+",
        r"has parameters that were not used in producing the loss",
    ),
)
def ddp_unused_parameters() -> None:
    """Some parameters of the model got no gradient.

    ## Why it matters
    "Expected to have finished reduction in the prior iteration before starting a new one" comes at the second step, in the
    forward pass, far from the layer whose output was not used for the loss.

    ## Fix
    Use every output in the loss, or freeze what is not trained before DDP is made; TORCH_DISTRIBUTED_DEBUG=DETAIL names the
    parameters. DistributedDataParallel(..., find_unused_parameters=True) works, at a price.
    """


@cause(
    "SCRIPT053",
    "ddp-mark-ready-twice",
    Severity.ERROR,
    signatures=(r"Expected to mark a variable ready only once",),
)
def ddp_mark_ready_twice() -> None:
    """The gradient of a parameter was ready twice in one backward pass.

    ## Why it matters
    "Expected to mark a variable ready only once": re-entrant checkpointing, a layer that is used twice, or two forward passes
    before one backward. On one GPU, without DDP, the same script works.

    ## Fix
    torch.utils.checkpoint.checkpoint(..., use_reentrant=False), or DDP's static_graph=True; one forward pass of the wrapped
    model for each backward.
    """


@cause(
    "SCRIPT054",
    "ddp-models-differ",
    Severity.ERROR,
    signatures=(
        r"has \d+ params, while rank \d+ has inconsistent [1-9]",
        r"in this process with (sizes|strides) [^\n]*appears not to match",
    ),
)
def ddp_models_differ() -> None:
    """The ranks build different models.

    ## Why it matters
    "DDP expects same model across all ranks, but Rank 1 has 148 params, while rank 0 has inconsistent 150 params", or
    "params[3] in this process with sizes [10, 4] appears not to match sizes of the same param in process 0": the model
    depends on the rank, on its data, or on another checkpoint.

    ## Fix
    Build the model from the same configuration on every rank, before any branch on the rank; take the number of classes or
    tokens from the configuration, not from the rank's own data.
    """


@cause(
    "SCRIPT056",
    "ddp-buffer-changed-inplace",
    Severity.ERROR,
    signatures=(r"variables needed for gradient computation has been modified by an inplace operation",),
)
def ddp_buffer_changed_inplace() -> None:
    """Two forward passes changed the buffers that DDP broadcasts, before the backward pass.

    ## Why it matters
    "one of the variables needed for gradient computation has been modified by an inplace operation", although the code has no
    in-place operation: DDP copies rank 0's buffers (BatchNorm's statistics) into the model at every forward pass.

    ## Fix
    One forward pass for each backward (concatenate the inputs), SyncBatchNorm, or DistributedDataParallel(...,
    broadcast_buffers=False). If the script does work in place (x += y, relu_), look there first.
    """


@cause(
    "SCRIPT057",
    "ddp-inconsistent-params-zero",
    Severity.ERROR,
    stage=CausalStage.REACHABILITY,
    speaker=Speaker.VICTIM,
    kind="umbrella",
    signatures=(r"inconsistent 0 params",),
)
def ddp_inconsistent_params_zero() -> None:
    """DDP's check of the model got no data from a rank.

    ## Why it matters
    "Rank 2 has 363 params, while rank 0 has inconsistent 0 params": the data of that rank never arrived, because the very
    first collective did not work. The model is not the reason.

    ## Fix
    Look for the network: the interface that NCCL chose (NCCL_DEBUG=INFO, "Bootstrap : Using"), peer access between the GPUs
    (NCCL_P2P_DISABLE=1 as a test). `torchrun … -m ddpdoctor.probe` checks the values of an all_reduce.
    """
