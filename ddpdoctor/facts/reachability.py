"""What the network says of a host: its name's lookups, and what came back from connections to it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["FARTHEST_FIRST", "Attempt", "ConnectOutcome", "Lookup"]


class ConnectOutcome(str, Enum):
    """What came back from one TCP connection to a port, which is usually the port of the job's store."""

    STORE = "store"
    """A TCPStore answered the ping."""
    STRANGER = "stranger"
    """It was accepted, and what answered (or closed the connection) is not a TCPStore."""
    SILENT = "silent"
    """It was accepted, and nothing came back: a TCPStore that runs answers."""
    REFUSED = "refused"
    """ECONNREFUSED: the host is there and nothing listens (the job has not started), or a firewall rejects."""
    RESET = "reset"
    """ECONNRESET: the connection was made, or was being made, and the other end cut it off."""
    NO_ANSWER = "no_answer"
    """ETIMEDOUT, or the deadline passed."""
    NO_HOST = "no_host"
    """No host on the local network has the address (EHOSTUNREACH after ARP found none)."""
    PROHIBITED = "prohibited"
    """A firewall forbids it (EHOSTUNREACH at once, EACCES, EPERM)."""
    NO_ROUTE = "no_route"
    """ENETUNREACH, or EINVAL for a blackhole route."""
    UNRESOLVED = "unresolved"
    """The name has no address, or the resolver did not answer in time: no connection was tried."""
    FAILED = "failed"
    """Any other error: `errno` says which."""


FARTHEST_FIRST = (
    ConnectOutcome.STORE,
    ConnectOutcome.STRANGER,
    ConnectOutcome.SILENT,
    ConnectOutcome.REFUSED,
    ConnectOutcome.RESET,
    ConnectOutcome.PROHIBITED,
    ConnectOutcome.NO_ANSWER,
    ConnectOutcome.NO_HOST,
    ConnectOutcome.NO_ROUTE,
    ConnectOutcome.UNRESOLVED,
    ConnectOutcome.FAILED,
)


@dataclass(frozen=True, slots=True)
class Lookup:
    """One question to the resolver: `addresses` in its order, or `error` in its words. `seconds` is how long it took.

    For a reverse lookup `name` is the answer, "" without one, and `addresses` holds the address asked for.
    """

    name: str
    addresses: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str | None = None
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """One connection to the master's port. `pings`: an ICMP echo was answered, None when it was not asked."""

    address: str
    outcome: ConnectOutcome
    errno: int | None = None
    seconds: float = 0.0
    pings: bool | None = None
