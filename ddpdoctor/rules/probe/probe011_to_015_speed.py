"""PROBE011 to PROBE015: a GPU, a node, a link, a rail, or a collective that is slower than others or than before."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.busbw import expected_busbw
from ddpdoctor.facts.gaps import Why, not_here, unanswered
from ddpdoctor.facts.pairs import PairSpeed, SlowEnd, slow_ends, slow_pairs
from ddpdoctor.facts.probe import Baseline, Measurement, Probe
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause

TIMES = 2
"""How often a slow pair must be slow again."""
OF_BASELINE = 0.5
LARGE_BYTES = 256 << 10
"""From this size on the bandwidth matters, not the latency; without a GPU few larger collectives are measured."""
SLOW_RAIL = 0.6


@cause("PROBE011", "slow-gpu", Severity.WARNING)
def slow_gpu(probe: Probe) -> Iterator[Finding]:
    """One GPU exchanges data much more slowly than the other GPUs of its node.

    ## Why it matters
    Every step takes as long as the slowest GPU, and no log shows which one that is.

    ## Fix
    Compare its clocks, temperature, PCIe width, and NVLinks with those of the other GPUs (`ddpdoctor gpus`,
    `ddpdoctor topo`); take it out of the job.

    ## Example

        rank 3 on a sends 21 GB/s (other GPUs of its node: 204 GB/s)

        # before: GPU 3 is slow
        torchrun --nproc-per-node 8 train.py
        # after: without GPU 3
        CUDA_VISIBLE_DEVICES=0,1,2,4,5,6,7 torchrun --nproc-per-node 7 train.py
    """
    if probe.backend != "nccl":
        not_here("no GPUs were probed")
    hosts = _hosts(probe)
    pairs = [pair for pair in _need(probe) if hosts.get(pair.first) == hosts.get(pair.second)]
    for end in _sure(pairs, by_cpu=False):
        yield _about_end(probe, end, "other GPUs of its node")


@cause("PROBE012", "slow-node", Severity.WARNING)
def slow_node(probe: Probe) -> Iterator[Finding]:
    """One node sends or receives much more slowly than the others, with every partner.

    ## Why it matters
    All collectives run at its speed, and no log shows it. A card that negotiated a lower speed, a bad cable, a
    wrong MTU, a traffic limit, or other processes on the node cause this.

    ## Fix
    Check the speed and the error counters of its network card, its cable and switch port, and its load; take the
    node out of the job.

    ## Example

        rank 2 on c sends 0.02 GB/s (other nodes: 2.2 GB/s)

        # before, with Slurm
        sbatch job.sh
        # after: without node c
        sbatch --exclude=c job.sh
    """
    for end in _sure(_between_hosts(probe), by_cpu=_is_by_cpu(probe)):
        yield _about_end(probe, end, "other nodes")


@cause("PROBE013", "slow-link", Severity.WARNING)
def slow_link(probe: Probe) -> Iterator[Finding]:
    """Two nodes exchange data with each other much more slowly than with the other nodes.

    ## Why it matters
    A transfer of 4 MB may take 40 s without a message: collectives only wait.

    ## Fix
    Check cables, switch ports, traffic limits, and routes between these two nodes.

    ## Example

        b and c exchange 0.1 GB/s with each other (other pairs: 2.05 GB/s)

        # before: 4 nodes, with the bad link
        sbatch --nodes=4 job.sh
        # after: until the link is repaired
        sbatch --nodes=3 --exclude=c job.sh
    """
    from statistics import median  # imports fractions and decimal

    pairs = _between_hosts(probe)
    by_cpu = _is_by_cpu(probe)
    slow = {slow_end.end for slow_end in slow_ends(pairs, by_cpu=by_cpu)}
    yield from _slower_than_before(probe, pairs)
    for pair in slow_pairs(pairs, by_cpu=by_cpu):
        if (pair.slow_again or 0) >= TIMES and not slow & {pair.first, pair.second}:
            usual = median(max(p.there_gb_per_s, p.back_gb_per_s) for p in pairs)
            speed = min(pair.there_gb_per_s, pair.back_gb_per_s)
            ends = _hosts(probe).get(pair.first, "?"), _hosts(probe).get(pair.second, "?")
            yield Finding(
                f"{ends[0]} and {ends[1]} exchange {speed:.3g} GB/s with each other (other pairs: {usual:.3g} GB/s)",
                (Evidence("probe.pairs", f"{speed:.3g}", f"about {usual:.3g}"),),
                where=Where(host=ends[0], peer=ends[1]),
            )


def _slower_than_before(probe: Probe, pairs: list[PairSpeed]) -> Iterator[Finding]:
    """Pairs that reach less than half of the saved baseline."""
    before = {(p.first, p.second): p for p in probe.baseline.pairs} if probe.baseline is not None else {}
    for pair in pairs:
        then = before.get((pair.first, pair.second))
        if then is None:
            continue
        now, usual = min((pair.there_gb_per_s, then.there_gb_per_s), (pair.back_gb_per_s, then.back_gb_per_s))
        if now < OF_BASELINE * usual:
            ends = _hosts(probe).get(pair.first, "?"), _hosts(probe).get(pair.second, "?")
            yield Finding(
                f"{ends[0]} and {ends[1]} exchange {now:.3g} GB/s with each other (saved baseline: {usual:.3g} GB/s)",
                (Evidence("probe.pairs", f"{now:.3g}", f"about {usual:.3g}"),),
                where=Where(host=ends[0], peer=ends[1]),
            )


@cause("PROBE014", "slow-rail", Severity.WARNING)
def slow_rail(probe: Probe) -> Iterator[Finding]:
    """The ranks with one local_rank are slower between the nodes than all others.

    ## Why it matters
    Each local_rank has its own network card and switch. One bad switch slows that rail on every node, and each node
    alone looks healthy.

    ## Fix
    Check the switch of this rail, and the cards that its GPUs use, on every node.

    ## Example

        the ranks with local_rank 2 exchange 11 GB/s between nodes (other rails: 45 GB/s)

        # before: NCCL uses all rails
        torchrun --nnodes 4 --nproc-per-node 8 … train.py
        # after, on every node: without the card of that rail, mlx5_2
        NCCL_IB_HCA=^=mlx5_2 torchrun --nnodes 4 --nproc-per-node 8 … train.py
    """
    from statistics import median  # imports fractions and decimal

    rails: dict[int, list[float]] = {}
    local_ranks = {report.rank: report.local_rank for report in probe.ranks}
    for pair in _between_hosts(probe):
        local_rank = local_ranks.get(pair.first)
        if local_rank is not None:
            rails.setdefault(local_rank, []).append(min(pair.there_gb_per_s, pair.back_gb_per_s))
    if len(rails) < 3:
        not_here("fewer than three rails were measured")
    speeds = {rail: median(measured) for rail, measured in rails.items()}
    usual = median(speeds.values())
    for rail, speed in sorted(speeds.items()):
        if speed < SLOW_RAIL * usual:
            yield Finding(
                f"the ranks with local_rank {rail} exchange {speed:.3g} GB/s between nodes (other rails: {usual:.3g} GB/s)",
                (Evidence("probe.pairs", f"{speed:.3g}", f"about {usual:.3g}"),),
                where=Where(local_rank=rail),
                ranks=tuple(r.rank for r in probe.ranks if r.local_rank == rail),
            )


@cause("PROBE015", "bandwidth-below-expected", Severity.WARNING)
def bandwidth_below_expected(probe: Probe) -> Iterator[Finding]:
    """A collective reaches less bus bandwidth than before, or than this hardware usually reaches.

    ## Why it matters
    The job runs, only slower, and without a number to compare with it stays unnoticed.

    ## Fix
    Look for NCCL_* settings that force a path, for fallbacks to sockets or shared memory, PCIe access control, and
    slow links. Run `ddpdoctor probe --save-baseline FILE` while the machine is healthy, to have numbers to compare
    with.

    ## Example

        all_reduce of 256 MiB reaches 22 GB/s bus bandwidth (8 NVIDIA H100 80GB HBM3: 470 GB/s)

        # before
        export NCCL_P2P_DISABLE=1
        # after
        unset NCCL_P2P_DISABLE

    ## Source
    Bus bandwidth as nccl-tests counts it (PERFORMANCE.md); a saved baseline counts before published numbers.
    """
    gap = next((gap for gap in probe.gaps if gap.path == "probe.baseline"), None)
    if gap is not None and gap.why is Why.UNANSWERED:
        unanswered(gap.reason)
    if probe.baseline is not None:
        yield from _below_baseline(probe, probe.baseline)
        return
    hosts = {report.host for report in probe.ranks}
    expected = expected_busbw(probe.device, probe.world_size) if len(hosts) == 1 else None
    best = [m for m in probe.measurements if m.collective == "all_reduce" and m.busbw_gb_per_s is not None]
    if expected is None or not best:
        not_here("no bus bandwidth is published for this GPU model, number and collective, and no baseline is saved")
    now = max(best, key=lambda measurement: measurement.size_bytes)
    if now.size_bytes >= expected.size_bytes and (now.busbw_gb_per_s or 0.0) < expected.least_gb_per_s:
        yield _below(now, expected.usual_gb_per_s, f"{probe.world_size} {probe.device}", 1)


def _below_baseline(probe: Probe, baseline: Baseline) -> Iterator[Finding]:
    """Reported if most large transfers take twice as long as before: a single one may be chance."""
    before = {(then.collective, then.size_bytes): then for then in baseline.measurements}
    both = [(m, then) for m in probe.measurements if (then := before.get((m.collective, m.size_bytes)))]
    large = [(now, then) for now, then in both if now.size_bytes >= LARGE_BYTES]
    slower = [pair for pair in large if _share(*pair) < OF_BASELINE]
    if len(slower) * 2 > len(large):
        now, then = min(slower, key=lambda pair: _share(*pair))
        yield _below(now, then.busbw_gb_per_s or 0.0, "saved baseline", len(slower))


def _share(now: Measurement, then: Measurement) -> float:
    return (now.busbw_gb_per_s or 0.0) / then.busbw_gb_per_s if then.busbw_gb_per_s else 1.0


def _below(now: Measurement, usual: float, what: str, count: int) -> Finding:
    more = f"; {count - 1} more below half" if count > 1 else ""
    size = f"{now.size_bytes >> 20} MiB" if now.size_bytes >> 20 else f"{now.size_bytes >> 10} KiB"
    return Finding(
        f"{now.collective} of {size} reaches {now.busbw_gb_per_s:.3g} GB/s bus bandwidth"
        f" ({what}: {usual:.3g} GB/s{more})",
        (Evidence(f"probe.measurements.{now.collective}", f"{now.busbw_gb_per_s:.3g}", f"about {usual:.3g}"),),
    )


def _need(probe: Probe) -> tuple[PairSpeed, ...]:
    """The pairs that were measured.

    Raises:
        CannotLook: none was.
    """
    if not probe.pairs:
        not_here("no pairs of ranks were measured")
    return probe.pairs


def _between_hosts(probe: Probe) -> list[PairSpeed]:
    hosts = _hosts(probe)
    return [pair for pair in _need(probe) if hosts.get(pair.first) != hosts.get(pair.second)]


def _hosts(probe: Probe) -> dict[int, str]:
    return {report.rank: report.host for report in probe.ranks}


def _is_by_cpu(probe: Probe) -> bool:
    """Whether the CPU moves the bytes, which also does other work."""
    return probe.backend != "nccl"


def _sure(pairs: list[PairSpeed], *, by_cpu: bool) -> Iterator[SlowEnd]:
    """The slow ends whose pairs were slow in every measurement; the worst measurement of each end."""
    reported: set[int] = set()
    for slow in sorted(slow_ends(pairs, by_cpu=by_cpu), key=lambda end: end.what == "answers"):
        own = [p.slow_again for p in pairs if slow.end in (p.first, p.second) and p.slow_again is not None]
        if slow.end not in reported and own and min(own) >= TIMES:
            reported.add(slow.end)
            yield slow


def _about_end(probe: Probe, end: SlowEnd, others: str) -> Finding:
    report = probe.report_of(end.end)
    host = report.host if report is not None else f"rank {end.end}"
    value, usual = f"{end.value:.3g} GB/s", f"{end.usual:.3g} GB/s"
    if end.what == "answers":
        value, usual = f"{end.value * 1e3:.3g} ms", f"{end.usual * 1e3:.3g} ms"
    verb = "answers after" if end.what == "answers" else end.what
    return Finding(
        f"rank {end.end} on {host} {verb} {value} ({others}: {usual})",
        (Evidence(f"probe.pairs.{end.what}", value, f"about {usual}"),),
        where=Where(
            host=host,
            node_rank=report.node_rank if report else None,
            rank=end.end,
            local_rank=report.local_rank if report else None,
            gpu=report.gpu if report else None,
        ),
        ranks=(end.end,),
    )
