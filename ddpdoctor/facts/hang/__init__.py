"""`hang`: what the ranks of a stuck job were doing: Flight Recorder dumps, stacks, NCCL's RAS, and what /proc says of them."""

from __future__ import annotations

from ddpdoctor.facts.hang.record import Call, Dump, Group, Hang, Op, State

__all__ = ["Call", "Dump", "Group", "Hang", "Op", "State"]
