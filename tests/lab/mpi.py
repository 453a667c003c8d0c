"""Open MPI and MPICH on a host of the lab: their own loopback, a deadline, and no child left behind.

with hosts(1) as lab:
    done = openmpi(lab.host(0), 4, [sys.executable, "-m", "ddpdoctor.probe"], timeout=60, env=MASTER)

Over all hosts of a lab the daemons of the other hosts are started by `remote_shell`, as rsh or ssh would.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.hosts import Host, Lab
from lab.processes import Process, need

__all__ = ["hydra", "hydra_over_all", "openmpi", "openmpi_over_all", "remote_shell"]

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


AGENT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as away:
    away.connect(sys.argv[1])
    words = [word for word in sys.argv[2:] if word not in ("-x", "-q")]
    away.sendall((words[0] + chr(10) + " ".join(words[1:])).encode())
    away.shutdown(socket.SHUT_WR)
    away.recv(1)
"""


@contextmanager
def remote_shell(lab: Lab, folder: Path) -> Iterator[Path]:
    """A command that runs another one on a host of the lab, as `rsh HOST COMMAND` does: hosts share files, so a socket does."""
    agent, command, place = folder / "agent.py", folder / "rsh", folder / "agent.sock"
    agent.write_text(AGENT)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {agent} {place} "$@"\n')
    command.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        server.listen()
        threading.Thread(target=_serve, args=(server, lab), daemon=True).start()
        yield command


def _serve(server: socket.socket, lab: Lab) -> None:
    while True:
        try:
            asking, _ = server.accept()
        except OSError:
            return  # the test is over
        told = b""
        while piece := asking.recv(1 << 16):
            told += piece
        name, _, line = told.decode().partition("\n")
        host = next(each for each in lab.hosts if name in (each.name, each.address))
        started = host.start(["sh", "-c", line], env=AS_ROOT)
        threading.Thread(target=_until_it_ends, args=(asking, started), daemon=True).start()


def _until_it_ends(asking: socket.socket, started: Process) -> None:
    with asking:
        started.wait(600)


def openmpi_over_all(
    lab: Lab, shell: Path, argv: Sequence[str], *, each: int, timeout: float, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `argv` in `each` processes on every host under Open MPI, with the variables of `env` everywhere."""
    need("mpirun.openmpi")
    agent = (
        "--mca",
        "plm_rsh_agent",
        str(shell),
        "--mca",
        "btl_tcp_if_include",
        "eth0",
        "--mca",
        "oob_tcp_if_include",
        "eth0",
    )
    places = (
        "-H",
        ",".join(f"{host.name}:{each}" for host in lab.hosts),
        "-np",
        str(each * len(lab.hosts)),
        "--oversubscribe",
    )
    exported = [word for name in env for word in ("-x", name)]
    line = ["mpirun.openmpi", *agent, *exported, *places, *argv]
    return lab.host(0).run(line, timeout=timeout, env={**AS_ROOT, **env})


def hydra_over_all(
    lab: Lab, shell: Path, argv: Sequence[str], *, each: int, timeout: float, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """The same under MPICH, which exports the environment by itself."""
    need("mpiexec.hydra")
    agent = ("-iface", "eth0", "-launcher", "rsh", "-launcher-exec", str(shell))
    places = ("-hosts", ",".join(f"{host.name}:{each}" for host in lab.hosts), "-n", str(each * len(lab.hosts)))
    return lab.host(0).run(["mpiexec.hydra", *agent, *places, *argv], timeout=timeout, env=env)
