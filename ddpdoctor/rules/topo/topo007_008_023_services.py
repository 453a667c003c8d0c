"""TOPO007, TOPO008, TOPO023: the services that NVLink needs: the fabric manager, and IMEX between nodes."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import Host
from ddpdoctor.facts.topo import FabricManager, Topo
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

COMPLETED = 3
NOT_READY = 802


def _manager(topo: Topo, host: Host | None) -> FabricManager:
    if not any(g.link_count or g.links for g in topo.all_gpus()):
        not_here("no GPU has NVLinks")
    if host is not None and host.is_container:
        not_here("the fabric manager runs on the host and is not visible in this container")
    return topo.need(topo.fabric_manager, "fabric_manager")


@cause(
    "TOPO007",
    "fabricmanager-inactive",
    Severity.ERROR,
    signatures=(
        r"system not yet initialized",
        r"cudaErrorSystemNotReady",
        r"GPU fabric is not ready",
        r"cudaErrorFabricNotReady",
    ),
    explains=("GPU004", "TOPO010", "TOPO019", "TOPO020"),
)
def fabricmanager_inactive(topo: Topo, host: Host | None = None, gpu: Gpu | None = None) -> Iterator[Finding]:
    """The fabric manager is not running on a machine with NVSwitches.

    ## Why it matters
    nvidia-smi lists all GPUs, but torch.cuda.is_available() is False and CUDA fails: `Error 802: system not yet initialized`.

    ## Fix
    Run `systemctl enable --now nvidia-fabricmanager` as root on that node; its version must be exactly the driver's. HGX boards
    with Blackwell GPUs also need NVLSM, the subnet manager of their switches (package `nvlsm`): without it the service does not
    start.

    ## Example
    In the log:

        RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized

    On that node, as root:

        systemctl enable --now nvidia-fabricmanager
        systemctl status nvidia-fabricmanager

    ## Source
    The processes of this machine: nv-fabricmanager; /dev/nvidia-nvswitch*. cuInit returns 802 on GPUs whose links end at an
    NVSwitch, which a container sees too.
    """
    if gpu is not None and gpu.cuda_error == NOT_READY and any(g.is_switched for g in topo.all_gpus()):
        yield Finding(
            "CUDA cannot start on the NVSwitch GPUs (cuInit returns 802: system not yet initialized)",
            (Evidence("gpu.cuda_error", str(NOT_READY), "0"),),
            fix_command="systemctl enable --now nvidia-fabricmanager",
        )
        return
    manager = _manager(topo, host)
    if manager.is_running:
        return
    registered = [g.fabric is not None and g.fabric.state == COMPLETED for g in topo.all_gpus()]
    yield Finding(
        "this machine has NVSwitches, but nv-fabricmanager is not running",
        (Evidence("topo.fabric_manager.is_running", "false", "true"),),
        fix_command="systemctl enable --now nvidia-fabricmanager",
        severity=Severity.WARNING if all(registered) else None,
    )


@cause(
    "TOPO008",
    "fabricmanager-version-mismatch",
    Severity.ERROR,
    signatures=(r"[Ff]abric [Mm]anager[^\n]{0,120}version[^\n]{0,120}(mismatch|don't match|does not match)",),
    explains=("GPU004", "TOPO007", "TOPO010", "TOPO019", "TOPO020"),
)
def fabricmanager_version_mismatch(topo: Topo, gpu: Gpu, host: Host | None = None) -> Iterator[Finding]:
    """The fabric manager and the driver have different versions.

    ## Why it matters
    After an update of the driver alone the service does not start. CUDA then fails with
    `Error 802: system not yet initialized`, as if the service were not installed.

    ## Fix
    Install the fabric manager in exactly the driver's version on that node, and restart the service.

    ## Example
    ddpdoctor's message:

        the fabric manager is version 570.172.08, but the driver is 580.105.08

    On that node, as root (Ubuntu):

        apt-get install nvidia-fabricmanager-580=580.105.08-1
        systemctl restart nvidia-fabricmanager

    ## Source
    nv-fabricmanager --version; nvmlSystemGetDriverVersion.
    """
    manager = _manager(topo, host)
    driver = gpu.need(gpu.driver_version, "driver_version")
    if manager.version is None:
        not_here("the version of nv-fabricmanager is unknown")
    if manager.version != driver:
        yield Finding(
            f"the fabric manager is version {manager.version}, but the driver is {driver}",
            (Evidence("topo.fabric_manager.version", manager.version, driver),),
            fix=f"Install nvidia-fabricmanager {driver} on that node and restart the service.",
        )


@cause(
    "TOPO023",
    "imex-not-ready",
    Severity.ERROR,
    signatures=(
        r"MNNVL \(cliqueSize \d+\) is available but not working",
        r"MNNVL \(cliqueSize \d+\) is available but not supported",
        r"Cuda failure 800",
    ),
)
def imex_not_ready(topo: Topo, environ: Environ, gpu: Gpu | None = None) -> Iterator[Finding]:
    """NVLink between nodes has no IMEX channel.

    ## Why it matters
    NCCL does not start across the trays of a rack: `MNNVL (cliqueSize 8) is available but not working`.

    ## Fix
    Start nvidia-imex on all nodes and create a channel (`nvidia-modprobe -c 0`), or set NCCL_MNNVL_ENABLE=0 to use the
    network.

    ## Example
    In the log:

        NCCL WARN MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX channel configuration

    On all nodes, as root:

        systemctl enable --now nvidia-imex
        nvidia-modprobe -c 0
        ls /dev/nvidia-caps-imex-channels

    ## Source
    /dev/nvidia-caps-imex-channels; nvmlDeviceGetGpuFabricInfoV: a cluster UUID that is not zero.
    """
    clusters = {g.fabric.cluster_uuid for g in topo.all_gpus() if g.fabric is not None and g.fabric.state == COMPLETED}
    if not any((uuid or "").strip("0-") for uuid in clusters):
        not_here("the GPUs are not in an NVLink domain of several nodes")
    if topo.imex_channels or environ.get("NCCL_MNNVL_ENABLE") == "0" or environ.is_multi_node is False:
        return
    if gpu is not None and "nvidiactl" not in gpu.device_nodes and not environ.is_multi_node:
        not_here("no NVIDIA device nodes in /dev")
    yield Finding(
        "NVLink connects the GPUs to other nodes, but there is no IMEX channel",
        (Evidence("topo.imex_channels", "none", "channel0"),),
        fix_command="nvidia-modprobe -c 0 && systemctl enable --now nvidia-imex",
        severity=None if environ.is_multi_node else Severity.WARNING,
    )
