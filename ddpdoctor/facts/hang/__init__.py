"""`hang`: what the ranks of a stuck job were doing: Flight Recorder dumps, stacks, NCCL's RAS, and what /proc says of them."""

from __future__ import annotations

from ddpdoctor.facts.hang.ras import Peer, Ras
from ddpdoctor.facts.hang.record import (
    Call,
    Child,
    Dump,
    Frame,
    Group,
    Hang,
    Op,
    Process,
    Stack,
    State,
    Thread,
)

__all__ = [
    "Call",
    "Child",
    "Dump",
    "Frame",
    "Group",
    "Hang",
    "Op",
    "Peer",
    "Process",
    "Ras",
    "Stack",
    "State",
    "Thread",
]
