"""The session of all nodes as a collector: runs in parallel to the others with a time limit, independent of other nodes."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddpdoctor.facts.nodes import Node
from ddpdoctor.multinode.authentication import Authentication
from ddpdoctor.multinode.client import MemberClient
from ddpdoctor.multinode.members import Member
from ddpdoctor.multinode.messages import PROTOCOL
from ddpdoctor.multinode.results import LostNode, NotJoined, ReceivedVerdict, SessionResult
from ddpdoctor.multinode.session import MemberSession
from ddpdoctor.network.aio import SEGMENT_BYTES
from ddpdoctor.network.connect import can_bind, connect, has_address, listen_as_master
from ddpdoctor.network.munge import Munge
from ddpdoctor.network.proof import NO_SECRET, SECRET_VARIABLE, secret_of
from ddpdoctor.network.resolve import look_up, look_up_canonical
from ddpdoctor.system.machine import Machine
from ddpdoctor.system.timeouts import CallTimeout, call_with_timeout, start_thread

__all__ = [
    "BackgroundSession",
    "authentication_of",
    "claim",
    "flag",
    "is_own",
    "is_translated",
    "machine_key",
    "recognises",
    "script_hash",
    "token_of",
]

CLAIM_SECONDS = 0.6
"""How long a port in use is retried: a check that has just ended may still have it open."""
ANSWER_SECONDS = 5.0
"""How long to wait for another ddpdoctor that has the port open but is still collecting facts."""
HOST_SECONDS = 2.0
BACK_SECONDS = 0.5
SETTLE_SECONDS = 5.0
"""How long the host waits until its verdict is with all members and the port is free."""
MAX_SCRIPT_BYTES = 16 << 20


def flag(port: int) -> socket.socket | None:
    """An abstract socket that shows other processes on this machine that a ddpdoctor has this port; None if another has it."""
    sign = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sign.bind(f"\0ddpdoctor/{port}")
        return sign
    except OSError:
        sign.close()
        return None


def _is_flagged(port: int) -> bool:
    sign = flag(port)
    if sign is not None:
        sign.close()
    return sign is None


def claim(
    port: int, token: str, authentication: Authentication, host: str = ""
) -> tuple[socket.socket | None, dict[str, Any]]:
    """The listening socket on the job's port; or None, and the identity of the ddpdoctor that has the port. With an address of
    this machine as `host` it listens there only, else at all addresses.

    The identity is {} if no ddpdoctor answers there: the port is in use then.
    """
    started = time.monotonic()
    while True:
        try:
            return listen_as_master(port, host, SEGMENT_BYTES), {}
        except OSError:
            client = MemberClient(token, lambda seconds: None, lambda verdict: None, lambda words: None)
            client.authentication = authentication
            identity = asyncio.run(client.identify(host if has_address(host) else "127.0.0.1", port))
            if identity.get("kind") in ("i-am", "other-job"):
                return None, identity
            waited = time.monotonic() - started
            if waited > ANSWER_SECONDS or (waited > CLAIM_SECONDS and not _is_flagged(port)):
                return None, {}
        time.sleep(0.1)


def is_translated(main: socket.socket, host: str, port: int) -> bool:
    """Whether an address that this machine does not have is forwarded to its socket: a Kubernetes service, or a floating IP."""
    addresses = look_up(host, HOST_SECONDS).addresses
    return not any(map(can_bind, addresses)) and any(_leads_back(main, address, port) for address in addresses)


def is_own(host: str) -> bool:
    """Whether a name or an address is one of this machine's; False if the lookup times out."""
    return any(map(can_bind, look_up(host, HOST_SECONDS).addresses))


def _leads_back(main: socket.socket, address: str, port: int) -> bool:
    """Connect, and check whether the connection arrives at `main`. Other clients are closed and have to retry."""
    nonce = secrets.token_bytes(16)
    try:
        link = connect(address, port, BACK_SECONDS)
    except OSError:
        return False
    with link:
        link.sendall(nonce)
        end = time.monotonic() + BACK_SECONDS
        while time.monotonic() < end:
            try:
                accepted, _ = main.accept()
            except BlockingIOError:
                time.sleep(0.01)
                continue
            with accepted:
                accepted.settimeout(0.2)
                try:
                    if accepted.recv(len(nonce)) == nonce:
                        return True
                except OSError:
                    continue  # another client, which sends nothing
    return False


def recognises(host: str) -> bool:
    """Whether torch's c10d rendezvous would consider this machine the host of an endpoint.

    The same checks in the same order as torch/distributed/elastic/rendezvous/utils.py: `_matches_machine_hostname`.
    """
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if address is not None and address.is_loopback:
        return True
    try:
        return call_with_timeout(lambda: _matches(host, address), HOST_SECONDS)
    except (CallTimeout, OSError):
        return False


def _matches(host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
    here = socket.gethostname()
    if host == here:
        return True
    try:
        theirs = {address for _, address in look_up_canonical(host)}
    except (OSError, UnicodeError):
        theirs = set()
    return any(
        (name and name == host) or own in theirs or (address and own == str(address))
        for name, own in look_up_canonical(here)
    )


def machine_key() -> str:
    """Equal for processes of one machine and one network namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return hashlib.sha256(f"{boot}/{os.readlink('/proc/self/ns/net')}".encode()).hexdigest()[:16]
    except OSError:
        return socket.gethostname()


def script_hash(machine: Machine, path: str) -> str | None:
    """A hash of the script's text, "" if there is no such file, None if it cannot be read."""
    try:
        with open(machine.root.at(path), "rb") as file:
            return hashlib.sha256(file.read(MAX_SCRIPT_BYTES)).hexdigest()[:16]
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError:
        return None


def token_of(*parts: str) -> str:
    """A token that is equal for the nodes of one job. It is not a secret: it only separates jobs."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def authentication_of(environ: Mapping[str, str], path: str | None) -> Authentication:
    """What this node can prove to the other nodes: the secret in `path`, DDPDOCTOR_SECRET_FILE, or the home folder, else
    munge in a Slurm job. `none` as the path is for nodes that should not prove anything.

    No file is made: on nodes without a shared home each node would have its own, and through the cache of a network file
    system nodes would see it at different times. Both would keep nodes apart that belong together.

    Raises:
        SecretError: a file that was named cannot be used.
    """
    if (path or environ.get(SECRET_VARIABLE)) == NO_SECRET:
        return Authentication()
    secret = secret_of(environ, path)
    return Authentication(secret, None if secret is not None else Munge.of(environ))


class BackgroundSession:
    """A session in its own thread. `result` waits for it; the host must then call `conclude`."""

    def __init__(
        self,
        node: Node,
        token: str,
        join_seconds: float,
        *,
        main: socket.socket | None,
        errors: Sequence[dict[str, Any]],
        line: dict[str, Any],
        is_patient: bool,
        patience: float,
        say: Callable[[str], None],
        explain: Callable[[], list[dict[str, Any]]],
        lost: Callable[[LostNode], None],
        hosts: tuple[str, ...],
        authentication: Authentication,
    ) -> None:
        member = Member(secrets.token_hex(8), node, tuple(errors), line)
        own = frozenset(address.partition("%")[0] for address in node.addresses)
        self._session = MemberSession(member, token, join_seconds, own, main, is_patient, say, patience, explain, hosts)
        self._session.lost, self._session.authentication = lost, authentication
        self._is_settled = threading.Event()
        self._answers: queue.Queue[SessionResult | ReceivedVerdict | NotJoined | Exception] = queue.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._verdict: asyncio.Future[dict[str, Any]] | None = None
        self._thread = start_thread(self._run, "session")

    def result(self, seconds: float) -> SessionResult | ReceivedVerdict | NotJoined | None:
        """The result, None if it is not complete within `seconds`."""
        try:
            answer = self._answers.get(timeout=max(seconds, 0.01))
        except queue.Empty:
            return None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def conclude(self, verdict: dict[str, Any], places: dict[str, dict[str, Any]], *, watches: bool) -> None:
        """As the host: send the verdict to all members, and each member its place; the port is free when this returns.

        With `watches` all stay connected, so that nodes that disappear before their ranks have joined are noticed at once.
        """
        if self._loop is not None:
            self._session.places, self._session.watches = places, watches
            self._loop.call_soon_threadsafe(self._set_verdict, {**verdict, "ddpdoctor": PROTOCOL, "kind": "verdict"})
        self._is_settled.wait(SETTLE_SECONDS)

    def _set_verdict(self, verdict: dict[str, Any]) -> None:
        if self._verdict is not None and not self._verdict.done():
            self._verdict.set_result(verdict)

    def stop(self) -> None:
        """Cancel the session."""
        if self._loop is not None and self._thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(self._cancel)
            except RuntimeError:
                return  # it has just ended
            self._thread.join(2.0)

    def _cancel(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def _run(self) -> None:
        try:
            asyncio.run(self._run_session())
        except asyncio.CancelledError:
            return
        except Exception as error:  # raised again in `result`
            self._answers.put(error)
        finally:
            self._is_settled.set()

    async def _run_session(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._session.run(self._hand_over, self._settle)

    def _settle(self, outcome: ReceivedVerdict | NotJoined | None) -> None:
        if outcome is not None:
            self._answers.put(outcome)
        self._is_settled.set()

    def _hand_over(self, gathered: SessionResult) -> asyncio.Future[dict[str, Any]]:
        assert self._loop is not None
        self._verdict = self._loop.create_future()
        self._answers.put(gathered)
        return self._verdict
