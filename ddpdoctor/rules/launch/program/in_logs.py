"""LAUNCH077: launchers that log in to every host, as their output shows it."""

from __future__ import annotations

from ddpdoctor.findings import Severity
from ddpdoctor.rules import rule


@rule(
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
