"""LOG538: NCCL's own diagnostics (2.31 and newer) found something."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.findings import Certainty, Finding, Severity
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log, LogLine

__all__: list[str] = []

BROKEN = re.compile(
    r"\bp2p: (?:write|read) mismatch |\bp2p: (?:launch/check|topology check|peer-memory import|local CUDA setup|setup) failed"
    r"|\bp2p: destination buffer unavailable|\bp2p: only \d+/\d+ |\bECC: uncorrected volatile errors"
    r"|\bNVLink: (?:inactive link|link-count mismatch)"
)
"""What a job cannot work with."""
UNEQUAL = re.compile(
    r"mismatch across \d+ ranks|\bNVLink: inconsistent link speeds|\bECC: corrected volatile errors at or above"
    r"|\d NCCL_\* env var\(s\) differ|>30% off median"
)
"""What differs between ranks, or is slow: the job works."""
RANKS = re.compile(r"\brank\(s\) (?P<list>[\d, -]+)|\bsrcRank=(?P<source>\d+)|\bnet bw: \S+ rank (?P<slow>\d+) ")
_SPAN = re.compile(r"(\d+)(?:-(\d+))?")
MOST_RANKS = 100_000
ABOUT = (
    ("ECC: uncorrected", "ecc-uncorrected"),
    ("NVLink: inactive", "nvlink-down"),
    ("p2p: ", "acs-redirects-p2p"),
    ("model mismatch", "gpu-models-mixed"),
    ("NVIDIA graphics driver version: mismatch", "driver-version-differs"),
    ("NCCL environment", "nccl-env-differs"),
)
"""Words of a diagnosis, and the name of the cause that it is about."""


@cause("LOG538", "nccl-diagnostics-failed", Severity.ERROR, signatures=(BROKEN.pattern,))
def nccl_diagnostics_failed(log: Log) -> Iterator[Finding]:
    """NCCL's diagnostics report a fault of the machine.

    ## Why it matters
    With NCCL_RUN_DIAGNOSTICS=1 and NCCL_RUN_RAS_DIAGNOSTICS=1 NCCL tests each path between GPUs and compares the ranks before
    the job uses them: `NCCL DIAG [INFO] p2p: write mismatch srcRank=2 … dstRank=3 …`. What they report is a fault of a GPU, a
    link, the driver or the configuration, not of the training script.

    ## Fix
    Follow the advice at the end of the line. Drain the node of the named rank if a check of data or ECC failed.

    ## Example

        NCCL DIAG [INFO] p2p: write mismatch srcRank=2 … dstRank=3 … expected=0x… got=0x…; check … PCIe ACS settings

    On all nodes:

        # before
        torchrun --nnodes 2 train.py
        # after
        NCCL_RUN_DIAGNOSTICS=1 NCCL_RUN_RAS_DIAGNOSTICS=1 torchrun --nnodes 2 train.py

    ## Source
    NVIDIA, "Diagnostics" of the NCCL 2.32.3 user guide; the strings of libnccl 2.31.2 and 2.32.3.
    """
    from ddpdoctor.logs.context_patterns import context_lines
    from ddpdoctor.rules.log.signatures import codes_of, finding_of

    found = [line for line, _ in context_lines(log, "nccl_diag")]
    for known, severity in ((BROKEN, None), (UNEQUAL, Severity.WARNING)):
        lines = [
            line for line in found if known.search(line.text) and (known is BROKEN or not BROKEN.search(line.text))
        ]
        if not lines:
            continue
        ranks = _ranks(lines)
        title = "NCCL's diagnostics report a fault" if known is BROKEN else "NCCL's diagnostics report a difference"
        names = dict.fromkeys(name for line in lines for words, name in ABOUT if words in line.text)
        finding = finding_of(log, lines, title, blames_speaker=False)
        yield replace(
            finding,
            quote=lines[0].text.strip(),
            fix=_advice(lines),
            severity=severity,
            role=None,
            ranks=ranks,
            where=replace(finding.where, rank=ranks[0] if len(ranks) == 1 else None),
            candidates=codes_of(*names),
            certainty=Certainty.CANDIDATES if names else Certainty.LIKELY,
        )


def _advice(lines: list[LogLine]) -> str:
    """What NCCL says to do, at the end of its line; "" if it says nothing."""
    found = next((text for line in lines if (text := line.text.partition("; ")[2].strip())), "")
    return f"{found[0].upper()}{found[1:].rstrip('.')}." if found else ""


def _ranks(lines: list[LogLine]) -> tuple[int, ...]:
    ranks: set[int] = set()
    for line in lines:
        for match in RANKS.finditer(line.text):
            for span in _SPAN.finditer(match["list"] or match["source"] or match["slow"]):
                first, last = int(span[1]), int(span[2] or span[1])
                ranks.update(range(first, min(last, first + MOST_RANKS) + 1))
    return tuple(sorted(ranks))
