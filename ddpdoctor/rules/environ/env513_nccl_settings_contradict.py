"""ENV513: two settings that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.settings_table import TABLE
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.environ.settings import about, line, number, value

__all__ = ["nccl_settings_contradict"]

PAIRS = (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"))
MAX_SOCKETS = 64
"""Per connection: src/transport/net_socket.cc."""


@cause("ENV513", "nccl-settings-contradict", Severity.WARNING)
def nccl_settings_contradict(environ: Environ) -> Iterator[Finding]:
    """Two settings contradict each other.

    ## Why it matters
    One of them wins silently, often not the intended one: NCCL_IB_DISABLE=1 with NCCL_IB_HCA uses no RDMA,
    NCCL_P2P_DISABLE=1 with NCCL_P2P_LEVEL=NVL uses no NVLink, and a torch variable overrides its older name.

    ## Fix
    Keep the intended one and unset the other.

    ## Example

        NCCL_P2P_LEVEL=NVL has no effect: NCCL_P2P_DISABLE=1 wins

        # before
        export NCCL_P2P_LEVEL=NVL NCCL_P2P_DISABLE=1
        # after
        unset NCCL_P2P_DISABLE

    ## Source
    NCCL src/graph/paths.cc: ncclGetLevel; src/transport/net_ib/init.cc; src/transport/net_socket.cc; torch
    c10d/Utils.hpp.
    """
    for name, other, why in _pointless(environ):
        wrong = f"has no effect: {line(environ, other)} {why}"
        yield about(environ, name, wrong, "one of the two", severity=Severity.WARNING)
    for least, most in PAIRS:
        low, high = number(environ, least), number(environ, most)
        if low is not None and high is not None and 0 < high < low:
            yield about(environ, least, f"is more than {line(environ, most)}", f"at most {high}")
    threads, sockets = number(environ, "NCCL_SOCKET_NTHREADS"), number(environ, "NCCL_NSOCKS_PERTHREAD")
    if threads and sockets and threads > 0 and sockets > 0 and threads * sockets > MAX_SOCKETS:
        wrong = f"times {line(environ, 'NCCL_SOCKET_NTHREADS')} is {threads * sockets} sockets per connection"
        wrong += f" (at most {MAX_SOCKETS})"
        yield about(environ, "NCCL_NSOCKS_PERTHREAD", wrong, f"at most {MAX_SOCKETS}")


def _pointless(environ: Environ) -> Iterator[tuple[str, str, str]]:
    """A setting, another one that makes it useless, and why."""
    level = value(environ, "NCCL_P2P_LEVEL")
    if number(environ, "NCCL_P2P_DISABLE") == 1 and level not in (None, "LOC", "0"):
        yield "NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "wins"
    if number(environ, "NCCL_IB_DISABLE"):
        if value(environ, "NCCL_IB_HCA"):
            yield "NCCL_IB_HCA", "NCCL_IB_DISABLE", "disables all RDMA devices"
        if (value(environ, "NCCL_NET") or "").lower() == "ib":
            yield "NCCL_NET", "NCCL_IB_DISABLE", "disables that network"
    for name, known in TABLE.items():
        new = known.replaced_by
        if not known.is_renamed or new is None or name not in environ.variables or new not in environ.variables:
            continue
        if _plain(environ.variables[name]) != _plain(environ.variables[new]):
            yield name, new, "wins, as the newer name"


def _plain(text: str) -> str:
    word = text.strip().lower()
    return {"true": "1", "yes": "1", "y": "1", "t": "1", "false": "0", "no": "0", "n": "0", "f": "0"}.get(word, word)
