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
"""The first NCCL that finds the GID index by itself."""
LEAST_TIMEOUT, MOST_TIMEOUT = 14, 24
MOST_SHOWN = 4


@cause("ENV028", "nccl-ib-hca-no-match", Severity.WARNING)
def nccl_ib_hca_no_match(environ: Environ, net: Net) -> Iterator[Finding]:
    """NCCL_IB_HCA matches no active RDMA port of this node.

    ## Why it matters
    NCCL falls back to TCP, 10 to 20 times slower between nodes, and reports it only at INFO: `NET/IB : No device
    found.`

    ## Fix
    Set NCCL_IB_HCA to devices whose ports are active (`ibv_devinfo` lists them), or unset it.

    ## Example

        NCCL INFO NET/IB : No device found.

        # before: the active port is mlx5_1
        export NCCL_IB_HCA=mlx5_0
        # after
        unset NCCL_IB_HCA

    ## Source
    NCCL documentation, NCCL_IB_HCA; src/misc/utils.cc: matchIfList.
    """
    spec = value(environ, HCA)
    if spec is None:
        return
    rdma = _rdma(net)
    if not rdma.used(spec):
        up = list(dict.fromkeys(device.name for device, port in rdma.ports if port.is_active))
        active = up[:MOST_SHOWN] + ["…"] * (len(up) > MOST_SHOWN)
        wrong = f"matches no active RDMA port (active: {', '.join(active)})"
        yield about(environ, HCA, wrong, f"one of {', '.join(up)[:200]}")


@cause("ENV029", "nccl-ib-hca-prefix-match", Severity.WARNING)
def nccl_ib_hca_prefix_match(environ: Environ, net: Net) -> Iterator[Finding]:
    """NCCL_IB_HCA matches more RDMA devices than it names.

    ## Why it matters
    Names are prefixes: mlx5_1 also matches mlx5_10 to mlx5_19, and NCCL then also uses ports for storage or
    management.

    ## Fix
    Write the exact form, with a second equals sign: `export NCCL_IB_HCA==mlx5_1`.

    ## Example

        NCCL_IB_HCA=mlx5_1 matches mlx5_10, mlx5_11 besides mlx5_1

        # before
        export NCCL_IB_HCA=mlx5_1
        # after
        export NCCL_IB_HCA==mlx5_1

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
            wrong = f"matches {', '.join(extra)[:100]} besides {item}"
            yield about(environ, HCA, wrong, f"={spec[:80]}, the exact form", command=command)
            return


@cause("ENV040", "nccl-ib-timeout-extreme", Severity.WARNING)
def nccl_ib_timeout_extreme(environ: Environ) -> Iterator[Finding]:
    """NCCL_IB_TIMEOUT or NCCL_IB_RETRY_CNT has an extreme value.

    ## Why it matters
    The timeout is 4.096 µs * 2^n: 0, and 32 or more, wait forever for a lost packet, 25 or more for minutes, and a
    small one fails during a short congestion. A retry count of 0 ends the job at the first lost packet.

    ## Fix
    Unset both, or keep NCCL_IB_TIMEOUT between 18 and 23 and NCCL_IB_RETRY_CNT at 7.

    ## Example

        NCCL_IB_TIMEOUT=0 waits forever for a lost packet

        # before
        export NCCL_IB_TIMEOUT=0
        # after
        unset NCCL_IB_TIMEOUT

    ## Source
    NCCL documentation, NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT; InfiniBand specification, Local Ack Timeout.
    """
    name = "NCCL_IB_TIMEOUT"
    wait = number(environ, name)
    if wait is not None and (wait <= 0 or wait >= 32):
        yield about(environ, name, "waits forever for a lost packet", "18 to 23, or unset")
    elif wait is not None and not LEAST_TIMEOUT <= wait <= MOST_TIMEOUT:
        seconds = 4.096e-6 * 2**wait
        yield about(environ, name, f"waits {seconds:.2g} s for each packet", "18 to 23, or unset")
    tries = number(environ, "NCCL_IB_RETRY_CNT")
    if tries is not None and tries <= 0:
        yield about(environ, "NCCL_IB_RETRY_CNT", "ends the job at the first lost packet", "7, or unset")
    elif tries is not None and tries > 7:
        yield about(environ, "NCCL_IB_RETRY_CNT", "exceeds 7, the maximum (three bits)", "7")


@cause("ENV041", "nccl-ib-gid-index-forced", Severity.WARNING)
def nccl_ib_gid_index_forced(environ: Environ, net: Net, versions: Versions | None = None) -> Iterator[Finding]:
    """NCCL_IB_GID_INDEX is set but not needed, or is not the index of a RoCE v2 entry.

    ## Why it matters
    The same index is RoCE v2 on one machine and something else on the next; the usual error is `Call to
    ibv_modify_qp failed … Invalid argument`. NCCL 2.21 and later find the index themselves.

    ## Fix
    Unset NCCL_IB_GID_INDEX with NCCL 2.21 or later; with older releases, set it on each node to the index of the
    RoCE v2 IPv4 entry (`show_gids`).

    ## Example

        NCCL WARN Call to ibv_modify_qp failed with error Invalid argument

        # before: index 3 is RoCE v1 on this node
        export NCCL_IB_GID_INDEX=3
        # after
        unset NCCL_IB_GID_INDEX

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
        yield about(environ, GID_INDEX, f"is not a RoCE v2 entry of {', '.join(wrong)[:100]}", "unset")
    elif version is not None and numbers(version) >= FINDS_GIDS:
        finds = f"is not needed: NCCL {version} finds the index of each port itself"
        yield about(environ, GID_INDEX, finds, "unset", severity=Severity.NOTE)


def _is_v2(port: RdmaPort, index: int) -> bool:
    """Whether the port has a RoCE v2 entry with this index; also True for a port whose entries could not be read."""
    entry = next((gid for gid in port.gids if gid.index == index), None)
    return not port.gids or (entry is not None and entry.kind in ("RoCE v2", None))


def _rdma(net: Net) -> Rdma:
    """The adapters of this node, or a skip if no port is active."""
    rdma = net.need(net.rdma, "rdma")
    if not any(port.is_active for _, port in rdma.ports):
        not_here("no active RDMA port here")
    return rdma
