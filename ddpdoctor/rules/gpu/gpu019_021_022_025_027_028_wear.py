"""GPU019, GPU021, GPU022, GPU025, GPU027, GPU028: wear of GPU memory, and error records that cannot be trusted."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.xids import XidKind
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.gpu.finding import at
from ddpdoctor.rules.gpu.gpu039_to_044_500_xids import logged

DRAM_MOST, SRAM_MOST, TOTAL_MOST = 20_000_000, 10_000, 50_000_000
"""Corrected errors since the driver was loaded: Azure's limits for memory and for the chip, GCM's for the total."""
REMAPS_MOST = 512
"""DCGM warns from this number."""
RETIRED_MOST = 10
"""Pages retired for one cause, from GCM; the table of a card holds 64."""
DATA_CENTRE = re.compile(r"\b(A100|A30|A800|H100|H200|H20|H800|GH200|B100|B200|B300|GB200|GB300|V100|P100)\b")
"""Cards whose memory is built for ECC: it costs no capacity."""


@cause("GPU019", "ecc-uncorrected-earlier", Severity.NOTE)
def ecc_uncorrected_earlier(gpu: Gpu) -> Iterator[Finding]:
    """A GPU had uncorrected memory errors, but none since the driver was loaded.

    ## Why it matters
    Those errors have been handled. They matter if the same card fails again.

    ## Fix
    Watch the ECC counters of this card: `nvidia-smi -i N -q -d ECC`.

    ## Example
    ddpdoctor's message:

        GPU 2 had 3 uncorrected memory errors in the past, none since the driver was loaded

    On that node, now and after the next job:

        nvidia-smi -i 2 -q -d ECC

    ## Source
    nvmlDeviceGetTotalEccErrors, uncorrected: aggregate above 0, volatile 0.
    """
    for device, count in gpu.each("ecc_uncorrected_aggregate"):
        if count and device.ecc_uncorrected_volatile == 0:
            text = f"GPU {device.index} had {count} uncorrected memory errors in the past, none since the driver was loaded"
            yield at(device, "ecc_uncorrected_aggregate", text, "0")


@cause(
    "GPU021",
    "ecc-corrected-rate-high",
    Severity.WARNING,
    signatures=(r"NVRM: Xid [^\n]{0,80}: 92\b",),
    xids=XidKind.ECC_CORRECTED_RATE_HIGH,
)
def ecc_corrected_rate_high(gpu: Gpu) -> Iterator[Finding]:
    """A GPU corrected an unusual number of memory errors.

    ## Why it matters
    Nothing is wrong yet, but counts this high often precede errors that cannot be corrected.

    ## Fix
    Watch how fast the counters grow (`nvidia-smi -i N -q -d ECC`) and plan a replacement of the card.

    ## Example
    ddpdoctor's message:

        GPU 1 corrected 61000000 memory errors since the driver was loaded

    On that node, twice, an hour apart:

        nvidia-smi -i 1 -q -d ECC

    ## Source
    nvmlDeviceGetMemoryErrorCounter and nvmlDeviceGetTotalEccErrors, corrected, volatile: above 20,000,000 in memory or
    10,000 on the chip (Azure), or 50,000,000 together (GCM). Xid 92 in the kernel log.
    """
    from_log = tuple(logged(gpu, XidKind.ECC_CORRECTED_RATE_HIGH))
    yield from from_log
    limits = (
        ("ecc_corrected_dram", DRAM_MOST),
        ("ecc_corrected_sram", SRAM_MOST),
        ("ecc_corrected_volatile", TOTAL_MOST),
    )
    for device, _ in gpu.each("ecc_corrected_volatile", or_none=bool(from_log)):
        for field, most in limits:
            count = getattr(device, field)
            if count is not None and count > most:
                text = f"GPU {device.index} corrected {count} memory errors since the driver was loaded"
                yield at(device, field, text, f"at most {most}")
                break


@cause("GPU022", "ecc-off", Severity.WARNING)
def ecc_off(gpu: Gpu) -> Iterator[Finding]:
    """ECC is off on a data-center GPU, or not the same on all GPUs.

    ## Why it matters
    Bit flips get into the weights unnoticed, and the usable memory differs between the cards of the node.

    ## Fix
    Enable ECC as root on that node, then reset the GPU.

    ## Example
    ddpdoctor's message:

        ECC is off on GPU 2 (NVIDIA H100 80GB HBM3), but on for GPU 0

    On that node, as root:

        nvidia-smi -i 2 -e 1
        nvidia-smi --gpu-reset -i 2

    ## Source
    nvmlDeviceGetEccMode, current.
    """
    modes = list(gpu.each("ecc_mode"))
    for device, mode in modes:
        on = [d for d, other in modes if other and d.name == device.name]
        is_made_for_it = DATA_CENTRE.search(device.name or "") is not None and device.virtualization_mode != 2
        if mode == 0 and (on or is_made_for_it):
            others = f", but on for GPU {on[0].index}" if on else ""
            text = f"ECC is off on GPU {device.index} ({device.name}){others}"
            yield at(device, "ecc_mode", text, "1", fix_command=f"nvidia-smi -i {device.index} -e 1")


@cause("GPU025", "row-remap-spares-low", Severity.WARNING)
def row_remap_spares_low(gpu: Gpu) -> Iterator[Finding]:
    """A GPU has few spare memory rows left.

    ## Why it matters
    The next fault in such a memory bank may not be repairable, and every job on this GPU is then at risk.

    ## Fix
    Plan a replacement of the card.

    ## Example
    ddpdoctor's message:

        GPU 0 has few or no spare rows left in 1 memory bank

    On that node:

        nvidia-smi -i 0 -q -d ROW_REMAPPER

    ## Source
    nvmlDeviceGetRowRemapperHistogram: banks with low or no spares; nvmlDeviceGetRemappedRows: 512 uncorrectable (DCGM).
    """
    if all(d.remap_histogram is None for d in gpu.answering()):
        list(gpu.each("remap_uncorrectable"))
    for device in gpu.answering():
        rows = device.remap_histogram or ()
        if device.remap_failure:
            continue  # a row could not be remapped: GPU023
        low, none = rows[3:5] if len(rows) == 5 else (0, 0)
        if low or none:
            banks = f"{low + none} memory bank{'' if low + none == 1 else 's'}"
            text = f"GPU {device.index} has few or no spare rows left in {banks}"
            yield at(device, "remap_histogram", text, "low 0, none 0")
        elif (device.remap_uncorrectable or 0) >= REMAPS_MOST:
            text = f"GPU {device.index} remapped {device.remap_uncorrectable} rows after uncorrectable errors"
            yield at(device, "remap_uncorrectable", text, f"< {REMAPS_MOST}")


@cause(
    "GPU027",
    "retired-pages-limit",
    Severity.WARNING,
    signatures=(r"NVRM: Xid [^\n]{0,80}: (157|159|160|161)\b",),
    xids=XidKind.RETIRED_PAGES_LIMIT,
)
def retired_pages_limit(gpu: Gpu) -> Iterator[Finding]:
    """A GPU has retired many memory pages or channels.

    ## Why it matters
    When the table of retired pages is full, further faulty memory stays in use.

    ## Fix
    Have the card replaced.

    ## Example
    ddpdoctor's message:

        GPU 0 retired 14 memory pages after uncorrected errors

    On that node:

        nvidia-smi -i 0 -q -d PAGE_RETIREMENT

    ## Source
    nvmlDeviceGetRetiredPages: more than 10 of one cause (GCM); cards before Ampere. Xids 157, 159 to 161 in the kernel log.
    """
    from_log = tuple(logged(gpu, XidKind.RETIRED_PAGES_LIMIT))
    yield from from_log
    if all(d.absent.get("retired_pages_sbe") == "NOT_SUPPORTED" for d in gpu.answering()):
        return  # cards that remap rows instead
    list(gpu.each("retired_pages_sbe", or_none=bool(from_log)))
    for device in gpu.answering():
        for field, kind in (("retired_pages_sbe", "corrected"), ("retired_pages_dbe", "uncorrected")):
            count = getattr(device, field)
            if count is not None and count > RETIRED_MOST:
                text = f"GPU {device.index} retired {count} memory pages after {kind} errors"
                yield at(device, field, text, f"at most {RETIRED_MOST}")


@cause(
    "GPU028",
    "inforom-corrupted",
    Severity.WARNING,
    signatures=(r"infoROM is corrupted", r"NVRM: Xid [^\n]{0,80}: 93\b"),
    xids=XidKind.INFOROM_CORRUPTED,
)
def inforom_corrupted(gpu: Gpu) -> Iterator[Finding]:
    """The InfoROM of a GPU is corrupted or worn out.

    ## Why it matters
    The card stores its error counters and settings in the InfoROM, so none of them can be trusted.

    ## Fix
    Update the firmware of the board, or have the card replaced.

    ## Example
    nvidia-smi prints:

        WARNING: infoROM is corrupted at gpu 0000:3B:00.0

    On that node:

        nvidia-smi -q | grep -i -A 4 inforom

    ## Source
    nvmlDeviceValidateInforom returns CORRUPTED_INFOROM (14); Xid 93 where NVML gives no answer.
    """
    from_log = tuple(logged(gpu, XidKind.INFOROM_CORRUPTED, unless="inforom"))
    yield from from_log
    for device, state in gpu.each("inforom", or_none=bool(from_log)):
        if state != "OK":
            text = f"the InfoROM of GPU {device.index} is corrupted"
            yield at(device, "inforom", text, "OK")
