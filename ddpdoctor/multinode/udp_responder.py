"""Answers discovery requests of nodes that do not find the host, and records the leave messages of those that give up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import field
from typing import Any

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.multinode.host import SessionHost
from ddpdoctor.multinode.host_discovery import HostDiscovery
from ddpdoctor.multinode.members import Member, departed_member
from ddpdoctor.multinode.messages import PROTOCOL
from ddpdoctor.multinode.udp_discovery import is_awaited

__all__ = ["UdpResponder"]

MOST_GONE = 256
"""Nodes that gave up: anybody on the network can send such messages."""
MOST_CHECKED = 8
SURE_SECONDS = 1.0
"""How long a place must have been empty before a node with another master address is invited."""


@dataclass
class UdpResponder:
    """`gone` are nodes that gave up before they joined, with their findings; `changed` is called for each."""

    host: SessionHost
    discovery: HostDiscovery
    changed: Callable[[], None]
    gone: dict[str, Member] = field(default_factory=dict)
    _checking: set[asyncio.Task[None]] = field(default_factory=set)
    _began: float = field(default_factory=time.monotonic)

    def answer(self, message: dict[str, Any], address: str) -> dict[str, Any] | None:
        """The answer to a request: the host's side port; or from a member that was addressed by name, not by broadcast, the
        address of the host.
        """
        host, discovery, me = self.host, self.discovery, self.host.me
        if host.is_full or discovery.side_port is None or not is_awaited(message, me, host.members, host.token):
            return None
        here = {"ddpdoctor": PROTOCOL, "kind": "here", "token": host.token, "door": discovery.side_port}
        member_of = discovery.client.host_address
        if member_of is not None:
            return (
                {**here, "guest_at": member_of}
                if message["kind"] == "call" and message.get("by_name") is True
                else None
            )
        if not (me.node.owns or discovery.hosts):
            return None
        if message["kind"] == "gone":
            if len(self._checking) < MOST_CHECKED:
                task = asyncio.get_running_loop().create_task(self._check(message))
                self._checking.add(task)
                task.add_done_callback(self._checking.discard)
            return None
        if message.get("master_addr") == me.node.master_addr:
            return here
        # A host at another address may belong to another job with the same script.
        return here if not message.get("owns") and time.monotonic() - self._began >= SURE_SECONDS else None

    async def _check(self, message: dict[str, Any]) -> None:
        """Record a node that gave up, if it proves that it belongs to this job."""
        if len(self.gone) < MOST_GONE and await self.host.authentication.has_signed(
            {key: value for key, value in message.items() if key != "by_name"}
        ):
            self.gone[str(message.get("key"))[:64]] = departed_member(message, self.host.me.node)
            self.changed()

    async def close(self) -> None:
        """Cancel what is running."""
        for task in list(self._checking):
            task.cancel()
        await asyncio.gather(*self._checking, return_exceptions=True)
