"""The connection of a rehearsed process to its supervisor: one JSON record per line, over a Unix socket.

The process ends with the supervisor: a FIFO whose writer closes raises SIGKILL here, even while the process is stuck in C.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import threading
import time
from typing import Any

__all__ = ["CONFIG_VARIABLE", "RecordChannel", "channel", "read_config"]

CONFIG_VARIABLE = "DDPDOCTOR_REHEARSAL"
"""The path of the settings of the rehearsal, a JSON file. It marks every process that belongs to it."""
MOST_RECORDS = 400_000
"""Records of one process; later ones are dropped, and the first dropped one says so."""
F_SETSIG = 10
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")


def read_config() -> dict[str, Any]:
    """The settings of the rehearsal that this process belongs to; empty outside of one."""
    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        return {}
    with open(path, encoding="utf-8") as file:
        settings: dict[str, Any] = json.load(file)
    return settings


class RecordChannel:
    """One process's connection. A forked child connects again by itself, with its own records."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None
        self._lifeline = -1
        self._sent = 0
        self.is_forked = False
        self.is_watch: bool = bool(config.get("watch"))
        """Whether this is a real job: it never waits for the supervisor and never ends with it."""
        self.is_off = False
        os.register_at_fork(after_in_child=self._forked)

    def connect(self) -> None:
        """Open the connection and tie the life of this process to that of the supervisor.

        Raises:
            OSError: the supervisor is gone.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.connect(self.config["socket"])
        except OSError:
            connection.close()
            raise
        self._socket = connection
        if self.is_watch:
            connection.setblocking(False)
        else:
            self._tie()
        environ = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        self.say("hello", pid=os.getpid(), parent=os.getppid(), environ=environ, forked=self.is_forked)

    def _tie(self) -> None:
        self._lifeline = os.open(self.config["lifeline"], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(self._lifeline, F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(self._lifeline, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(self._lifeline, fcntl.F_GETFL)
        fcntl.fcntl(self._lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)

    def _forked(self) -> None:
        self._lock = threading.RLock()
        connection, self._socket, self._sent, self.is_forked = self._socket, None, 0, True
        if connection is not None:
            connection.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
            self._tie()

    @property
    def is_connected(self) -> bool:
        """Whether this process has sent records and may send more."""
        return self._socket is not None

    def switch_off(self) -> None:
        """Send no further records."""
        self.is_off = True
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def say(self, kind: str, **fields: Any) -> None:
        """Send one record. When the supervisor is gone, this process ends at once."""
        if self.is_off:
            return
        with self._lock:
            self._sent += 1
            if self._sent > MOST_RECORDS:
                return
            if self._sent == MOST_RECORDS:
                kind, fields = "limit", {}
            try:
                if self._socket is None:
                    self.connect()
                line = json.dumps({"k": kind, "t": round(time.monotonic(), 4), **fields}, default=str)
                assert self._socket is not None
                self._socket.sendall(line.encode("utf-8", "replace") + b"\n")
            except OSError:
                if not self.is_watch:
                    os.kill(os.getpid(), signal.SIGKILL)
                self.switch_off()


_channel: RecordChannel | None = None


def channel() -> RecordChannel:
    """The channel of this process."""
    global _channel
    if _channel is None:
        _channel = RecordChannel(read_config())
    return _channel
