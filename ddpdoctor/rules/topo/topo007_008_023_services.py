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
        not_here("no GPU here has NVLinks, whatever device nodes there are")
    if host is not None and host.is_container:
        not_here("the fabric manager runs on the host, out of this container's sight")
    return topo.need(topo.fabric_manager, "fabric_manager")


@cause(
    "TOPO007",
    "fabricmanager-inactive",
    Severity.ERROR,
    signatures=(r"system not yet initialized", r"cudaErrorSystemNotReady"),
    explains=("GPU004", "TOPO010", "TOPO019", "TOPO020"),
)
def fabricmanager_inactive(topo: Topo, host: Host | None = None, gpu: Gpu | None = None) -> Iterator[Finding]:
    """The fabric manager is not running on a machine with NVSwitches.

    ## Why it matters
    nvidia-smi lists all GPUs, but CUDA says "Error 802: system not yet initialized" and torch.cuda.is_available() is False.

    ## Fix
    Start the service, in exactly the driver's version.

    ## Source
    The processes of this machine: nv-fabricmanager; /dev/nvidia-nvswitch*. cuInit answers 802 on GPUs whose links end at an
    NVSwitch, which a container sees too.
    """
    if gpu is not None and gpu.cuda_error == NOT_READY and any(g.is_switched for g in topo.all_gpus()):
        yield Finding(
            "cuInit answers 802 (system not yet initialized) on GPUs behind NVSwitches; "
            "expected 0, with the fabric manager running",
            (Evidence("gpu.cuda_error", str(NOT_READY), "0"),),
            fix_command="systemctl enable --now nvidia-fabricmanager",
        )
        return
    manager = _manager(topo, host)
    if manager.is_running:
        return
    registered = [g.fabric is not None and g.fabric.state == COMPLETED for g in topo.all_gpus()]
    yield Finding(
        "NVSwitches are here and no nv-fabricmanager is running; expected the service to run",
        (Evidence("topo.fabric_manager.is_running", "false", "true"),),
        fix_command="systemctl enable --now nvidia-fabricmanager",
        severity=Severity.WARNING if all(registered) else None,
    )


@cause(
    "TOPO008",
    "fabricmanager-version-mismatch",
    Severity.ERROR,
    signatures=(r"[Ff]abric [Mm]anager[^\n]*version[^\n]*(mismatch|don't match|does not match)",),
    explains=("GPU004", "TOPO007", "TOPO010", "TOPO019", "TOPO020"),
)
def fabricmanager_version_mismatch(topo: Topo, gpu: Gpu, host: Host | None = None) -> Iterator[Finding]:
    """The fabric manager and the driver have different versions.

    ## Why it matters
    After an update of the driver alone the service does not start: CUDA reports error 802, as if it were not installed.

    ## Fix
    Install the fabric manager in exactly the driver's version.

    ## Source
    nv-fabricmanager --version; nvmlSystemGetDriverVersion.
    """
    manager = _manager(topo, host)
    driver = gpu.need(gpu.driver_version, "driver_version")
    if manager.version is None:
        not_here("nv-fabricmanager does not say its version")
    if manager.version != driver:
        yield Finding(
            f"the fabric manager has version {manager.version} and the driver {driver}; expected the same",
            (Evidence("topo.fabric_manager.version", manager.version, driver),),
            fix=f"Install nvidia-fabricmanager {driver} and restart the service.",
        )


@cause(
    "TOPO023",
    "imex-not-ready",
    Severity.ERROR,
    signatures=(r"MNNVL \(cliqueSize \d+\) is available but not working", r"Cuda failure 800"),
)
def imex_not_ready(topo: Topo, environ: Environ, gpu: Gpu | None = None) -> Iterator[Finding]:
    """There is no IMEX channel for NVLink between the nodes of a rack.

    ## Why it matters
    "MNNVL (cliqueSize 8) is available but not working": NCCL does not start across the trays.

    ## Fix
    Run nvidia-imex on all nodes and create a channel; NCCL_MNNVL_ENABLE=0 takes the network instead.

    ## Source
    /dev/nvidia-caps-imex-channels; nvmlDeviceGetGpuFabricInfoV: a cluster UUID that is not zero.
    """
    clusters = {g.fabric.cluster_uuid for g in topo.all_gpus() if g.fabric is not None and g.fabric.state == COMPLETED}
    if not any((uuid or "").strip("0-") for uuid in clusters):
        not_here("the GPUs belong to no NVLink domain of several nodes")
    if topo.imex_channels or environ.get("NCCL_MNNVL_ENABLE") == "0" or environ.is_multi_node is False:
        return
    if gpu is not None and "nvidiactl" not in gpu.device_nodes and not environ.is_multi_node:
        not_here("this machine has no NVIDIA device nodes in /dev")
    yield Finding(
        "the GPUs belong to an NVLink domain of several nodes, and no IMEX channel is here; expected channel0",
        (Evidence("topo.imex_channels", "none", "channel0"),),
        fix_command="nvidia-modprobe -c 0 && systemctl enable --now nvidia-imex",
        severity=None if environ.is_multi_node else Severity.WARNING,
    )
