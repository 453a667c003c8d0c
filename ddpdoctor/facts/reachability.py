"""Name lookups of a host, and the results of connections to it."""

from __future__ import annotations

from enum import Enum

from ddpdoctor.light_dataclass import dataclass

__all__ = ["FARTHEST_FIRST", "Attempt", "ConnectOutcome", "Lookup"]


class ConnectOutcome(str, Enum):
    """The result of one TCP connection to a port, usually the port of the job's store."""

    STORE = "store"
    """A TCPStore answered the ping."""
    STRANGER = "stranger"
    """Accepted, but what answered (or closed the connection) is not a TCPStore."""
    SILENT = "silent"
    """Accepted, but no answer came back: a running TCPStore answers."""
    REFUSED = "refused"
    """ECONNREFUSED: the host is up and nothing listens (the job has not started), or a firewall rejects."""
    RESET = "reset"
    """ECONNRESET: the other end reset the connection, during or after the handshake."""
    NO_ANSWER = "no_answer"
    """ETIMEDOUT, or the time limit passed."""
    NO_HOST = "no_host"
    """No host on the local network has the address (EHOSTUNREACH after ARP found none)."""
    PROHIBITED = "prohibited"
    """A firewall forbids it (EHOSTUNREACH at once, EACCES, EPERM)."""
    NO_ROUTE = "no_route"
    """ENETUNREACH, or EINVAL for a blackhole route."""
    UNRESOLVED = "unresolved"
    """The name has no address, or the resolver did not answer in time: no connection was tried."""
    FAILED = "failed"
    """Any other error: see `errno`."""


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
    """One resolver query: `addresses` in its order, or its `error`. `seconds` is how long it took.

    For a reverse lookup, `name` is the answer, "" without one, and `addresses` has the address that was looked up.
    """

    name: str
    addresses: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str | None = None
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """One connection to the master's port. `pings`: an ICMP echo was answered, None when none was sent."""

    address: str
    outcome: ConnectOutcome
    errno: int | None = None
    seconds: float = 0.0
    pings: bool | None = None
