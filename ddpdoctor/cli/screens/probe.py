"""The probe's table: every rank and how far it got, then the collectives with latency and bus bandwidth."""

from __future__ import annotations

from rich import box
from rich.console import RenderableType
from rich.table import Table

from ddpdoctor.cli.screens import draw_all
from ddpdoctor.facts.probe import Measurement, Probe, RankReport
from ddpdoctor.facts.record import Facts

__all__ = ["draw"]

MOST_RANKS = 64
"""With more ranks, the table shows those that did not finish, and counts the others."""


def draw(facts: Facts, *, width: int, colour: bool) -> str:
    """The facts of one probe, or the reason why there was none."""
    probe = facts.probe
    if probe is None:
        reason = next((gap.reason for gap in facts.gaps if gap.path == "probe"), "probe: not run")
        return draw_all([f"probe: {reason}"], width=width, colour=colour)
    pieces: list[RenderableType] = [_head(probe)]
    if probe.ranks:
        pieces.append(_ranks(probe, width))
    if probe.measurements and not probe.has_failed:
        pieces.append(_collectives(probe, width))
    pieces += _rates(probe)
    pieces += [f"{u.collective}: not in this backend ({u.reason})" for u in probe.unsupported]
    pieces += [
        f"rank {r.rank} {line if line.startswith('NCCL DIAG') else f'NCCL WARN {line}'}"
        for r in probe.ranks
        for line in r.nccl_warnings
    ]
    if probe.retried_lazily is not None:
        pieces.append(f"with lazily created communicators: {probe.retried_lazily}")
    return draw_all([*pieces, ""], width=width, colour=colour)


def _head(probe: Probe) -> str:
    hosts = {r.host for r in probe.ranks if r.host}
    where = f" on {len(hosts)} hosts" if len(hosts) > 1 else ""
    return f"probe: {probe.world_size} ranks{where}, backend {probe.backend or 'not chosen'}, {probe.seconds:.1f} s"


def _ranks(probe: Probe, width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    names = ("rank", "host", "reached", "gpu", "local", "torch", "import")[: 4 if width < 60 else 7]
    for name in names:
        table.add_column(name, overflow="fold", justify="right" if name in ("rank", "local", "import") else "left")
    shown = probe.ranks
    if len(shown) > MOST_RANKS:
        shown = tuple(r for r in shown if r.phase != "done")[:MOST_RANKS]
    for each in shown:
        table.add_row(*_row(each)[: len(names)])
    if len(shown) < len(probe.ranks):
        table.caption = f"{len(probe.ranks) - len(shown)} more ranks"
    return table


def _row(each: RankReport) -> tuple[str, ...]:
    gpu = each.gpu if each.gpu is not None else each.cuda_ordinal
    return (
        str(each.rank),
        each.host,
        each.phase,
        "none" if gpu is None else str(gpu),
        "?" if each.local_rank is None else str(each.local_rank),
        each.torch or "not imported",
        "?" if each.import_seconds is None else f"{each.import_seconds:.1f} s",
    )


def _collectives(probe: Probe, width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("collective")
    for name in ("size", "latency", "busbw" if width < 60 else "busbw GB/s"):
        table.add_column(name, justify="right")
    order = list(dict.fromkeys(measurement.collective for measurement in probe.measurements))
    for measurement in sorted(probe.measurements, key=lambda m: (order.index(m.collective), m.size_bytes)):
        table.add_row(
            measurement.collective,
            _size(measurement.size_bytes),
            _time(measurement.latency_seconds),
            _bandwidth(measurement),
        )
    return table


def _rates(probe: Probe) -> list[str]:
    """What the GPUs reached alone, as one line of ranges over all ranks."""
    words = (
        ("gemm_tflops", "bf16 products", "TFLOP/s"),
        ("copy_gb_per_s", "copies in memory", "GB/s"),
        ("to_gpu_gb_per_s", "host to device", "GB/s"),
        ("from_gpu_gb_per_s", "device to host", "GB/s"),
    )
    found = []
    for name, what, unit in words:
        rates = [rank.rates[name] for rank in probe.ranks if name in rank.rates]
        if rates:
            least, most = f"{min(rates):.3g}", f"{max(rates):.3g}"
            found.append(f"{what} {least if least == most else f'{least} to {most}'} {unit}")
    return [f"each device: {', '.join(found)}"] if found else []


def _size(size: int) -> str:
    if size == 0:
        return "-"
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} us"


def _bandwidth(each: Measurement) -> str:
    return "-" if each.busbw_gb_per_s is None else f"{each.busbw_gb_per_s:.3g}"
