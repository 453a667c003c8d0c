"""LOG512: an index or a label that is too large for the tensor that it selects from, on the GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.ended_ranks import names_of
from ddpdoctor.rules.log.signatures import ending

__all__: list[str] = []

_REPORTED = re.compile(r"device-side assert triggered|CUBLAS_STATUS_|CUDNN_STATUS_")
"""How Python learns of it: the assertion itself, which the driver prints, names no rank."""


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
    triggered` at a later, innocent line: kernels run asynchronously. The other ranks lose the connection or time out.

    ## Fix
    Rerun that rank with CUDA_LAUNCH_BLOCKING=1, so that the traceback ends at the call, and print the index's minimum and
    maximum before it: labels from 0 to the number of classes - 1, token ids below the size of the embedding, positions below
    the longest sequence.

    ## Example

        …/IndexKernel.cu:142: operator(): block: [0,0,0], thread: [90,0,0] Assertion `… && "index out of bounds"` failed.

    Before: a tokenizer with added tokens and an embedding of the old size. After:

        model.resize_token_embeddings(len(tokenizer))
    """
    reported = [each for each in log.tracebacks if _REPORTED.search(each.message)]
    ranks = tuple(sorted({each.who.rank for each in reported if each.who.rank is not None}))
    for found in ending(index_out_of_range_on_device, log):
        if found.ranks or not ranks:
            yield found
            continue
        first = next(each for each in reported if each.who.rank == ranks[0])
        where = replace(found.where, rank=ranks[0] if len(ranks) == 1 else None, host=first.who.host)
        if first.place is not None:
            where = replace(where, file=first.place.file, line=first.place.line)
        yield replace(found, ranks=ranks, where=where, said_by=names_of(ranks, []))
