"""NET037 to NET039: RDMA ports that are down, slow or have errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.net import Net
from ddpdoctor.facts.rdma import Rdma, RdmaDevice, RdmaPort, takes
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.net.rdma_use import HCA, named, needs_rdma, used

GROWTH_LEAST = 2
AT_ONCE = ("link_downed", "link_error_recovery")
"""One of these is enough: the link was lost or retrained."""


@cause("NET037", "ib-port-down", Severity.WARNING)
def ib_port_down(environ: Environ, net: Net, gpu: Gpu | None = None) -> Iterator[Finding]:
    """An RDMA port is down.

    ## Why it matters
    NCCL skips the port without a message and uses the others; if it is the only port, NCCL uses TCP.

    ## Fix
    Check the cable and the switch port of that node; state INIT means that no subnet manager answers.

    ## Example
    ddpdoctor's message:

        RDMA port 1 of mlx5_2 is DOWN (Polling)

    On that node:

        ibstat mlx5_2 1

    ## Source
    /sys/class/infiniband/*/ports/*/state and phys_state.
    """
    rdma = needs_rdma(environ, net, gpu)
    is_all = not any(p.is_active for _, p in rdma.ports)
    for device, port in rdma.ports:
        if port.state is None or port.is_active or not takes(environ.settings.get(HCA), device.name, port.number):
            continue
        # The second port of an Ethernet card is often unused on purpose: then as many of its kind are down as up.
        should_be_up = is_all or named(environ, device) or not port.is_roce or _most_are_up(rdma, device)
        physical = f" ({port.physical_state})" if port.physical_state else ""
        yield Finding(
            f"RDMA port {port.number} of {device.name} is {port.state}{physical}",
            (Evidence("net.rdma.devices", f"{device.name}:{port.number} {port.state}", "ACTIVE"),),
            fix_command=f"ibstat {device.name} {port.number}",
            severity=None if should_be_up else Severity.NOTE,
        )


def _most_are_up(rdma: Rdma, device: RdmaDevice) -> bool:
    """Whether at least three quarters of four or more ports of this kind of card are up."""
    same_kind = [port for other, port in rdma.ports if other.kind == device.kind and port.is_roce]
    return len(same_kind) >= 4 and sum(port.is_active for port in same_kind) * 4 >= 3 * len(same_kind)


@cause("NET038", "ib-port-rate-low", Severity.WARNING)
def ib_port_rate_low(environ: Environ, net: Net, gpu: Gpu | None = None) -> Iterator[Finding]:
    """An RDMA port is slower than the other ports of its kind.

    ## Why it matters
    Every ring is as slow as its slowest port, and nothing is printed.

    ## Fix
    Reseat or replace the cable or the transceiver of that port; check the switch port.

    ## Example
    ddpdoctor's message:

        RDMA port 1 of mlx5_2 runs at 200 Gb/s instead of 400 Gb/s

    On that node:

        ibstat mlx5_2 1
        cat /sys/class/infiniband/*/ports/*/rate

    ## Source
    /sys/class/infiniband/*/ports/*/rate, compared with most ports of the same kind of card; an InfiniBand link with one lane.
    """
    rdma = needs_rdma(environ, net, gpu)
    ports = used(environ, rdma)
    for device, port in ports:
        usual = _usual(device, port, ports)
        rate = port.rate_gbit_per_s
        is_narrow = port.width == 1 and port.link_layer == "InfiniBand"
        if rate is None or (rate >= usual and not is_narrow):
            continue
        lanes = " on one lane" if is_narrow else ""
        expected = f"{usual:g} Gb/s" if rate < usual else "four lanes"
        yield Finding(
            f"RDMA port {port.number} of {device.name} runs at {rate:g} Gb/s{lanes} instead of {expected}",
            (Evidence("net.rdma.devices", f"{device.name}:{port.number} {rate:g} Gb/s", expected),),
        )


def _usual(device: RdmaDevice, port: RdmaPort, ports: tuple[tuple[RdmaDevice, RdmaPort], ...]) -> float:
    """The rate of more than half of the ports of this kind of card, 0 if there is none."""
    rates = [p.rate_gbit_per_s for d, p in ports if d.kind == device.kind and p.link_layer == port.link_layer]
    known = Counter(rate for rate in rates if rate is not None)
    rate, times = max(known.items(), key=lambda item: item[1], default=(0.0, 0))
    return rate if 2 * times > len(rates) else 0.0


@cause("NET039", "ib-port-errors", Severity.WARNING)
def ib_port_errors(environ: Environ, net: Net, gpu: Gpu | None = None) -> Iterator[Finding]:
    """The error counters of an RDMA port are growing.

    ## Why it matters
    Packets are sent again. The link may flap next, and end the job with completion error 12.

    ## Fix
    Replace the cable or the transceiver of that port, and watch the counters.

    ## Example
    ddpdoctor's message:

        RDMA port 1 of mlx5_0: error counters grew in 0.05 s (symbol_error by 40)

    On that node, twice, a minute apart:

        grep -H . /sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error

    ## Source
    /sys/class/infiniband/*/ports/*/counters and hw_counters, read twice. The totals over the driver's life are not used.
    """
    rdma = needs_rdma(environ, net, gpu)
    for device, port in used(environ, rdma):
        if any(name in AT_ONCE for name in port.growth) or sum(port.growth.values()) >= GROWTH_LEAST:
            yield _growing(rdma, device, port)


def _growing(rdma: Rdma, device: RdmaDevice, port: RdmaPort) -> Finding:
    grown = ", ".join(f"{name} by {count}" for name, count in sorted(port.growth.items()))
    within = f" in {rdma.sample_seconds:g} s" if rdma.sample_seconds else ""
    return Finding(
        f"RDMA port {port.number} of {device.name}: error counters grew{within} ({grown})",
        (Evidence("net.rdma.devices", f"{device.name}:{port.number} {grown}", "no growth"),),
    )
