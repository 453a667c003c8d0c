"""One TCP port of this node: whether it can be bound as torch binds it, and which sockets and processes use it."""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from collections.abc import Iterator

from ddpdoctor.facts.net import DEFAULT_PORT, Port, PortSocket
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.system.machine import Machine, Root

__all__ = ["find_free_port", "listening_ports", "look_at", "try_bind"]

STATES = {1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2", 6: "TIME_WAIT",
          7: "CLOSE", 8: "CLOSE_WAIT", 9: "LAST_ACK", 10: "LISTEN", 11: "CLOSING"}  # fmt: skip
SOCKETS_MAX = 32
OWNER_SECONDS = 1.0
"""How long the search through /proc/*/fd may take."""
OFFERED = range(DEFAULT_PORT, DEFAULT_PORT + 500)
"""Below the usual ephemeral range, so that no outgoing connection can take the port."""

STORE_ABOVE = ("TORCHELASTIC_RUN_ID", "NODE_RANK")
"""Variables of ranks whose store is hosted by an ancestor."""


@dataclass(frozen=True, slots=True)
class SocketRow:
    """One line of /proc/net/tcp."""

    state: str
    local: str
    local_port: int
    remote: str
    inode: str
    uid: str


def look_at(machine: Machine, number: int, is_set: bool) -> Port:
    """Try to bind the port, and list the sockets and processes that use it.

    Raises:
        OSError: no socket could be created (EMFILE).
    """
    refusal = try_bind(number)
    rows = [row for row in _rows(machine.root) if row.local_port == number][:SOCKETS_MAX]
    holders = _holders(machine.root, {row.inode for row in rows} - {"0"})
    return Port(
        number=number,
        is_set=is_set,
        bind_error=None if refusal is None else os.strerror(refusal),
        is_taken=refusal == errno.EADDRINUSE,
        sockets=tuple(_describe(machine, row, holders.get(row.inode)) for row in rows),
    )


def try_bind(number: int) -> int | None:
    """The errno of binding the port as torch's store does (all addresses, IPv6 then IPv4, SO_REUSEADDR), None if it can.

    The socket never listens and is closed at once.

    Raises:
        OSError: no socket could be created.
    """
    refusal = None
    for family, everywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            trying = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:
                continue
            raise
        with trying:
            try:
                trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    trying.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                trying.bind((everywhere, number))
            except OSError as error:
                refusal = error.errno or errno.EADDRINUSE
            else:
                return None
    return refusal


def find_free_port(other_than: int) -> int | None:
    """A port that can be bound now, None if none of OFFERED can."""
    return next((n for n in OFFERED if n != other_than and try_bind(n) is None), None)


def listening_ports(root: Root) -> tuple[int, ...]:
    """The TCP ports with a listener in this network namespace."""
    return tuple(sorted({row.local_port for row in _rows(root) if row.state == "LISTEN"}))


def _rows(root: Root) -> Iterator[SocketRow]:
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (root.line(path) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and re.fullmatch(r"[0-9A-F]+:[0-9A-F]{4}", words[1]):
                local, _, port = words[1].partition(":")
                remote, _, remote_port = words[2].partition(":")
                yield SocketRow(
                    state=STATES.get(int(words[3], 16), words[3]),
                    local=_address(local),
                    local_port=int(port, 16),
                    remote=f"{_address(remote)}:{int(remote_port, 16)}" if int(remote_port, 16) else "",
                    inode=words[9],
                    uid=words[7],
                )


def _address(word: str) -> str:
    """An address as the kernel prints it: 32-bit words in host order (little endian on every machine with a GPU)."""
    raw = b"".join(bytes.fromhex(word[i : i + 8])[::-1] for i in range(0, len(word), 8))
    text = socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
    return text.removeprefix("::ffff:") if "." in text else text


def _holders(root: Root, inodes: set[str]) -> dict[str, int]:
    """The process of each socket inode, as far as /proc is readable, within OWNER_SECONDS."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    holders: dict[str, int] = {}
    ends = time.monotonic() + OWNER_SECONDS
    for pid in root.names("/proc"):
        if not pid.isdigit() or len(holders) == len(wanted) or time.monotonic() > ends:
            continue
        for descriptor in root.names(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(root.at(f"/proc/{pid}/fd/{descriptor}"))
            except OSError:
                continue  # closed, or the process ended, in the meantime
            if target in wanted:
                holders.setdefault(wanted[target], int(pid))
    return holders


def _describe(machine: Machine, row: SocketRow, pid: int | None) -> PortSocket:
    if pid is None:
        user = _user(machine.root, [row.uid]) if row.inode != "0" else None
        return PortSocket(row.state, row.local, row.remote, user=user)
    root = machine.root
    command = (root.line(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
    status = dict(line.partition(":")[::2] for line in (root.line(f"/proc/{pid}/status") or "").splitlines())
    given = dict(pair.partition("=")[::2] for pair in (root.line(f"/proc/{pid}/environ") or "").split("\0"))
    parent = status.get("PPid", "").strip()
    return PortSocket(
        state=row.state,
        local=row.local,
        remote=row.remote,
        pid=pid,
        command=command[:200] or status.get("Name", "").strip() or None,
        user=_user(root, status.get("Uid", "").split()),
        container=_container(root, pid),
        is_ours=pid == os.getpid() or _is_our_launcher(machine, pid) or _is_our_rank_zero(machine, given),
        is_orphan=parent == "1" and "RANK" in given,
    )


def _user(root: Root, uids: list[str]) -> str | None:
    """The name of a user, from /etc/passwd only: a directory service may block."""
    if not uids:
        return None
    lines = (root.line("/etc/passwd") or "").splitlines()
    names = (line.split(":") for line in lines)
    return next((words[0] for words in names if len(words) > 2 and words[2] == uids[0]), f"uid {uids[0]}")


def _container(root: Root, pid: int) -> str | None:
    """The short id of a process's container, if it is not the container of this process."""
    theirs, ours = root.line(f"/proc/{pid}/cgroup"), root.line("/proc/self/cgroup")
    matched = re.search(r"([0-9a-f]{12})[0-9a-f]{52}", theirs or "")
    return matched[1] if matched and theirs != ours else None


def _is_our_launcher(machine: Machine, pid: int) -> bool:
    """Whether an ancestor with the port is the job's launcher: torchrun's agent hosts the store of its ranks, and Lightning's
    rank 0 starts the others. Another ancestor that has the port is not.
    """
    return any(name in machine.environ for name in STORE_ABOVE) and pid in _ancestors(machine.root)


def _ancestors(root: Root) -> set[int]:
    """This process and its ancestors: a torchrun agent among them has the port open for this job."""
    ancestors, pid = set[int](), os.getpid()
    while pid > 1 and pid not in ancestors:
        ancestors.add(pid)
        parent = re.search(r"^PPid:\s*(\d+)", root.line(f"/proc/{pid}/status") or "", re.M)
        pid = int(parent[1]) if parent else 0
    return ancestors


def _is_our_rank_zero(machine: Machine, given: dict[str, str]) -> bool:
    """Whether the process is rank 0 of the job in which this process is another rank, judged by its variables."""
    ours = machine.environ
    same = all(ours.get(name) == given.get(name) for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    return bool(ours.get("RANK")) and ours.get("RANK") != "0" and given.get("RANK") == "0" and same
