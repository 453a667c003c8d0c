"""NET029 to NET044: RDMA ports that NCCL uses badly, or cannot use."""

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
"""From this version on NCCL selects the GID entry by itself."""
PORTS_SHOWN = 3


def _is_roce(device: RdmaDevice, port: RdmaPort) -> bool:
    return port.is_roce and not device.needs_plugin


@cause(
    "NET029",
    "roce-gid-not-routable",
    Severity.ERROR,
    stage=CausalStage.REACHABILITY,
    signatures=(
        r"with (error|status=)\s?12\b[^\n]{0,300}vendor err 129",
        r"ibv_modify_qp failed with (error |\d+ )?Network is unreachable",
    ),
)
def roce_gid_not_routable(
    environ: Environ, net: Net, gpu: Gpu | None = None, versions: Versions | None = None
) -> Iterator[Finding]:
    """The RoCE address (GID) that NCCL uses is not routable.

    ## Why it matters
    NCCL fails with `Got completion … with error 12 … vendor err 129` although the links are up: the GID is RoCE v1 or
    link-local, which no router forwards.

    ## Fix
    Use NCCL 2.21 or later without NCCL_IB_GID_INDEX, or set it to the RoCE v2 entry with the IPv4 address, on all nodes.

    ## Example
    In the log:

        NET/IB : Got completion from peer 10.0.0.2<38560> with error 12, opcode 0, len 0, vendor err 129

    On every node, if `show_gids` lists the RoCE v2 entry with the IPv4 address as index 3:

        # before
        torchrun --nnodes 2 train.py
        # after
        export NCCL_IB_GID_INDEX=3
        torchrun --nnodes 2 train.py

    ## Source
    /sys/class/infiniband/*/ports/*/gids and gid_attrs/types; NCCL before 2.21 uses entry 0.
    """
    rdma = needs_rdma(environ, net, gpu)
    index = _index(environ, versions)
    if index is None:
        not_here("NCCL selects the GID by itself, or its version is unknown")
    used_gids = [
        (f"{device.name} port {port.number}", next((g for g in port.gids if g.index == index), None), port)
        for device, port in used(environ, rdma)
        if _is_roce(device, port)
    ]
    bad = [(name, gid, port) for name, gid, port in used_gids if gid is None or not gid.is_routable]
    if bad:
        name, entry, port = bad[0]
        others = f"; also on {', '.join(other for other, _, _ in bad[1:])}" if len(bad) > 1 else ""
        better = next((g for g in port.gids if g.is_routable and g.address and g.address.version == 4), None)
        yield Finding(
            f"NCCL uses GID {index} of {name}, which {_description(entry)}{others}",
            tuple(
                Evidence("net.rdma.devices", f"{at} gid {index} {_description(gid)}", "RoCE v2, IPv4")
                for at, gid, _ in bad[:PORTS_SHOWN]
            ),
            fix_command=f"export NCCL_IB_GID_INDEX={better.index}" if better else None,
            severity=None if net.spans_nodes(environ) else Severity.WARNING,
        )


def _index(environ: Environ, versions: Versions | None) -> int | None:
    """The GID entry that NCCL uses, None if it selects one itself or its version is unknown."""
    given = environ.settings.get("NCCL_IB_GID_INDEX") or ""
    if given.isdecimal():
        return int(given)
    version = versions.nccl.version if versions is not None and versions.nccl is not None else None
    return 0 if version is not None and not given and numbers(version) < FINDS_GIDS else None


def _description(entry: Gid | None) -> str:
    if entry is None:
        return "is empty"
    return f"is not routable ({entry.kind or 'unknown kind'} {entry.address or entry.gid})"


@cause("NET030", "roce-gid-missing", Severity.WARNING)
def roce_gid_missing(environ: Environ, net: Net, gpu: Gpu | None = None) -> Iterator[Finding]:
    """A RoCE port has no RoCE v2 address (GID) with an IPv4 address.

    ## Why it matters
    NCCL then uses a link-local or v1 entry, which no router forwards. Jobs within a rack may work; larger ones fail with
    completion error 12.

    ## Fix
    Give the interface of the port an IPv4 address on that node.

    ## Example
    ddpdoctor's message:

        mlx5_0 port 1 (RoCE) has no RoCE v2 GID with an IPv4 address

    On that node, as root, if the port's interface is ens1np0:

        # before
        show_gids mlx5_0
        mlx5_0  1  0  fe80:0000:0000:0000:0e42:a1ff:fe00:0001  v2  ens1np0
        # after
        ip addr add 10.1.1.5/24 dev ens1np0

    ## Source
    /sys/class/infiniband/*/ports/*/gid_attrs/types.
    """
    for device, port in used(environ, needs_rdma(environ, net, gpu)):
        routable = [g.address for g in port.gids if g.is_routable and g.address is not None]
        if not _is_roce(device, port) or any(a.version == 4 for a in routable) or not port.gids:
            continue  # a port without any entry: NET035
        yield Finding(
            f"{device.name} port {port.number} (RoCE) has no RoCE v2 GID with an IPv4 address",
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
    """NCCL uses an RDMA port that has no address.

    ## Why it matters
    One such port ends the job: `ibv_modify_qp failed with error No such device`. Often it is a virtual function, or a port for
    storage.

    ## Fix
    Exclude the port with NCCL_IB_HCA on that node.

    ## Example
    In the log:

        NCCL WARN Call to ibv_modify_qp failed with error No such device

    On that node, to exclude mlx5_1:

        # before
        torchrun --nnodes 2 train.py
        # after
        export NCCL_IB_HCA=^=mlx5_1
        torchrun --nnodes 2 train.py

    ## Source
    An active Ethernet port without an entry in /sys/class/infiniband/*/ports/*/gids.
    """
    rdma = needs_rdma(environ, net, gpu)
    for device, port in used(environ, rdma):
        if _is_roce(device, port) and not port.gids:
            kind = "a virtual function" if device.is_virtual_function else "RoCE"
            yield Finding(
                f"NCCL uses {device.name} port {port.number} ({kind}), which has no GID",
                (Evidence("net.rdma.devices", f"{device.name}:{port.number}: no GID", "at least one"),),
                fix_command=_without(environ, rdma, device),
                severity=None if named(environ, device) and net.spans_nodes(environ) else Severity.WARNING,
            )


def _without(environ: Environ, rdma: Rdma, bad: RdmaDevice) -> str:
    good = dict.fromkeys(d.name for d, p in used(environ, rdma) if d is not bad and (p.gids or not p.is_roce))
    return f"export NCCL_IB_HCA=={','.join(good)}" if good else f"export NCCL_IB_HCA=^={bad.name}"


@cause("NET034", "peermem-missing", Severity.WARNING)
def peermem_missing(environ: Environ, net: Net, gpu: Gpu) -> Iterator[Finding]:
    """The RDMA adapters have no direct access to GPU memory.

    ## Why it matters
    Data for other nodes is copied through host memory first. Only the lower bandwidth shows it.

    ## Fix
    Load nvidia-peermem as root on that node, or use NVIDIA's open kernel modules with kernel 5.12 or later (dma-buf).

    ## Example
    ddpdoctor's message:

        neither nvidia-peermem nor dma-buf is available for GPUDirect RDMA

    On every node, as root:

        modprobe nvidia-peermem
        echo nvidia-peermem > /etc/modules-load.d/nvidia-peermem.conf

    ## Source
    /sys/module/nvidia_peermem, which NCCL tests; /proc/driver/nvidia/version.
    """
    rdma = needs_rdma(environ, net, gpu)
    if all("GeForce" in (d.name or "") for d in gpu.answering()):
        not_here("GeForce cards have no GPUDirect RDMA")
    if rdma.peer_memory or not used(environ, rdma) or all(d.needs_plugin for d in rdma.devices):
        return
    if rdma.has_dma_buf is None:
        not_here("unknown whether the NVIDIA kernel module is the open one")
    if not rdma.has_dma_buf:
        yield Finding(
            "neither nvidia-peermem nor dma-buf is available for GPUDirect RDMA",
            (Evidence("net.rdma.peer_memory", "none", "nvidia_peermem"),),
            fix_command="modprobe nvidia-peermem",
        )


@cause("NET042", "rdma-fallback-to-sockets", Severity.WARNING)
def rdma_fallback_to_sockets(environ: Environ, net: Net, gpu: Gpu | None = None) -> Iterator[Finding]:
    """NCCL uses TCP although RDMA ports are up, because libibverbs is missing.

    ## Why it matters
    Between nodes the job is ten times slower or more. The log shows `Using network Socket` only with NCCL_DEBUG=INFO.

    ## Fix
    Install rdma-core (libibverbs1, ibverbs-providers) in the image.

    ## Example
    In the log (NCCL_DEBUG=INFO):

        NCCL INFO Using network Socket

    In the Dockerfile:

        # before
        RUN apt-get install -y python3-pip
        # after
        RUN apt-get install -y python3-pip libibverbs1 ibverbs-providers

    ## Source
    NCCL loads libibverbs.so.1 when it starts, and runs without RDMA if it is not found.
    """
    rdma = needs_rdma(environ, net, gpu)
    if not used(environ, rdma) or rdma.has_library is not False:
        return
    count = len(used(environ, rdma))
    yield Finding(
        f"libibverbs.so.1 not found: NCCL uses TCP although {count} RDMA {'ports are' if count > 1 else 'port is'} active",
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
    """RDMA adapters are in /sys, but /dev/infiniband has no device nodes for them.

    ## Why it matters
    In a container that was started without the devices, NCCL uses TCP without a message, or fails if RDMA is required:
    `Failed to initialize any NET plugin`.

    ## Fix
    Give the container the devices: `docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1`; in Kubernetes
    request the device plugin's resource.

    ## Example
    ddpdoctor's message:

        /dev/infiniband has no uverbs device although 8 RDMA ports are active

    The command that starts the container, on every node:

        # before
        docker run --gpus all IMAGE torchrun --nnodes 2 train.py
        # after
        docker run --gpus all --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 IMAGE torchrun --nnodes 2 train.py

    ## Source
    /sys/class/infiniband against /dev/infiniband/uverbs*.
    """
    rdma = needs_rdma(environ, net, gpu)
    active = used(environ, rdma)
    if rdma.device_nodes or not active:
        return
    is_container = host is not None and host.is_container
    yield Finding(
        f"/dev/infiniband has no uverbs device although {len(active)} RDMA "
        f"{'ports are' if len(active) > 1 else 'port is'} active",
        (Evidence("net.rdma.device_nodes", "none", "one uverbs device per adapter"),),
        fix_command="docker run --device=/dev/infiniband …" if is_container else "modprobe ib_uverbs",
        severity=None if net.spans_nodes(environ) else Severity.WARNING,
    )


@cause("NET041", "net-plugin-override", Severity.WARNING)
def net_plugin_override(environ: Environ, net: Net, gpu: Gpu | None = None) -> Iterator[Finding]:
    """A network plugin replaces NCCL's own transport and may ignore its settings.

    ## Why it matters
    NCCL loads a libnccl-net.so that it finds through LD_LIBRARY_PATH instead of its own network transport. NCCL_IB_*
    and NCCL_SOCKET_* may then have no effect.

    ## Fix
    Set NCCL_NET_PLUGIN=none on all nodes, or remove the plugin's folder from LD_LIBRARY_PATH, unless you want the plugin.

    ## Example
    ddpdoctor's message:

        /opt/vendor/lib/libnccl-net.so replaces NCCL's own network; NCCL_IB_HCA may have no effect

    On every node:

        # before
        export LD_LIBRARY_PATH=/opt/vendor/lib NCCL_IB_HCA=mlx5
        # after
        export LD_LIBRARY_PATH=/opt/vendor/lib NCCL_IB_HCA=mlx5 NCCL_NET_PLUGIN=none

    ## Source
    NCCL documentation, NCCL_NET_PLUGIN. NVIDIA's own plugin (HPC-X, SHARP) reads NCCL_IB_* and does not count.
    """
    rdma = net.need(net.rdma, "rdma")
    if gpu is not None and not visible_gpus(environ, gpu):
        not_here("no NVIDIA GPU")
    if rdma.plugin is None or environ.settings.get("NCCL_NET_PLUGIN") or any(d.needs_plugin for d in rdma.devices):
        return
    if any(name in rdma.plugin.lower() for name in ("hpcx", "sharp", "efa", "ofi", "gib", "tcpx", "fastrak")):
        return
    ignored = sorted(name for name in environ.settings if name.startswith(("NCCL_IB_", "NCCL_SOCKET_")))
    if ignored:
        yield Finding(
            f"{rdma.plugin} replaces NCCL's own network; {', '.join(ignored[:3])} may have no effect",
            (Evidence("net.rdma.plugin", rdma.plugin, "none"),),
            fix_command="export NCCL_NET_PLUGIN=none",
        )


@rdma_device_not_in_container.look
def without_infiniband(launch: Launch) -> Iterator[Finding]:
    """RDMA is requested in a container or a pod that has no RDMA device."""
    for line in launch.lines:
        setting = wants_rdma(line.environ.variables)
        is_multi_node = line.plan is not None and line.plan.is_multinode
        container = container_of(line)
        if setting is None or not (is_multi_node or (line.pod is not None and (line.pod.pods or 0) > 1)):
            continue
        if container is not None and not container.has_infiniband:
            edits = [after(container.run, "--device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1")]
            if container.may_lock_memory:
                edits = [after(container.run, "--device=/dev/infiniband")]
            text = f"{setting}, but the container has no RDMA device"
            expected = "--device=/dev/infiniband"
            yield point(
                launch, line, container.run, text, expected, edits, label=f"add {expected}", severity=Severity.WARNING
            )
        pod = line.pod
        if pod is not None and not pod.has_rdma:
            text = f"{setting}, but the container requests no RDMA resource"
            expected = "a resource such as rdma/hca"
            finding = point(
                launch, line, None, text, expected, None, label=f"add {expected}", severity=Severity.WARNING
            )
            at = pod.at
            place = finding.where if at is None else Where(file=line.file, line=at.line, column=at.column)
            yield replace(finding, where=place)


UNROUTED = (r"ibv_modify_qp failed with (error |\d+ )?Network is unreachable",)


NO_ADDRESS = (r"ibv_modify_qp failed with (error|\d+) (No such device|Invalid argument)",)


@roce_gid_not_routable.look
def gid_not_routable(log: Log) -> Iterator[Finding]:
    """A peer does not respond: certain if RoCE uses a link-local address, otherwise one of several reasons."""
    from ddpdoctor.logs.context_patterns import context_lines
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.rdma import RETRIES
    from ddpdoctor.rules.log.signatures import finding_of

    unrouted = matching_lines(log, UNROUTED)
    if unrouted:
        yield finding_of(log, unrouted, "An RDMA port has no route to the address of its peer", blames_speaker=True)
    lines = matching_lines(log, RETRIES)
    if not lines:
        return
    local = [line for line in lines if "fe80:" in line.text]
    if local and any(context_lines(log, "roce")):
        yield finding_of(
            log, local, "RoCE uses a link-local address (GID), which no router forwards", blames_speaker=True
        )
        return
    title = "An RDMA peer does not respond, possibly because its GID is not routable"
    yield replace(finding_of(log, lines, title, blames_speaker=True), severity=Severity.WARNING)


@ib_hca_unusable.look
def port_unusable(log: Log) -> Iterator[Finding]:
    """A port that NCCL uses but cannot, or one that it had to skip although other nodes may use theirs."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, NO_ADDRESS)
    if lines:
        yield finding_of(log, lines, "NCCL uses an RDMA port that has no address", blames_speaker=True)
    skipped = matching_lines(log, (r"NET/IB : Unable to open device",))
    if skipped:
        title = "NCCL cannot open an RDMA device and skips it on this node"
        yield replace(finding_of(log, skipped, title, blames_speaker=True), severity=Severity.WARNING)
