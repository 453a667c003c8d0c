"""Compares the calls of a real job's ranks on this node while it runs, in a thread: `run --watch`."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ddpdoctor.rehearsal.stage import RehearsalFolder
from ddpdoctor.rehearsal.supervisor import CONFIG_VARIABLE
from ddpdoctor.sequences.comparison import Comparison
from ddpdoctor.sequences.records import RecordReader

__all__ = ["JobWatcher"]

GRACE = 0.3
"""Seconds between the first difference and the report: other ranks may still announce their calls."""
STALLED = 2.0
"""Seconds without a record after which ranks that all wait, each in another call, are reported."""
LOOK = 0.1


class JobWatcher:
    """The records of one job, from `start` to `close`. `tell` is called once, from the thread, at the first difference."""

    def __init__(self, steps: int, tell: Callable[[Comparison], None]) -> None:
        self._tell = tell
        self._stage = RehearsalFolder()
        self.comparison = Comparison(None)
        self.reasons: list[str] = []
        """Why ranks switched the watch off; "" after enough steps."""
        self.has_told = False
        self._selector = selectors.DefaultSelector()
        self._readers: dict[int, RecordReader] = {}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="watch", daemon=True)
        self._changes, self._quiet_since = -1, time.monotonic()
        self._first: float | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._stage.socket))
        self._listener.listen(256)
        self._listener.setblocking(False)
        self._stage.write({"socket": str(self._stage.socket), "watch": True, "steps": steps, "gpus": 0})

    def environ(self, environ: dict[str, str]) -> dict[str, str]:
        """The environment of the job, with the hook."""
        path = os.pathsep.join(filter(None, (str(self._stage.modules), environ.get("PYTHONPATH"))))
        return {**environ, CONFIG_VARIABLE: str(self._stage.config), "PYTHONPATH": path}

    def start(self) -> None:
        """Read from now on."""
        self._thread.start()

    def close(self) -> None:
        """End the thread and remove all files."""
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._listener.close()
        self._selector.close()
        self._stage.close()

    def _serve(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        while not self._ends.is_set():
            for key, _ in self._selector.select(LOOK):
                key.data(key.fileobj)
            self._look(time.monotonic())
        for key, _ in self._selector.select(0):  # what the ranks said last
            key.data(key.fileobj)

    def _accept(self, listener: Any) -> None:
        connection, _ = listener.accept()
        connection.setblocking(False)
        number = len(self._readers) + 1
        self._readers[number] = RecordReader()
        self._selector.register(connection, selectors.EVENT_READ, lambda file: self._read(file, number))

    def _read(self, connection: Any, number: int) -> None:
        try:
            data = connection.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(connection)
            connection.close()
            if not self.reasons:
                self.comparison.disconnected(number)
            return
        for record in self._readers[number].feed(data):
            if record["k"] == "watched":
                self.reasons.append(str(record.get("reason", "")))
            if not self.reasons:
                self.comparison.add(number, record)

    def _look(self, now: float) -> None:
        """Report a difference, once. After the first rank has switched off, the others have nothing to be compared with."""
        if self.has_told or self.reasons:
            return
        comparison = self.comparison
        if comparison.changes != self._changes:
            self._changes, self._quiet_since = comparison.changes, now
        if comparison.found is None and comparison.difference is None and now - self._quiet_since > STALLED:
            comparison.difference = comparison.stalled()
        if comparison.found is not None or comparison.difference is not None:
            self._first = self._first or now
            if now - self._first >= GRACE:
                self.has_told = True
                self._tell(comparison)
