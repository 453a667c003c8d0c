"""LAUNCH077: launchers that log in to every host, as their output shows."""

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
        r"'?ssh -o PasswordAuthentication=no [^\n]{1,400} returned non-zero exit status 255",
        r"ssh: connect to host \S+ port \d+: ",
        r"ssh: Could not resolve hostname",
        r"\b(?:orted|prted): (?:command not found|No such file)",
        r"(ORTE|PRTE) (was unable to reliably start|has lost communication with|does not know how to route)",
    ),
)
def deepspeed_ssh_unreachable() -> None:
    """A launcher that uses ssh cannot log in to a host.

    ## Why it matters
    The launcher prints `pdsh@node1: node2: ssh exited with exit code 255` or `Permission denied
    (publickey,password)`. By hand it works because of an agent, a password, or another user's key; in a container the
    port, the keys and the user differ.

    ## Fix
    Allow ssh without a password to every host.

    Check it from the node and user that starts the job, without an agent, for every host including its own name. Then
    use ssh-copy-id, or give the container the keys and the port.

    ## Example
        pdsh@node1: node2: ssh exited with exit code 255

        # before
        deepspeed --hostfile=hostfile train.py

        # after
        ssh -o BatchMode=yes node2 true
        ssh-copy-id node2
        deepspeed --hostfile=hostfile train.py
    """


NO_DAEMON = r"\b(?:orted|prted): (?:command not found|No such file)"


TITLE_OF_DAEMON = "mpirun logged in to a host, but its daemon is not on PATH there"


FIX_OF_DAEMON = (
    "Start mpirun with its full path or `--prefix`, with the same Open MPI at the same path on every host, or set PATH and "
    "LD_LIBRARY_PATH in ~/.bashrc before the line that returns for non-interactive shells."
)


@deepspeed_ssh_unreachable.look
def without_daemon(log: Log) -> Iterator[Finding]:
    """The login over ssh failed, or mpirun did not find its daemon on the host."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of, signed

    missing = matching_lines(log, (NO_DAEMON,))
    if missing:
        yield replace(finding_of(log, missing, TITLE_OF_DAEMON, blames_speaker=False), fix=FIX_OF_DAEMON)
    else:
        yield from signed(deepspeed_ssh_unreachable, log)
