"""PROBE011 to PROBE015: a GPU, a node, a link, a rail or a collective that is slower than its neighbours or than before."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ddpdoctor.facts.busbw import expected_busbw
from ddpdoctor.facts.gaps import Why, not_here, unanswered
from ddpdoctor.facts.pairs import PairSpeed, SlowEnd, slow_ends, slow_pairs
from ddpdoctor.facts.probe import Baseline, Measurement, Probe
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause

TIMES = 2
"""How often what was slow must be slow again."""
OF_BASELINE = 0.5
LARGE_BYTES = 256 << 10
"""From here on the bandwidth counts, not the latency; without a GPU few collectives are measured at larger sizes."""
SLOW_RAIL = 0.6


@cause("PROBE011", "slow-gpu", Severity.WARNING)
def slow_gpu(probe: Probe) -> Iterator[Finding]:
    """One GPU exchanges data with all others of its node much slower than they do with each other.

    ## Why it matters
    Every step takes as long as the slowest GPU, and nothing in any log says which one that is.

    ## Fix
    Compare its clocks, temperature, PCIe width and NVLinks with those of its neighbours (ddpdoctor gpus, ddpdoctor topo);
    take it out of the job.
    """
    if probe.backend != "nccl":
        not_here("no GPUs were probed")
    hosts = _hosts(probe)
    pairs = [pair for pair in _need(probe) if hosts.get(pair.first) == hosts.get(pair.second)]
    for end in _sure(pairs, by_cpu=False):
        yield _about_end(probe, end, "the other GPUs of its node")


@cause("PROBE012", "slow-node", Severity.WARNING)
def slow_node(probe: Probe) -> Iterator[Finding]:
    """One node sends or receives much slower than the others, whoever its partner is.

    ## Why it matters
    All collectives run at its pace. A card that negotiated a lower speed, a bad cable, a wrong MTU, a traffic limit or other
    work on the node does this, and no log says so.

    ## Fix
    Look at the speed and the error counters of its network card, at its cable and switch port, and at its load; take it out.
    """
    for end in _sure(_between_hosts(probe), by_cpu=_is_by_cpu(probe)):
        yield _about_end(probe, end, "the other nodes")


@cause("PROBE013", "slow-link", Severity.WARNING)
def slow_link(probe: Probe) -> Iterator[Finding]:
    """Two nodes exchange data with each other much slower than either does with the rest.

    ## Why it matters
    40 s for 4 MB, and not a word: collectives only wait.

    ## Fix
    Look at cables, switch ports, traffic limits and routes between these two nodes.
    """
    pairs = _between_hosts(probe)
    by_cpu = _is_by_cpu(probe)
    slow = {each.end for each in slow_ends(pairs, by_cpu=by_cpu)}
    yield from _slower_than_before(probe, pairs)
    for pair in slow_pairs(pairs, by_cpu=by_cpu):
        if (pair.slow_again or 0) >= TIMES and not slow & {pair.first, pair.second}:
            usual = median(max(p.there_gb_per_s, p.back_gb_per_s) for p in pairs)
            speed = min(pair.there_gb_per_s, pair.back_gb_per_s)
            ends = _hosts(probe).get(pair.first, "?"), _hosts(probe).get(pair.second, "?")
            yield Finding(
                f"{ends[0]} and {ends[1]} exchange {speed:.3g} GB/s with each other, other pairs {usual:.3g} GB/s",
                (Evidence("probe.pairs", f"{speed:.3g}", f"about {usual:.3g}"),),
                where=Where(host=ends[0], peer=ends[1]),
            )


def _slower_than_before(probe: Probe, pairs: list[PairSpeed]) -> Iterator[Finding]:
    """Pairs that reach less than half of what the saved baseline says."""
    before = {(p.first, p.second): p for p in probe.baseline.pairs} if probe.baseline is not None else {}
    for pair in pairs:
        then = before.get((pair.first, pair.second))
        if then is None:
            continue
        now, usual = min((pair.there_gb_per_s, then.there_gb_per_s), (pair.back_gb_per_s, then.back_gb_per_s))
        if now < OF_BASELINE * usual:
            ends = _hosts(probe).get(pair.first, "?"), _hosts(probe).get(pair.second, "?")
            yield Finding(
                f"{ends[0]} and {ends[1]} exchange {now:.3g} GB/s with each other, in the saved baseline {usual:.3g} GB/s",
                (Evidence("probe.pairs", f"{now:.3g}", f"about {usual:.3g}"),),
                where=Where(host=ends[0], peer=ends[1]),
            )


@cause("PROBE014", "slow-rail", Severity.WARNING)
def slow_rail(probe: Probe) -> Iterator[Finding]:
    """The ranks with one local_rank are slower between the nodes than all others.

    ## Why it matters
    Each local_rank has a network card and a switch of its own. One bad switch slows that rail on every node, and each node
    by itself looks well.

    ## Fix
    Look at the switch of this rail, and at the cards that its GPUs use, on every node.
    """
    rails: dict[int, list[float]] = {}
    local_ranks = {each.rank: each.local_rank for each in probe.ranks}
    for pair in _between_hosts(probe):
        local_rank = local_ranks.get(pair.first)
        if local_rank is not None:
            rails.setdefault(local_rank, []).append(min(pair.there_gb_per_s, pair.back_gb_per_s))
    if len(rails) < 3:
        not_here("fewer than three rails were measured")
    speeds = {rail: median(found) for rail, found in rails.items()}
    usual = median(speeds.values())
    for rail, speed in sorted(speeds.items()):
        if speed < SLOW_RAIL * usual:
            yield Finding(
                f"the ranks with local_rank {rail} exchange {speed:.3g} GB/s between the nodes, other rails {usual:.3g} GB/s",
                (Evidence("probe.pairs", f"{speed:.3g}", f"about {usual:.3g}"),),
                where=Where(local_rank=rail),
                ranks=tuple(r.rank for r in probe.ranks if r.local_rank == rail),
            )


@cause("PROBE015", "bandwidth-below-expected", Severity.WARNING)
def bandwidth_below_expected(probe: Probe) -> Iterator[Finding]:
    """A collective reaches less bus bandwidth than these ranks did before, or than this hardware is known to reach.

    ## Why it matters
    The job runs, only slower, and nobody notices without a number to compare with.

    ## Fix
    Look for NCCL_* settings that force a path, for fallbacks to sockets or shared memory, PCIe access control, and slow
    links. `ddpdoctor probe --save-baseline FILE` on a healthy day keeps the numbers to compare with.

    ## Source
    Bus bandwidth as nccl-tests counts it (PERFORMANCE.md); a saved baseline counts before published numbers.
    """
    gap = next((gap for gap in probe.gaps if gap.path == "probe.baseline"), None)
    if gap is not None and gap.why is Why.UNANSWERED:
        unanswered(gap.reason)
    if probe.baseline is not None:
        yield from _below_baseline(probe, probe.baseline)
        return
    hosts = {each.host for each in probe.ranks}
    expected = expected_busbw(probe.device, probe.world_size) if len(hosts) == 1 else None
    best = [m for m in probe.measurements if m.collective == "all_reduce" and m.busbw_gb_per_s is not None]
    if expected is None or not best:
        return
    now = max(best, key=lambda each: each.size_bytes)
    if now.size_bytes >= expected.size_bytes and (now.busbw_gb_per_s or 0.0) < expected.least_gb_per_s:
        yield _below(now, expected.usual_gb_per_s, f"{probe.world_size} {probe.device}", 1)


def _below_baseline(probe: Probe, baseline: Baseline) -> Iterator[Finding]:
    """Where most large transfers take twice as long as before: one of them alone may have had bad luck."""
    before = {(each.collective, each.size_bytes): each for each in baseline.measurements}
    both = [(m, then) for m in probe.measurements if (then := before.get((m.collective, m.size_bytes)))]
    large = [(now, then) for now, then in both if now.size_bytes >= LARGE_BYTES]
    found = [pair for pair in large if _share(*pair) < OF_BASELINE]
    if len(found) * 2 > len(large):
        now, then = min(found, key=lambda pair: _share(*pair))
        yield _below(now, then.busbw_gb_per_s or 0.0, "in the saved baseline", len(found))


def _share(now: Measurement, then: Measurement) -> float:
    return (now.busbw_gb_per_s or 0.0) / then.busbw_gb_per_s if then.busbw_gb_per_s else 1.0


def _below(now: Measurement, usual: float, what: str, count: int) -> Finding:
    more = f" (and {count - 1} more collectives and sizes)" if count > 1 else ""
    size = f"{now.size_bytes >> 20} MiB" if now.size_bytes >> 20 else f"{now.size_bytes >> 10} KiB"
    return Finding(
        f"{now.collective} of {size} reaches {now.busbw_gb_per_s:.3g} GB/s bus bandwidth,"
        f" {what}: {usual:.3g} GB/s{more}",
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
    return {each.rank: each.host for each in probe.ranks}


def _is_by_cpu(probe: Probe) -> bool:
    """Whether the CPU moves the bytes, which has other work to do."""
    return probe.backend != "nccl"


def _sure(pairs: list[PairSpeed], *, by_cpu: bool) -> Iterator[SlowEnd]:
    """The slow ends whose pairs were slow whenever they were measured; of one end the worst."""
    told: set[int] = set()
    for end in sorted(slow_ends(pairs, by_cpu=by_cpu), key=lambda each: each.what == "answers"):
        own = [p.slow_again for p in pairs if end.end in (p.first, p.second) and p.slow_again is not None]
        if end.end not in told and own and min(own) >= TIMES:
            told.add(end.end)
            yield end


def _about_end(probe: Probe, end: SlowEnd, others: str) -> Finding:
    report = probe.report_of(end.end)
    host = report.host if report is not None else f"rank {end.end}"
    value, usual = f"{end.value:.3g} GB/s", f"{end.usual:.3g} GB/s"
    if end.what == "answers":
        value, usual = f"{end.value * 1e3:.3g} ms", f"{end.usual * 1e3:.3g} ms"
    verb = "answers after" if end.what == "answers" else end.what
    return Finding(
        f"rank {end.end} on {host} {verb} {value}, {others} {usual}",
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
