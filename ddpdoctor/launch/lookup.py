"""What the reader of a launch line needs to know about the files in it. The package `launch` itself opens no file."""

from __future__ import annotations

from typing import Protocol

from ddpdoctor.facts.launch.record import StartedScript

__all__ = ["NO_FILES", "FileLookup"]


class FileLookup(Protocol):
    """Answers about files, given by a collector; paths are absolute, or relative to where ddpdoctor was started."""

    def script(self, path: str) -> StartedScript | None:
        """The training script at `path`, None if scripts are not looked for."""

    def text(self, path: str) -> str | None:
        """The beginning of a text file, None if it cannot be read."""

    def is_folder(self, path: str) -> bool:
        """Whether `path` is a folder."""


class _NoFiles:
    def script(self, path: str) -> StartedScript | None:
        return None

    def text(self, path: str) -> str | None:
        return None

    def is_folder(self, path: str) -> bool:
        return False


NO_FILES: FileLookup = _NoFiles()
"""Looks for no file: for lines of another machine."""
