"""Open MPI and MPICH on a host of the lab: their own loopback, a deadline, and no child left behind.

with hosts(1) as lab:
    done = openmpi(lab.host(0), 4, [sys.executable, "-m", "ddpdoctor.probe"], timeout=60, env=MASTER)
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from lab.hosts import Host
from lab.processes import need

__all__ = ["hydra", "openmpi"]

LOOPBACK = ("--mca", "btl_tcp_if_include", "lo", "--mca", "oob_tcp_if_include", "lo")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def openmpi(
    host: Host, ranks: int, argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `argv` in `ranks` processes under Open MPI's mpirun; subprocess.TimeoutExpired after `timeout` seconds."""
    need("mpirun.openmpi")
    line = ["mpirun.openmpi", "--oversubscribe", *LOOPBACK, "-np", str(ranks), *argv]
    return host.run(line, timeout=timeout, env={**AS_ROOT, **(env or {})})


def hydra(
    host: Host, ranks: int, argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `argv` in `ranks` processes under MPICH's mpiexec; subprocess.TimeoutExpired after `timeout` seconds."""
    need("mpiexec.hydra")
    return host.run(["mpiexec.hydra", "-iface", "lo", "-n", str(ranks), *argv], timeout=timeout, env=env)
