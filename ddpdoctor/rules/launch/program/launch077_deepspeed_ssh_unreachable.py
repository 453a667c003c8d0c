"""LAUNCH077: launchers that log in to every host, as their output shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log


@cause(
    "LAUNCH077",
    "deepspeed-ssh-unreachable",
    Severity.ERROR,
    signatures=(
        r"ssh exited with exit code 255",
        r"was not reachable via ssh",
        r"Permission denied \(publickey",
        r"Host key verification failed",
        r"No authentication methods available|not a valid RSA private key file",
        r"'?ssh -o PasswordAuthentication=no .* returned non-zero exit status 255",
        r"ssh: connect to host \S+ port \d+: ",
        r"ssh: Could not resolve hostname",
        r"\b(?:orted|prted): (?:command not found|No such file)",
        r"(ORTE|PRTE) (was unable to reliably start|has lost communication with|does not know how to route)",
    ),
)
def deepspeed_ssh_unreachable() -> None:
    """A launcher that works over ssh cannot log in to a host.

    ## Why it matters
    "pdsh@node1: node2: ssh exited with exit code 255" or "Permission denied (publickey,password)": by hand it works, because
    of an agent, a password, or another user's key; inside a container port, keys and user differ.

    ## Fix
    From the node and user that launches, without an agent: ssh -o BatchMode=yes HOST true, for every host including its own
    name; then ssh-copy-id, or give the container the keys and the port.
    """


NO_DAEMON = r"\b(?:orted|prted): (?:command not found|No such file)"


TITLE_OF_DAEMON = (
    "mpirun came to a host over ssh and did not find its own daemon there: it is not in the PATH of a shell without a "
    "terminal"
)


FIX_OF_DAEMON = (
    "Start mpirun by its full path or with --prefix, with the same Open MPI at the same place on every host, or set PATH and "
    "LD_LIBRARY_PATH in ~/.bashrc before the line that returns for shells without a terminal."
)


@deepspeed_ssh_unreachable.look
def without_daemon(log: Log) -> Iterator[Finding]:
    """What works over ssh was not let in, or did not find its own daemon there."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of, signed

    missing = matching_lines(log, (NO_DAEMON,))
    if missing:
        yield replace(finding_of(log, missing, TITLE_OF_DAEMON, blames_speaker=False), fix=FIX_OF_DAEMON)
    else:
        yield from signed(deepspeed_ssh_unreachable, log)
