"""LOG518, LOG519: training that stopped itself because its numbers are no longer finite."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.logs.exception_kinds import is_consequence
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.not_a_number import last_losses, no_number
from ddpdoctor.rules.log.signatures import ending

__all__: list[str] = []


@cause(
    "LOG518",
    "loss-is-nan",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    signatures=(
        r"FloatingPointError: [^\n]{0,60}\b(?:NaN|nan|infinite)\b",
        r"Function '\w+' returned nan values in its",
        r"found NaN in local (?:forward loss|grad norm)",
        r"probability tensor contains either `inf`, `nan` or element < 0",
        r"cannot convert float NaN to integer",
    ),
)
def loss_is_nan(log: Log) -> Iterator[Finding]:
    """The loss or a gradient became NaN or infinite, and the job stopped.

    ## Why it matters
    `NaN detected in loss, aborting.` or `Loss is nan, stopping training`: the script ends without a traceback and often with
    exit code 0 or 1, and the other ranks report a lost connection. The network and the GPU rarely cause this.

    ## Fix
    Restart from the last checkpoint with a lower learning rate or more warm-up, with gradients clipped
    (`clip_grad_norm_(model.parameters(), 1.0)`) and bf16 instead of fp16. `torch.autograd.set_detect_anomaly(True)` names the
    operation; if only one rank has NaN, check its data and its GPU (`ddpdoctor gpus`).

    ## Example

        step 1210 loss nan
        NaN detected in loss, aborting.

        # before
        torchrun --nproc-per-node 8 train.py --lr 1e-3 --fp16
        # after
        torchrun --nproc-per-node 8 train.py --resume last --lr 1e-4 --max-grad-norm 1.0 --bf16
    """
    found = list(ending(loss_is_nan, log))
    if all(is_consequence(each) for each in log.tracebacks):
        found += no_number(log)
    yield from found or last_losses(log)


@cause(
    "LOG519",
    "loss-scale-at-minimum",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    signatures=(
        r"Current loss scale already at minimum",
        r"(?:Error|Exception): Minimum loss scale reached",
        r"[Ll]oss scale (?:has )?reached (?:the )?minimum",
        r"[Rr]educing (?:the )?loss scale to (?:\d(?:\.\d{1,30})?[eE]-\d{1,4}|0\.00\d{1,30})\b",
    ),
)
def loss_scale_at_minimum(log: Log) -> Iterator[Finding]:
    """The fp16 loss scale fell to its minimum: gradients overflow at every step.

    ## Why it matters
    `Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.`: every step overflows,
    because the model was trained in bf16 and exceeds the range of fp16, or because the loss diverged.

    ## Fix
    Train in bf16: `--bf16` and `"bf16": {"enabled": true}` in DeepSpeed's configuration, without `fp16`. On GPUs without bf16
    (V100, T4), lower the learning rate and clip the gradients.

    ## Example

        Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.

        # before
        deepspeed train.py --fp16 True --deepspeed ds_fp16.json
        # after
        deepspeed train.py --bf16 True --deepspeed ds_bf16.json

    ## Source
    Confirmed in https://github.com/microsoft/LMOps/issues/280, https://github.com/yangjianxin1/Firefly/issues/68 and
    https://github.com/modelscope/ms-swift/issues/4374: bf16.
    """
    yield from ending(loss_scale_at_minimum, log)
