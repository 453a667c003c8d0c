"""Nodes of the job that do not find its host: what is answered when they call, and what they say when they give up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ddpdoctor.multinode.host import Host
from ddpdoctor.multinode.host_discovery import Seeker
from ddpdoctor.multinode.members import Guest, gone_of
from ddpdoctor.multinode.messages import PROTOCOL
from ddpdoctor.multinode.udp_discovery import is_awaited

__all__ = ["Callers"]

SURE_SECONDS = 1.0
"""How long a place must have been empty before a node that was told another address is asked in."""


@dataclass
class Callers:
    """`gone` are those that gave up before they had come, and what each said was wrong; `changed` is called for each."""

    host: Host
    seeker: Seeker
    changed: Callable[[], None]
    gone: dict[str, Guest] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    def answer(self, told: dict[str, Any], address: str) -> dict[str, Any] | None:
        """What a node is answered that calls: the host says where its own side door is, and a guest that was called by its
        name, not with all others, at which address it has found the host.
        """
        host, seeker, me = self.host, self.seeker, self.host.me
        if host.is_full or seeker.door is None or not is_awaited(told, me, host.guests, host.token):
            return None
        here = {"ddpdoctor": PROTOCOL, "kind": "here", "token": host.token, "door": seeker.door}
        guest_at = seeker.visitor.seat
        if guest_at is not None:
            return {**here, "guest_at": guest_at} if told["kind"] == "call" and told.get("by_name") is True else None
        if not (me.node.owns or seeker.hosts):
            return None
        if told["kind"] == "gone":
            self.gone[str(told.get("key"))] = gone_of(told, me.node)
            self.changed()
            return None
        if told.get("master_addr") == me.node.master_addr:
            return here
        # A host of its own at another address may be another job's of the same script.
        return here if not told.get("owns") and time.monotonic() - self._began >= SURE_SECONDS else None
