"""Whom a line names beside the one that printed it: the other end of a link, the ranks that do not agree."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ddpdoctor.facts.addresses import is_loopback
from ddpdoctor.facts.log import LogLine
from ddpdoctor.logs.line_prefix import short_host

__all__ = ["peer_in", "ranks_in"]

_PORT = r"(?:<\d+>|:\d+\b)"
_NAME = r"(?:::ffff:)?(?P<peer>[A-Za-z0-9_](?:[\w.-]*\w)?|[0-9a-f]*:[0-9a-f:]+)"
_PEERS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\b(?:from )?(?:remote )?peer {_NAME}<\d+>",
        rf"\b(?:[Cc]onnect(?: to)?|(?:recv|read|receive) from|(?:send|write) to|[Rr]ead error|writev|sendmsg|closed by peer"
        rf"|remote=) ?\[?{_NAME}\]?{_PORT}",
        r"ssh: (?:connect to host|Could not resolve hostname) (?P<peer>[\w.-]+)",
        r"ssh -o PasswordAuthentication=no (?P<peer>[\w.-]+) hostname",
        r"host=(?P<peer>[\w.-]+) was not reachable via ssh",
        r"\w@(?P<peer>[\w.-]+): Permission denied",
        r"trying to connect to \(?(?P<peer>[^,()\s]+?)(?:, |:)\d+\b",
    )
)
_RANKS = (
    re.compile(r"\b[Rr]ank (?P<a>\d+) and rank (?P<b>\d+) both on"),
    re.compile(r"\bRank (?P<a>\d+) is running collective"),
    re.compile(r"\bdid not receive grad for rank (?P<a>\d+)"),
    re.compile(r"\bRank (?P<a>\d+) is NOT connected to"),
)


def peer_in(lines: Iterable[LogLine]) -> str | None:
    """The host or address of the other end that these lines name; None where they name none, several, or the own machine."""
    named = (match["peer"] for line in lines for known in _PEERS if (match := known.search(line.text)) is not None)
    found = {short_host(peer) for peer in named if not is_loopback(peer)}
    return found.pop() if len(found) == 1 else None


def ranks_in(lines: Iterable[LogLine]) -> set[int]:
    """The ranks between which something does not agree, as NCCL and torch name them in one line."""
    matches = (match for line in lines for known in _RANKS for match in known.finditer(line.text))
    return {int(rank) for match in matches for rank in match.groups()}
