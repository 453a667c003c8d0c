"""A real Slurm cluster on one machine: its own munged, slurmctld and slurmds, in the namespaces of a lab.

    with slurm(nodes=2) as cluster:
        done = cluster.srun("-N2", "--ntasks-per-node=2", "env", timeout=60)

Two kinds. By default all nodes are virtual ones (n0, n1, …) on one host's loopback, as in a Slurm that is tried out on one
machine: MASTER_ADDR=127.0.0.1 is right there. With `own_hosts=True` each node is a host of its own (node0, node1, …)
with an address and a hostname, as in a real cluster. Ports are the namespace's own: any number of clusters fit side by side.
"""

from __future__ import annotations

import os
import secrets
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.hosts import Host, Lab, hosts
from lab.processes import Process, need

__all__ = ["Cluster", "slurm"]

COMMANDS = ("srun", "sbatch", "sinfo", "slurmctld", "slurmd", "munged")
UP_SECONDS = 30.0
"""The most that a cluster may take to come up on a busy machine (0.5 s on an idle one)."""

CONF = """ClusterName=lab
SlurmctldHost={head}({head_address})
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
SlurmctldPort=6817
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
InactiveLimit=0
KillWait=2
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,defer
GresTypes=gpu
"""


@dataclass(frozen=True)
class Node:
    """A node: its name in Slurm, the host it runs on, where its slurmd listens."""

    name: str
    host: Host
    address: str
    port: int


@dataclass
class Cluster:
    """A cluster that is up; commands run on its first node."""

    lab: Lab
    folder: Path
    nodes: list[Node]

    def srun(
        self, *words: str, timeout: float, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `srun` with these words to its end; subprocess.TimeoutExpired after `timeout` seconds."""
        return self.run("srun", *words, timeout=timeout, env=env)

    def start(self, *words: str, env: Mapping[str, str] | None = None) -> Process:
        """Start `srun` with these words, to watch it while it runs."""
        return self.nodes[0].host.start(["srun", *words], env=self._env(env))

    def sbatch(
        self, body: str, *words: str, timeout: float, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Submit a shell script with `sbatch --wait` and these words; the result holds what the job itself printed.

        Raises:
            subprocess.TimeoutExpired: the job did not end within `timeout` seconds.
        """
        script, out, err = (self.folder / f"batch.{kind}" for kind in ("sh", "out", "err"))
        script.write_text(f"#!/bin/sh\n{body}\n")
        done = self.run("sbatch", "--wait", f"-o{out}", f"-e{err}", *words, str(script), timeout=timeout, env=env)
        assert out.exists(), f"the job never started: {done.stderr}"
        return subprocess.CompletedProcess(done.args, done.returncode, out.read_text(), err.read_text())

    def run(
        self, *words: str, timeout: float, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run any Slurm command (sinfo, scancel, scontrol …) to its end."""
        return self.nodes[0].host.run(list(words), timeout=timeout, env=self._env(env))

    def pids(self, **environ: str) -> list[int]:
        """The tasks' processes whose environment holds all of these variables: pids(SLURM_PROCID="1")."""
        return [pid for process in self.lab.processes for pid in process.pids(**environ)]

    def _env(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), **(env or {})}


@contextmanager
def slurm(nodes: int = 2, *, gpus: int = 0, own_hosts: bool = False) -> Iterator[Cluster]:
    """A cluster of `nodes` nodes with 8 CPUs and `gpus` fake GPUs each; down for sure at the end of the block.

    Skips the test, with the reason, without root or the commands.
    """
    need(*COMMANDS)
    with hosts(nodes if own_hosts else 1) as lab, tempfile.TemporaryDirectory(prefix="ddpdoctor-slurm-") as name:
        if own_hosts:
            members = [Node(host.name, host, host.address, 6818) for host in lab.hosts]
        else:
            members = [Node(f"n{index}", lab.host(0), "127.0.0.1", 6820 + index) for index in range(nodes)]
        cluster = Cluster(lab, Path(name), members)
        try:
            _configure(cluster, gpus)
            daemons = _start(cluster)
            _wait_until_idle(cluster, daemons)
            yield cluster
        finally:
            lab.kill()  # before their folder goes


def _configure(cluster: Cluster, gpus: int) -> None:
    folder, head = cluster.folder, cluster.nodes[0]
    folder.chmod(0o711)  # munged wants its socket where everybody may pass and nobody may write
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(1024))
    lines = [CONF.format(head=head.host.name, head_address=head.address, folder=folder)]
    gres = f" Gres=gpu:{gpus}" if gpus else ""
    for node in cluster.nodes:
        lines.append(
            f"NodeName={node.name} NodeHostname={node.host.name} NodeAddr={node.address} Port={node.port} "
            f"CPUs=8 RealMemory=1000 State=UNKNOWN{gres}\n"
        )
    lines.append(f"PartitionName=all Nodes={','.join(n.name for n in cluster.nodes)} Default=YES MaxTime=10 State=UP\n")
    (folder / "slurm.conf").write_text("".join(lines))
    if gpus:
        _fake_gpus(cluster, gpus)


def _fake_gpus(cluster: Cluster, gpus: int) -> None:
    """A GPU needs a device file (without one slurmd counts none and drains the node); any character device will do."""
    for index in range(gpus):
        os.mknod(cluster.folder / f"nvidia{index}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    files = f"{cluster.folder}/nvidia" + ("0" if gpus == 1 else f"[0-{gpus - 1}]")
    lines = [f"NodeName={node.name} Name=gpu File={files}\n" for node in cluster.nodes]
    (cluster.folder / "gres.conf").write_text("".join(lines))


def _start(cluster: Cluster) -> list[Process]:
    """All daemons of one host share one PID namespace, as they would on a machine: ranks see each other in /proc."""
    folder, head = cluster.folder, cluster.nodes[0].host
    conf = f"{folder}/slurm.conf"
    munged = f"munged --foreground --force --num-threads=2 --key-file={folder}/munge.key --socket={folder}/munge.socket"
    munged += f" --pid-file={folder}/munged.pid --seed-file={folder}/munge.seed --log-file={folder}/munged.log"
    processes = []
    for host in cluster.lab.hosts:
        lines = [f"{munged} &"] if host is head else []
        lines += [
            f"while ! [ -S {folder}/munge.socket ]; do sleep 0.02; done"
        ]  # one file system, so one munged for all
        lines += [f"slurmctld -D -c -f {conf} &"] if host is head else []
        lines += [f"slurmd -D -f {conf} -N {node.name} &" for node in cluster.nodes if node.host is host]
        processes.append(host.start(["sh", "-c", "\n".join([*lines, "wait"])]))
    return processes


def _wait_until_idle(cluster: Cluster, daemons: list[Process]) -> None:
    until = time.monotonic() + UP_SECONDS
    states: list[str] = []
    while states != ["idle"] * len(cluster.nodes):
        if time.monotonic() > until:
            said = "\n".join(daemon.err[-2000:] for daemon in daemons)
            raise RuntimeError(f"Slurm did not come up within {UP_SECONDS:.0f} s: {states}\n{said}")
        time.sleep(0.02)
        states = cluster.run("sinfo", "--noheader", "--Node", "-o%T", timeout=UP_SECONDS).stdout.split()
