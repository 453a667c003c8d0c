"""LOG512: an index or a label that is out of range for its tensor, on the GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.headlines import names_of
from ddpdoctor.rules.log.signatures import ending, retitled

__all__: list[str] = []

_REPORTED = re.compile(r"device-side assert triggered|CUBLAS_STATUS_|CUDNN_STATUS_")
"""How Python reports it; the assertion itself, which the driver prints, does not contain the rank."""


@cause(
    "LOG512",
    "index-out-of-range-on-device",
    Severity.ERROR,
    stage=CausalStage.DEATH,
    signatures=(
        r"Assertion [^\n]{0,120}index out of bounds",
        r"Assertion .srcIndex < srcSelectDimSize",
        r"Assertion .{0,3}t >= 0 && t < n_classes",
        r"Assertion [^\n]{0,60}idx_dim < index_size",
        r"Assertion [^\n]{0,60}cur_target < n_classes",
        r"Assertion [^\n]{0,60}ind(?:ex)? < (?:num_indices|src_dim_size|numel)",
    ),
)
def index_out_of_range_on_device(log: Log) -> Iterator[Finding]:
    """An index or a label is out of range for its tensor, on the GPU.

    ## Why it matters
    ``Assertion `index >= -sizes[i] && index < sizes[i] && "index out of bounds"` failed``, then `CUDA error: device-side assert
    triggered` at a later line that is correct: kernels run asynchronously. The other ranks lose the connection or time out.

    ## Fix
    Run that rank again with CUDA_LAUNCH_BLOCKING=1, so that the traceback ends at the call, and print the minimum and maximum
    of the index before it. Labels must be in 0 … classes - 1, token ids below the embedding size, positions below the longest
    sequence.

    ## Example

        …/IndexKernel.cu:142: operator(): block: [0,0,0], thread: [90,0,0] Assertion `… && "index out of bounds"` failed.

        # before: a tokenizer with added tokens, and an embedding of the old size
        tokenizer.add_tokens(new_tokens)
        # after
        tokenizer.add_tokens(new_tokens)
        model.resize_token_embeddings(len(tokenizer))

    ## Source
    Confirmed in https://github.com/AlfredXiangWu/LightCNN/issues/5 and https://github.com/milesial/Pytorch-UNet/issues/258
    (one class more), https://github.com/amdegroot/ssd.pytorch/issues/231 (labels from 0), and https://github.com/LiheYoung/UniMatch/issues/29
    (masks with 255 for 1).
    """
    reported = [t for t in log.tracebacks if _REPORTED.search(t.message)]
    ranks = tuple(sorted({t.who.rank for t in reported if t.who.rank is not None}))
    for found in ending(index_out_of_range_on_device, log):
        if found.ranks or not ranks:
            yield found
            continue
        first = next(t for t in reported if t.who.rank == ranks[0])
        where = replace(found.where, rank=ranks[0] if len(ranks) == 1 else None, host=first.who.host)
        if first.place is not None:
            where = replace(where, file=first.place.file, line=first.place.line)
        named = replace(found, ranks=ranks, where=where, said_by=names_of(ranks, []))
        yield retitled(named, index_out_of_range_on_device.rule.title)
