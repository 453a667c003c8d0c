"""LOG521: EFA adapters get no answer from the other node."""

from __future__ import annotations

from ddpdoctor.findings import CausalStage, Severity, Speaker
from ddpdoctor.rules import cause

__all__: list[str] = []


@cause(
    "LOG521",
    "efa-security-group",
    Severity.ERROR,
    stage=CausalStage.REACHABILITY,
    speaker=Speaker.LINK_END,
    signatures=(r"Unresponsive receiver", r"LOCAL_ERROR_UNRESP_REMOTE|LOCAL_ERROR_UNREACH_REMOTE"),
)
def efa_security_group() -> None:
    """An EFA peer does not respond; often a security group blocks its traffic.

    ## Why it matters
    `Unresponsive receiver (reachable by EFA device but handshake failed)`, error 15 or 4126: TCP works, so the job starts,
    and the first collective over EFA fails. A peer that has ended causes the same message; then its own error is the cause.

    ## Fix
    Let the security group allow all traffic, inbound and outbound, from and to itself (a rule with the group as source, not
    0.0.0.0/0), and put all nodes into it, in one subnet.

    ## Example

        NCCL WARN NET/OFI Request completed with error. RC: 103. Error: 15 (Unresponsive receiver (…handshake failed))

        # before: the group only allows 0.0.0.0/0
        # after
        aws ec2 authorize-security-group-ingress --group-id sg-0123 --protocol -1 --source-group sg-0123
        aws ec2 authorize-security-group-egress --group-id sg-0123 --protocol -1 --source-group sg-0123

    ## Source
    prov/efa/src/efa_strerror.c of libfabric; AWS, "Get started with EFA and NCCL": an EFA-enabled security group.
    """
