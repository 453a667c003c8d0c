"""N hosts on one machine: network namespaces on a switch, each with its own names, addresses, processes and faults.

    with hosts(3) as lab:
        server = lab.host(0).start([sys.executable, "-m", "http.server", "29500"])
        lab.host(1).drop(port=29500)
        lab.host(2).run(["ping", "-c1", "node0"], timeout=10)

Nothing has a name on the machine itself: namespaces, links and mounts exist only as long as their processes, and those
live in a PID namespace whose first process ends when the lab closes or the test's own process goes away, be it by SIGKILL.
The clock, the kernel and its boot id are the machine's; there is no loss, delay or reordering.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from lab.processes import PATH, Process, need

__all__ = ["Host", "Lab", "hosts"]

TOOLS = ("ip", "nft", "tc", "nsenter", "unshare", "mount")
TOOL_SECONDS = 20.0
"""The most that one call of ip, nft or tc may take."""

# A namespace lives as long as a process in it. The holder says its number on the machine (it still sees the machine's
# /proc), then waits until the pipe from the test is closed.
HOLD = "read number rest < /proc/self/stat && echo $number && exec cat"
FURNISH = """set -e
echo "$1" > /proc/sys/kernel/hostname
cd "$2"
for file in *; do if [ -e "/etc/$file" ]; then mount --bind "$file" "/etc/$file"; fi; done
ip link set lo up
"""

TABLE = """add table inet lab
add chain inet lab input { type filter hook input priority 0; }
"""


@dataclass
class Host:
    """One host of the lab: its short name, its address on eth0, and what can be done to it."""

    name: str
    address: str
    pid: int
    """Its namespaces' holder, as /proc/PID/ns shows it; eth0 is its interface."""
    lab_pid: int
    processes: list[Process] = field(default_factory=list)

    def start(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: str = "",
    ) -> Process:
        """Start a command on this host; it ends with the lab at the latest. `env` comes on top of the test's."""
        enter = ["nsenter", f"--pid=/proc/{self.lab_pid}/ns/pid", *self._enter("net", "uts", "mnt"), "--"]
        process = Process(argv, enter=enter, env=env, cwd=cwd, stdin=stdin)
        self.processes.append(process)
        return process

    def run(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on this host to its end.

        Raises:
            subprocess.TimeoutExpired: it took longer than `timeout` seconds and was killed with all its children.
        """
        return self.start(argv, env=env, cwd=cwd, stdin=stdin).finish(timeout)

    def drop(self, *, port: int | None = None, peer: Host | None = None) -> None:
        """Swallow what comes in, for a TCP port of this host, from one peer, or both."""
        self._filter(port, peer, "drop")

    def reject(
        self, *, port: int | None = None, peer: Host | None = None, how: Literal["reset", "icmp"] = "reset"
    ) -> None:
        """Refuse TCP that comes in: with a reset, or with the ICMP message of an administrator."""
        self._filter(
            port, peer, "reject with tcp reset" if how == "reset" else "reject with icmpx type admin-prohibited"
        )

    def heal(self) -> None:
        """Take back every `drop` and `reject`."""
        self.tool("nft", "-f", "-", stdin=f"{TABLE}delete table inet lab\n")

    def mtu(self, size: int) -> None:
        """Set eth0's MTU in bytes (the switch has its own: Lab.switch_mtu)."""
        self.tool("ip", "link", "set", "eth0", "mtu", str(size))

    def slow(self, mbit_per_s: float) -> None:
        """Limit what leaves by eth0."""
        rate = f"{int(mbit_per_s * 1e6)}bit"
        self.tool(
            "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "32kb", "latency", "400ms"
        )

    def unplug(self) -> None:
        """Take eth0 down; its routes go with it."""
        self.tool("ip", "link", "set", "eth0", "down")

    def plug(self) -> None:
        """Bring eth0 up again."""
        self.tool("ip", "link", "set", "eth0", "up")

    def route(self, *words: str) -> None:
        """Change a route: route("add", "blackhole", "10.9.0.0/16")."""
        self.tool("ip", "route", *words)

    def file(self, name: str, text: str) -> None:
        """Rewrite one of this host's own files: hosts, nsswitch.conf, resolv.conf or hostname of /etc."""
        done = self.run(["tee", f"/etc/{name}"], stdin=text, timeout=TOOL_SECONDS)
        assert done.returncode == 0, done.stderr

    def tool(self, *argv: str, stdin: str = "") -> str:
        """Run ip, nft or tc on this host's network; its output. An AssertionError with its words when it fails."""
        return tool(self._enter("net"), *argv, stdin=stdin)

    def _filter(self, port: int | None, peer: Host | None, verdict: str) -> None:
        assert port is not None or peer is not None, "a fault needs a port, a peer or both"
        saddr = f"ip saddr {peer.address}" if peer else ""
        match = f"tcp dport {port}" if port is not None else "meta l4proto tcp" if "reset" in verdict else ""
        self.tool("nft", "-f", "-", stdin=f"{TABLE}add rule inet lab input {saddr} {match} {verdict}\n")

    def _enter(self, *kinds: str) -> list[str]:
        return [f"--{'mount' if kind == 'mnt' else kind}=/proc/{self.pid}/ns/{kind}" for kind in kinds]


@dataclass
class Lab:
    """The hosts, and the switch between them."""

    pid: int
    hosts: list[Host] = field(default_factory=list)

    def host(self, index: int) -> Host:
        """The host with this index, from 0."""
        return self.hosts[index]

    def cut(self, source: Host, destination: Host, *, one_way: bool = False) -> None:
        """Swallow everything between two hosts; with `one_way` only what goes from `source` to `destination`."""
        destination.drop(peer=source)
        if not one_way:
            source.drop(peer=destination)

    def switch_mtu(self, size: int) -> None:
        """Set the MTU in bytes of every port of the switch: larger packets vanish there without a word."""
        for index in range(len(self.hosts)):
            tool([f"--net=/proc/{self.pid}/ns/net"], "ip", "link", "set", f"port{index}", "mtu", str(size))

    @property
    def processes(self) -> list[Process]:
        """Every process that was started on a host."""
        return [process for host in self.hosts for process in host.processes]

    def kill(self) -> None:
        """End every process on every host; the hosts stay."""
        for process in self.processes:
            process.kill()


@contextmanager
def hosts(count: int, *, subnet: str = "10.77.0.0/24", names: Sequence[str] = ()) -> Iterator[Lab]:
    """`count` hosts with the first addresses of `subnet`, called `names` or node0, node1, ….

    Skips the test, with the reason, without root, the tools, or the right to make namespaces.
    """
    need(*TOOLS)
    network = ipaddress.ip_network(subnet)
    addresses = [str(network[index + 1]) for index in range(count)]
    called = list(names) or [f"node{index}" for index in range(count)]
    with ExitStack() as stack:
        lab = Lab(stack.enter_context(_holder(["unshare", "--pid", "--fork", "--kill-child", "--net"])))
        stack.callback(lab.kill)
        with tempfile.TemporaryDirectory(prefix="ddpdoctor-lab-") as folder:
            for name, address in zip(called, addresses, strict=True):
                files = _furniture(Path(folder) / name, name, dict(zip(called, addresses, strict=True)))
                enter = ["nsenter", f"--pid=/proc/{lab.pid}/ns/pid", "unshare", "--net", "--uts", "--mount"]
                pid = stack.enter_context(_holder(enter, FURNISH, name, str(files)))
                lab.hosts.append(Host(name, address, pid, lab.pid))
        _connect(lab, network.prefixlen)
        yield lab


@contextmanager
def _holder(enter: Sequence[str], setup: str = "", *words: str) -> Iterator[int]:
    """A process that keeps namespaces alive; its number. It ends with this block, or with the process that opened it."""
    with subprocess.Popen(
        [*enter, "sh", "-c", setup + HOLD, "sh", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": PATH},
        start_new_session=True,
    ) as popen:
        assert popen.stdin is not None
        assert popen.stdout is not None
        assert popen.stderr is not None
        said = ""
        try:
            said = popen.stdout.readline()
            if not said:
                reason = popen.stderr.read().strip()
                if "Operation not permitted" in reason:
                    pytest.skip(f"no namespaces may be made here: {reason}")
                raise RuntimeError(f"a host of the lab did not come up: {reason}")
            yield int(said)
        finally:
            popen.stdin.close()
            if said:
                _kill(int(said))
            popen.wait(TOOL_SECONDS)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself when its pipe was closed


def _furniture(folder: Path, name: str, addresses: Mapping[str, str]) -> Path:
    """The files that make a host's names its own; bind mounts keep them alive when the folder is gone."""
    folder.mkdir()
    lines = ["127.0.0.1 localhost", *(f"{address} {each}" for each, address in addresses.items())]
    (folder / "hosts").write_text("\n".join(lines) + "\n")
    (folder / "hostname").write_text(f"{name}\n")
    (folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
    (folder / "resolv.conf").write_text("# no name server in the lab\n")
    return folder


def _connect(lab: Lab, prefix: int) -> None:
    switch = ["link add switch type bridge forward_delay 0 stp_state 0", "link set switch addrgenmode none up"]
    for index, host in enumerate(lab.hosts):
        switch += [
            f"link add port{index} type veth peer name eth0 netns {host.pid}",
            f"link set port{index} addrgenmode none master switch up",
        ]
    tool([f"--net=/proc/{lab.pid}/ns/net"], "ip", "-batch", "-", stdin="\n".join(switch) + "\n")
    for host in lab.hosts:
        # One segment a packet: veth lets larger ones through whatever the MTU, and a fault of the MTU would not bite.
        up = [
            "link set eth0 gso_max_segs 1 addrgenmode none",
            f"addr add {host.address}/{prefix} dev eth0",
            "link set eth0 up",
        ]
        host.tool("ip", "-batch", "-", stdin="\n".join(up) + "\n")


def tool(enter: Sequence[str], *argv: str, stdin: str = "") -> str:
    """Run ip, nft or tc in a namespace; its output. An AssertionError with its words when it fails."""
    done = subprocess.run(
        ["nsenter", *enter, "--", *argv],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS,
        env={**os.environ, "PATH": PATH},
    )
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr.strip()}\n{stdin}"
    return done.stdout
