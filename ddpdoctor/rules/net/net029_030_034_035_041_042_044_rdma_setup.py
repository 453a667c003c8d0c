"""NET029 to NET044: RDMA ports that NCCL takes and cannot use well, or would like to take and cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.host import Host, visible_gpus
from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.net import Net
from ddpdoctor.facts.rdma import Gid, Rdma, RdmaDevice, RdmaPort
from ddpdoctor.facts.versions import Versions, numbers
from ddpdoctor.findings import CausalStage, Evidence, Finding, Severity, Where
from ddpdoctor.launch.container import container_of, wants_rdma
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import after, point
from ddpdoctor.rules.net.rdma_use import named, needs_rdma, used

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu
    from ddpdoctor.facts.log import Log

FINDS_GIDS = (2, 21)
"""From this version on NCCL looks for the entry by itself."""
PORTS_SHOWN = 3


def _is_roce(device: RdmaDevice, port: RdmaPort) -> bool:
    return port.is_roce and not device.needs_plugin


@cause(
    "NET029",
    "roce-gid-not-routable",
    Severity.ERROR,
    stage=CausalStage.REACHABILITY,
    signatures=(
        r"with (error|status=)\s?12\b[^\n]*vendor err 129",
        r"ibv_modify_qp failed with (error |\d+ )?Network is unreachable",
    ),
)
def roce_gid_not_routable(
    environ: Environ, net: Net, gpu: Gpu | None = None, versions: Versions | None = None
) -> Iterator[Finding]:
    """The RoCE address (GID) that NCCL uses does not lead to other networks.

    ## Why it matters
    "Got completion … with error 12 … vendor err 129" although the links are up: the entry is RoCE v1 or link-local, which
    no router passes on.

    ## Fix
    Use NCCL 2.21 or later without NCCL_IB_GID_INDEX, or set it to the RoCE v2 entry with the IPv4 address, on all nodes.

    ## Source
    /sys/class/infiniband/*/ports/*/gids and gid_attrs/types; NCCL before 2.21 takes entry 0.
    """
    rdma = needs_rdma(environ, net, gpu)
    index = _index(environ, versions)
    if index is None:
        not_here("NCCL looks for the GID by itself, or its version is not known")
    taken = [
        (f"{device.name} port {port.number}", next((g for g in port.gids if g.index == index), None), port)
        for device, port in used(environ, rdma)
        if _is_roce(device, port)
    ]
    bad = [each for each in taken if each[1] is None or not each[1].is_routable]
    if bad:
        name, entry, port = bad[0]
        others = f"; so with {', '.join(other for other, _, _ in bad[1:])}" if len(bad) > 1 else ""
        better = next((g for g in port.gids if g.is_routable and g.address and g.address.version == 4), None)
        yield Finding(
            f"NCCL uses GID {index} of {name}, {_words(entry)}{others}; "
            f"expected a RoCE v2 entry with an IPv4 address{f', such as {better.index}' if better else ''}",
            tuple(
                Evidence("net.rdma.devices", f"{at} gid {index}: {_words(seen)}", "RoCE v2, IPv4")
                for at, seen, _ in bad[:PORTS_SHOWN]
            ),
            fix_command=f"export NCCL_IB_GID_INDEX={better.index}" if better else None,
            severity=None if net.spans_nodes(environ) else Severity.WARNING,
        )


def _index(environ: Environ, versions: Versions | None) -> int | None:
    """The entry that NCCL takes, None where it looks for one or nobody knows."""
    given = environ.settings.get("NCCL_IB_GID_INDEX") or ""
    if given.isdecimal():
        return int(given)
    version = versions.nccl.version if versions is not None and versions.nccl is not None else None
    return 0 if version is not None and not given and numbers(version) < FINDS_GIDS else None


def _words(entry: Gid | None) -> str:
    if entry is None:
        return "which is empty"
    return f"which is {entry.kind or 'of an unknown kind'} {entry.address or entry.gid}"


@cause("NET030", "roce-gid-missing", Severity.WARNING)
def roce_gid_missing(environ: Environ, net: Net, gpu: Gpu | None = None) -> Iterator[Finding]:
    """A RoCE port has no RoCE v2 address (GID) with an IPv4 address.

    ## Why it matters
    NCCL then takes a link-local or v1 entry, which no router passes on: jobs within a rack may work, larger ones end with
    completion error 12.

    ## Fix
    Give the interface of the port an IPv4 address.

    ## Source
    /sys/class/infiniband/*/ports/*/gid_attrs/types.
    """
    for device, port in used(environ, needs_rdma(environ, net, gpu)):
        routable = [g.address for g in port.gids if g.is_routable and g.address is not None]
        if not _is_roce(device, port) or any(a.version == 4 for a in routable) or not port.gids:
            continue  # without any entry: NET035
        yield Finding(
            f"{device.name} port {port.number} (RoCE) has no RoCE v2 GID with an IPv4 address among {len(port.gids)}; "
            "expected one",
            (Evidence("net.rdma.devices", f"{device.name}:{port.number}", "a RoCE v2 GID ::ffff:a.b.c.d"),),
            severity=Severity.NOTE if routable else None,
        )


@cause(
    "NET035",
    "ib-hca-unusable",
    Severity.ERROR,
    signatures=(
        r"ibv_modify_qp failed with (error|\d+) (No such device|Invalid argument)",
        r"NET/IB : Unable to open device",
    ),
)
def ib_hca_unusable(environ: Environ, net: Net, gpu: Gpu | None = None) -> Iterator[Finding]:
    """NCCL takes an RDMA port that has no address at all.

    ## Why it matters
    One such port among the others ends the job: "ibv_modify_qp failed with error No such device". Often it is a virtual
    function, or a port for storage.

    ## Fix
    Leave the port out with NCCL_IB_HCA.

    ## Source
    An active Ethernet port without an entry in /sys/class/infiniband/*/ports/*/gids.
    """
    rdma = needs_rdma(environ, net, gpu)
    for device, port in used(environ, rdma):
        if _is_roce(device, port) and not port.gids:
            kind = "a virtual function" if device.is_virtual_function else "RoCE"
            yield Finding(
                f"NCCL takes {device.name} port {port.number} ({kind}), which has no GID; expected ports with an address",
                (Evidence("net.rdma.devices", f"{device.name}:{port.number}: no GID", "at least one"),),
                fix_command=_without(environ, rdma, device),
                severity=None if named(environ, device) and net.spans_nodes(environ) else Severity.WARNING,
            )


def _without(environ: Environ, rdma: Rdma, bad: RdmaDevice) -> str:
    good = dict.fromkeys(d.name for d, p in used(environ, rdma) if d is not bad and (p.gids or not p.is_roce))
    return f"export NCCL_IB_HCA=={','.join(good)}" if good else f"export NCCL_IB_HCA=^={bad.name}"


@cause("NET034", "peermem-missing", Severity.WARNING)
def peermem_missing(environ: Environ, net: Net, gpu: Gpu) -> Iterator[Finding]:
    """Nothing lets the RDMA adapters reach the memory of the GPUs.

    ## Why it matters
    What goes to other nodes is copied through host memory first; nothing but the bandwidth shows it.

    ## Fix
    Load nvidia-peermem, or use NVIDIA's open kernel modules on a kernel from 5.12 on (dma-buf).

    ## Source
    /sys/module/nvidia_peermem, which NCCL tests; /proc/driver/nvidia/version.
    """
    rdma = needs_rdma(environ, net, gpu)
    if all("GeForce" in (d.name or "") for d in gpu.answering()):
        not_here("GeForce cards have no GPUDirect RDMA")
    if rdma.peer_memory or not used(environ, rdma) or all(d.needs_plugin for d in rdma.devices):
        return
    if rdma.has_dma_buf is None:
        not_here("the NVIDIA kernel module does not say whether it is the open one")
    if not rdma.has_dma_buf:
        yield Finding(
            "neither nvidia-peermem nor dma-buf is here, and NCCL would use RDMA; expected one of them",
            (Evidence("net.rdma.peer_memory", "none", "nvidia_peermem"),),
            fix_command="modprobe nvidia-peermem",
        )


@cause("NET042", "rdma-fallback-to-sockets", Severity.WARNING)
def rdma_fallback_to_sockets(environ: Environ, net: Net, gpu: Gpu | None = None) -> Iterator[Finding]:
    """NCCL uses TCP although RDMA ports are up, because libibverbs is missing.

    ## Why it matters
    Nothing says so at the default level: "Using network Socket" stands in the log at NCCL_DEBUG=INFO only, and the job is
    ten times slower between nodes and more.

    ## Fix
    Install rdma-core (libibverbs1, ibverbs-providers) in the image.

    ## Source
    NCCL loads libibverbs.so.1 when it starts, and goes on without RDMA when it is not found.
    """
    rdma = needs_rdma(environ, net, gpu)
    if not used(environ, rdma) or rdma.has_library is not False:
        return
    count = len(used(environ, rdma))
    yield Finding(
        f"libibverbs.so.1 was not found, and {count} RDMA {'ports are' if count > 1 else 'port is'} active: "
        "NCCL takes TCP; expected the library",
        (Evidence("net.rdma.has_library", "false", "true"),),
        fix_command="apt-get install libibverbs1 ibverbs-providers",
    )


@cause(
    "NET044",
    "rdma-device-not-in-container",
    Severity.ERROR,
    signatures=(
        r"fi_getinfo\(\) call failed",
        r"ibv_open_device failed",
        r"Failed to initialize any NET plugin",
    ),
)
def rdma_device_not_in_container(
    environ: Environ, net: Net, gpu: Gpu | None = None, host: Host | None = None
) -> Iterator[Finding]:
    """/sys shows RDMA adapters, and their device nodes in /dev/infiniband are missing.

    ## Why it matters
    In a container that was not given the devices NCCL takes TCP without a word, or fails where RDMA is demanded.

    ## Fix
    Give the container the devices: docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1; in Kubernetes
    ask for the device plugin's resource.

    ## Source
    /sys/class/infiniband against /dev/infiniband/uverbs*.
    """
    rdma = needs_rdma(environ, net, gpu)
    active = used(environ, rdma)
    if rdma.device_nodes or not active:
        return
    is_container = host is not None and host.is_container
    yield Finding(
        f"/sys shows {len(active)} active RDMA ports, and /dev/infiniband has no uverbs device; expected one for each adapter",
        (Evidence("net.rdma.device_nodes", "none", "uverbs0"),),
        fix_command="docker run --device=/dev/infiniband …" if is_container else "modprobe ib_uverbs",
        severity=None if net.spans_nodes(environ) else Severity.WARNING,
    )


@cause("NET041", "net-plugin-override", Severity.WARNING)
def net_plugin_override(environ: Environ, net: Net, gpu: Gpu | None = None) -> Iterator[Finding]:
    """A network plugin replaces NCCL's own transport, and settings for that transport are set.

    ## Why it matters
    A libnccl-net.so that is found through LD_LIBRARY_PATH takes the place of NCCL's own: NCCL_IB_* and NCCL_SOCKET_* may
    then have no effect.

    ## Fix
    Set NCCL_NET_PLUGIN=none, or take the plugin's folder out of LD_LIBRARY_PATH, unless the plugin is meant.

    ## Source
    NCCL documentation, NCCL_NET_PLUGIN. NVIDIA's own plugin (HPC-X, SHARP) reads NCCL_IB_* and does not count.
    """
    rdma = net.need(net.rdma, "rdma")
    if gpu is not None and not visible_gpus(environ, gpu):
        not_here("no NVIDIA GPU here, and NCCL needs one")
    if rdma.plugin is None or environ.settings.get("NCCL_NET_PLUGIN") or any(d.needs_plugin for d in rdma.devices):
        return
    if any(word in rdma.plugin.lower() for word in ("hpcx", "sharp", "efa", "ofi", "gib", "tcpx", "fastrak")):
        return
    ignored = sorted(name for name in environ.settings if name.startswith(("NCCL_IB_", "NCCL_SOCKET_")))
    if ignored:
        yield Finding(
            f"{rdma.plugin} replaces NCCL's own network, and {', '.join(ignored[:3])} may have no effect; expected one of them",
            (Evidence("net.rdma.plugin", rdma.plugin, "none"),),
            fix_command="export NCCL_NET_PLUGIN=none",
        )


@rdma_device_not_in_container.look
def without_infiniband(launch: Launch) -> Iterator[Finding]:
    """RDMA is asked for in a container or a pod that is given no RDMA device."""
    for line in launch.lines:
        asked = wants_rdma(line.environ.variables)
        several = line.plan is not None and line.plan.is_multinode
        box = container_of(line)
        if asked is None or not (several or (line.pod is not None and (line.pod.pods or 0) > 1)):
            continue
        if box is not None and not box.has_infiniband:
            edits = [after(box.run, "--device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1")]
            if box.may_lock_memory:
                edits = [after(box.run, "--device=/dev/infiniband")]
            text = f"{asked}, and the container is given no RDMA device: expected --device=/dev/infiniband"
            yield point(launch, line, box.run, text, "--device=/dev/infiniband", edits, severity=Severity.WARNING)
        pod = line.pod
        if pod is not None and not pod.has_rdma:
            text = f"{asked}, and the container asks for no RDMA resource: expected the device plugin's resource in its limits"
            found = point(launch, line, None, text, "a resource such as rdma/hca", None, severity=Severity.WARNING)
            at = pod.at
            yield (
                found
                if at is None
                else Finding(
                    text,
                    found.evidence,
                    where=Where(file=line.file, line=at.line, column=at.column),
                    severity=Severity.WARNING,
                )
            )


UNROUTED = (r"ibv_modify_qp failed with (error |\d+ )?Network is unreachable",)


NO_ADDRESS = (r"ibv_modify_qp failed with (error|\d+) (No such device|Invalid argument)",)


@roce_gid_not_routable.look
def gid_not_routable(log: Log) -> Iterator[Finding]:
    """A peer does not answer: sure where RoCE uses a link-local address, otherwise one of several reasons."""
    from ddpdoctor.logs.context_patterns import context_lines
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.rdma import RETRIES
    from ddpdoctor.rules.log.signatures import finding_of

    unrouted = matching_lines(log, UNROUTED)
    if unrouted:
        yield finding_of(
            log, unrouted, "No route leads from an RDMA port to the address of its peer", blames_speaker=True
        )
    lines = matching_lines(log, RETRIES)
    if not lines:
        return
    local = [line for line in lines if "fe80:" in line.text]
    if local and any(context_lines(log, "roce")):
        yield finding_of(
            log, local, "RoCE uses a link-local address (GID), which no router passes on", blames_speaker=True
        )
        return
    title = "An RDMA peer does not answer; on RoCE a GID that does not lead to other networks is one reason"
    yield replace(finding_of(log, lines, title, blames_speaker=True), severity=Severity.WARNING)


@ib_hca_unusable.look
def unusable(log: Log) -> Iterator[Finding]:
    """A port that NCCL took and cannot use, or one that it had to leave out, which other nodes may have taken."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, NO_ADDRESS)
    if lines:
        yield finding_of(log, lines, "NCCL takes an RDMA port that has no address at all", blames_speaker=True)
    left_out = matching_lines(log, (r"NET/IB : Unable to open device",))
    if left_out:
        title = "NCCL cannot open an RDMA device that it sees and leaves it out: where other nodes use theirs, the job hangs"
        yield replace(finding_of(log, left_out, title, blames_speaker=True), severity=Severity.WARNING)
