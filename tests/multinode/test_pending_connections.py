"""Connections that have not sent anything yet."""

import asyncio
import socket

from ddpdoctor.multinode.pending_connections import PendingConnections


async def _never(sent: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    raise AssertionError("the connection was passed on after the end")


def test_a_connection_that_speaks_while_everything_ends_is_closed() -> None:
    """Its task is cancelled before its first step, so that the task itself closes nothing."""

    async def run() -> list[socket.socket]:
        pending = PendingConnections(100, lambda address: None)
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        pending.listen("main", listening, _never)
        with socket.create_connection(listening.getsockname()) as client:
            while not pending._silent:
                await asyncio.sleep(0.01)
            accepted = [silent.made for silent in pending._silent.values()]
            client.sendall(b"{}\n")
            pending._look()
            assert not pending._silent
            await pending.close()
            return accepted

    (accepted,) = asyncio.run(asyncio.wait_for(run(), 10))
    assert accepted.fileno() == -1
