"""A listener that keeps what a use case tells."""

from __future__ import annotations


class RecordingListener:
    """Keeps phases and notices in their order."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.notices: list[str] = []
        self.ended = 0

    def phase(self, text: str) -> None:
        self.phases.append(text)

    def step(self, text: str) -> None:
        pass  # a phase comes further many times

    def end(self) -> None:
        self.ended += 1

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def warning(self, text: str) -> None:
        self.notices.append(text)

    def error(self, text: str) -> None:
        self.notices.append(text)
