"""NET037 to NET039: RDMA ports that are down, slow or full of errors."""

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
"""One of these is enough: the link was lost or trained again."""


@cause("NET037", "ib-port-down", Severity.WARNING)
def ib_port_down(environ: Environ, net: Net, gpu: Gpu | None = None) -> Iterator[Finding]:
    """An RDMA port is down.

    ## Why it matters
    NCCL leaves it out without a word and shares the rest; with the only port down it takes TCP.

    ## Fix
    Check the cable and the switch port; INIT means that no subnet manager answers.

    ## Source
    /sys/class/infiniband/*/ports/*/state and phys_state.
    """
    rdma = needs_rdma(environ, net, gpu)
    is_all = not any(p.is_active for _, p in rdma.ports)
    for device, port in rdma.ports:
        if port.state is None or port.is_active or not takes(environ.settings.get(HCA), device.name, port.number):
            continue
        # The second port of an Ethernet card is often left empty on purpose: then as many of its kind are down as up.
        is_meant = is_all or named(environ, device) or not port.is_roce or _is_odd(rdma, device)
        physical = f", {port.physical_state}" if port.physical_state else ""
        yield Finding(
            f"RDMA port {port.number} of {device.name} is {port.state}{physical}; expected ACTIVE",
            (Evidence("net.rdma.devices", f"{device.name}:{port.number} {port.state}", "ACTIVE"),),
            fix_command=f"ibstat {device.name} {port.number}",
            severity=None if is_meant else Severity.NOTE,
        )


def _is_odd(rdma: Rdma, device: RdmaDevice) -> bool:
    """Whether at least three quarters of four or more ports of this kind of card are up."""
    alike = [port for other, port in rdma.ports if other.kind == device.kind and port.is_roce]
    return len(alike) >= 4 and sum(port.is_active for port in alike) * 4 >= 3 * len(alike)


@cause("NET038", "ib-port-rate-low", Severity.WARNING)
def ib_port_rate_low(environ: Environ, net: Net, gpu: Gpu | None = None) -> Iterator[Finding]:
    """An RDMA port runs below the rate of the other ports of its kind.

    ## Why it matters
    Every ring is as slow as its slowest port, and there is no message.

    ## Fix
    Reseat or replace the cable or the transceiver; check the switch port.

    ## Source
    /sys/class/infiniband/*/ports/*/rate, held against most ports of the same kind of card; an InfiniBand link of one lane.
    """
    rdma = needs_rdma(environ, net, gpu)
    ports = used(environ, rdma)
    for device, port in ports:
        usual = _usual(device, port, ports)
        rate = port.rate_gbit_per_s
        is_narrow = port.width == 1 and port.link_layer == "InfiniBand"
        if rate is None or (rate >= usual and not is_narrow):
            continue
        lanes = ", one lane" if is_narrow else ""
        expected = f"{usual:g} Gb/s" if rate < usual else "four lanes"
        yield Finding(
            f"RDMA port {port.number} of {device.name} runs at {rate:g} Gb/s{lanes}; expected {expected}",
            (Evidence("net.rdma.devices", f"{device.name}:{port.number} {rate:g} Gb/s", expected),),
        )


def _usual(device: RdmaDevice, port: RdmaPort, ports: tuple[tuple[RdmaDevice, RdmaPort], ...]) -> float:
    """The rate of more than half of the ports of this kind of card, 0 where there is no such rate."""
    rates = [p.rate_gbit_per_s for d, p in ports if d.kind == device.kind and p.link_layer == port.link_layer]
    known = Counter(rate for rate in rates if rate is not None)
    rate, times = max(known.items(), key=lambda item: item[1], default=(0.0, 0))
    return rate if 2 * times > len(rates) else 0.0


@cause("NET039", "ib-port-errors", Severity.WARNING)
def ib_port_errors(environ: Environ, net: Net, gpu: Gpu | None = None) -> Iterator[Finding]:
    """The error counters of an RDMA port grow while we look.

    ## Why it matters
    Packets are sent again; the link may flap next, and end the job with completion error 12.

    ## Fix
    Replace the cable or the transceiver, and watch the counters.

    ## Source
    /sys/class/infiniband/*/ports/*/counters and hw_counters, read twice. What they gathered over the driver's life says nothing.
    """
    rdma = needs_rdma(environ, net, gpu)
    for device, port in used(environ, rdma):
        if any(name in AT_ONCE for name in port.growth) or sum(port.growth.values()) >= GROWTH_LEAST:
            yield _growing(rdma, device, port)


def _growing(rdma: Rdma, device: RdmaDevice, port: RdmaPort) -> Finding:
    grown = ", ".join(f"{name} by {count}" for name, count in sorted(port.growth.items()))
    within = f" in {rdma.sample_seconds:g} s" if rdma.sample_seconds else ""
    return Finding(
        f"counters of RDMA port {port.number} of {device.name} grew{within}: {grown}; expected no growth",
        (Evidence("net.rdma.devices", f"{device.name}:{port.number} {grown}", "no growth"),),
    )
