"""SCRIPT030 and SCRIPT052 to SCRIPT057: faults of a script that only its logs show."""

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
    `Detected mismatch between collectives on ranks` (TORCH_DISTRIBUTED_DEBUG=DETAIL) shows the two calls; `Is there a
    distributed collective mismatch in your code?` (Gloo) does not. Neither shows the branch that led there.

    ## Fix
    Run once with TORCH_DISTRIBUTED_DEBUG=DETAIL and compare the two fingerprints.

    Then find where the ranks diverge: a branch on the rank, a skipped batch, or tensors of different shapes.

    ## Example
        # before
        torchrun --nproc-per-node=2 train.py
        # Is there a distributed collective mismatch in your code?

        # after
        TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun --nproc-per-node=2 train.py
        # Detected mismatch between collectives on ranks. Rank 0 is running collective: ...
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
    `Expected to have finished reduction in the prior iteration before starting a new one` is raised in the forward
    pass of the second step. The traceback does not show the layer whose output was not used in the loss.

    ## Fix
    Use every output in the loss, or freeze the parameters before DDP is created.

    TORCH_DISTRIBUTED_DEBUG=DETAIL names the parameters. `DistributedDataParallel(..., find_unused_parameters=True)`
    also works, but is slower.

    ## Example
        # before
        ddp = DDP(model)
        logits, extra = ddp(x)
        F.cross_entropy(logits, y).backward()  # extra is not used
        # RuntimeError: Expected to have finished reduction in the prior iteration ...

        # after
        model.extra_head.requires_grad_(False)
        ddp = DDP(model)
        logits, extra = ddp(x)
        F.cross_entropy(logits, y).backward()

    ## Source
    Confirmed in https://github.com/aliyun/conditional-lane-detection/issues/29 and
    https://github.com/ZhengYinan-AIR/Diffusion-Planner/issues/65: find_unused_parameters=True.
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
    `Expected to mark a variable ready only once` is caused by re-entrant checkpointing, a layer that is used twice,
    or two forward passes before one backward pass. On one GPU, without DDP, the same script works.

    ## Fix
    Use `checkpoint(..., use_reentrant=False)`, and one forward pass of the wrapped model per backward pass.

    `DistributedDataParallel(..., static_graph=True)` also works.

    ## Example
        # before
        x = torch.utils.checkpoint.checkpoint(self.block, x)
        # RuntimeError: Expected to mark a variable ready only once.

        # after
        x = torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)
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
    The model depends on the rank, on its data, or on a different checkpoint. DDP reports `DDP expects same model
    across all ranks, but Rank 1 has 148 params, while rank 0 has inconsistent 150 params`, or `params[3] in this
    process with sizes [10, 4] appears not to match sizes of the same param in process 0`.

    ## Fix
    Build the model from the same configuration on every rank, before any branch on the rank.

    Take the number of classes or tokens from the configuration, not from the data of the rank.

    ## Example
        # before
        model = Net(classes=len(set(own_labels)))
        ddp = DDP(model)
        # params[3] in this process with sizes [10, 4] appears not to match sizes of the same param in process 0

        # after
        model = Net(classes=config.classes)
        ddp = DDP(model)
    """


@cause(
    "SCRIPT056",
    "ddp-buffer-changed-inplace",
    Severity.ERROR,
    signatures=(r"variables needed for gradient computation has been modified by an inplace operation",),
)
def ddp_buffer_changed_inplace() -> None:
    """Two forward passes before one backward pass changed the buffers that DDP broadcasts.

    ## Why it matters
    DDP copies the buffers of rank 0 (such as BatchNorm statistics) into the model in place at every forward pass. The
    error is `one of the variables needed for gradient computation has been modified by an inplace operation`,
    although the script has no in-place operation.

    ## Fix
    Run one forward pass per backward pass: concatenate the inputs.

    SyncBatchNorm or `DistributedDataParallel(..., broadcast_buffers=False)` also avoids it. If the script itself
    works in place (`x += y`, `relu_`), check that first.

    ## Example
        # before
        loss = ddp(real).mean() - ddp(fake).mean()
        loss.backward()
        # one of the variables needed for gradient computation has been modified by an inplace operation

        # after
        real_out, fake_out = ddp(torch.cat([real, fake])).chunk(2)
        (real_out.mean() - fake_out.mean()).backward()
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
    """DDP's model check received no data from a rank.

    ## Why it matters
    `Rank 2 has 363 params, while rank 0 has inconsistent 0 params` means that the data of that rank never arrived,
    because the very first collective failed. The model is not the cause.

    ## Fix
    Check the network: the interface that NCCL uses (NCCL_DEBUG=INFO), and peer access between the GPUs.

    `torchrun … -m ddpdoctor.probe` checks the values of an all_reduce.

    ## Example
        # before
        torchrun --nproc-per-node=4 train.py
        # Rank 2 has 363 params, while rank 0 has inconsistent 0 params

        # after
        NCCL_DEBUG=INFO torchrun --nproc-per-node=4 train.py      # which interface: "Bootstrap : Using"
        NCCL_P2P_DISABLE=1 torchrun --nproc-per-node=4 train.py   # works: peer access is broken
    """
