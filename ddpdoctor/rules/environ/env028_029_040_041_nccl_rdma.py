"""ENV028, ENV029, ENV040, ENV041: settings about RDMA devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.versions import Versions, numbers
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.environ.settings import about, number, value

if TYPE_CHECKING:
    from ddpdoctor.facts.net import Net
    from ddpdoctor.facts.rdma import Rdma, RdmaPort

__all__ = ["nccl_ib_gid_index_forced", "nccl_ib_hca_no_match", "nccl_ib_hca_prefix_match", "nccl_ib_timeout_extreme"]

HCA = "NCCL_IB_HCA"
GID_INDEX = "NCCL_IB_GID_INDEX"
FINDS_GIDS = (2, 21)
"""The first NCCL that looks for the GID index by itself."""
LEAST_TIMEOUT, MOST_TIMEOUT = 14, 24


@cause("ENV028", "nccl-ib-hca-no-match", Severity.WARNING)
def nccl_ib_hca_no_match(environ: Environ, net: Net) -> Iterator[Finding]:
    """NCCL_IB_HCA matches no active RDMA port of this node.

    ## Why it matters
    NCCL falls back to TCP and says so at INFO only ("NET/IB : No device found."): ten to twenty times slower between
    nodes.

    ## Fix
    Correct NCCL_IB_HCA after the list of ports that are up, or unset it.

    ## Source
    NCCL documentation, NCCL_IB_HCA; src/misc/utils.cc: matchIfList.
    """
    spec = value(environ, HCA)
    if spec is None:
        return
    rdma = _rdma(net)
    if not rdma.used(spec):
        up = ", ".join(dict.fromkeys(device.name for device, port in rdma.ports if port.is_active))
        yield about(environ, HCA, "matches no active RDMA port of this node", f"one of {up[:200]}")


@cause("ENV029", "nccl-ib-hca-prefix-match", Severity.WARNING)
def nccl_ib_hca_prefix_match(environ: Environ, net: Net) -> Iterator[Finding]:
    """NCCL_IB_HCA takes more RDMA devices than it names.

    ## Why it matters
    Names are beginnings: mlx5_1 takes mlx5_10 to mlx5_19 too, and ports for storage or management join in.

    ## Fix
    Write the exact form, with a second equals sign.

    ## Source
    NCCL documentation, NCCL_IB_HCA; src/misc/utils.cc: matchIfList.
    """
    spec = value(environ, HCA)
    if spec is None or spec[0] in "^=":
        return
    taken = list(dict.fromkeys(device.name for device, _ in _rdma(net).used(spec)))
    listed = [item.partition(":")[0] for item in spec.split(",")]
    for item in listed:
        extra = [name for name in taken if name.startswith(item) and name not in listed]
        if item in taken and extra:
            command = f"export {HCA}=={spec}" if environ.source(HCA)[1] is None else None
            wrong = f"takes {', '.join(extra)[:100]} besides {item}"
            yield about(environ, HCA, wrong, f"={spec[:80]}, the exact form", command=command)
            return


@cause("ENV040", "nccl-ib-timeout-extreme", Severity.WARNING)
def nccl_ib_timeout_extreme(environ: Environ) -> Iterator[Finding]:
    """NCCL_IB_TIMEOUT or NCCL_IB_RETRY_CNT has an extreme value.

    ## Why it matters
    The timeout is 4.096 µs * 2^n: 0, and 32 and more, wait for ever on a lost packet, 25 and more for minutes, and a
    small one gives up in a short congestion. A retry count of 0 ends the job at the first lost packet.

    ## Fix
    Unset both, or keep NCCL_IB_TIMEOUT between 18 and 23 and NCCL_IB_RETRY_CNT at 7.

    ## Source
    NCCL documentation, NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT; InfiniBand specification, Local Ack Timeout.
    """
    name = "NCCL_IB_TIMEOUT"
    wait = number(environ, name)
    if wait is not None and (wait <= 0 or wait >= 32):
        yield about(environ, name, "waits for ever on a lost packet", "18 to 23, or to be unset")
    elif wait is not None and not LEAST_TIMEOUT <= wait <= MOST_TIMEOUT:
        each = 4.096e-6 * 2**wait
        yield about(environ, name, f"waits {each:.2g} s for each packet", "18 to 23, or to be unset")
    tries = number(environ, "NCCL_IB_RETRY_CNT")
    if tries is not None and tries <= 0:
        yield about(environ, "NCCL_IB_RETRY_CNT", "ends the job at the first lost packet", "7, or to be unset")
    elif tries is not None and tries > 7:
        yield about(environ, "NCCL_IB_RETRY_CNT", "does not fit into the three bits of an RDMA retry count", "7")


@cause("ENV041", "nccl-ib-gid-index-forced", Severity.WARNING)
def nccl_ib_gid_index_forced(environ: Environ, net: Net, versions: Versions | None = None) -> Iterator[Finding]:
    """NCCL_IB_GID_INDEX is forced and not needed, or no RoCE v2 entry.

    ## Why it matters
    The entry with this index is RoCE v2 on one machine and something else on the next; "Call to ibv_modify_qp failed …
    Invalid argument" is the usual sign. Since 2.21 NCCL finds the entry by itself.

    ## Fix
    Unset NCCL_IB_GID_INDEX with NCCL 2.21 or later; before, set it to the RoCE v2 IPv4 entry of each node (show_gids).

    ## Source
    NCCL documentation, NCCL_IB_GID_INDEX.
    """
    index = number(environ, GID_INDEX)
    if index is None or index < 0:
        return
    rdma = _rdma(net)
    wrong = [device.name for device, port in rdma.used(value(environ, HCA)) if port.is_roce and not _is_v2(port, index)]
    version = versions.nccl.version if versions is not None and versions.nccl is not None else None
    if wrong:
        yield about(environ, GID_INDEX, f"is no RoCE v2 entry of {', '.join(wrong)[:100]}", "it to be unset")
    elif version is not None and numbers(version) >= FINDS_GIDS:
        finds = f"is not needed: NCCL {version} finds the entry of each port by itself"
        yield about(environ, GID_INDEX, finds, "it to be unset", severity=Severity.NOTE)


def _is_v2(port: RdmaPort, index: int) -> bool:
    """Whether the port has a RoCE v2 entry with this index; True also for a port whose entries nobody could read."""
    entry = next((gid for gid in port.gids if gid.index == index), None)
    return not port.gids or (entry is not None and entry.kind in ("RoCE v2", None))


def _rdma(net: Net) -> Rdma:
    """The adapters of this node, or a skip where no port is up."""
    rdma = net.need(net.rdma, "rdma")
    if not any(port.is_active for _, port in rdma.ports):
        not_here("no active RDMA port here")
    return rdma
