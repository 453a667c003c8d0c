"""Texts that a job executes: files that are there or that it wrote, and where their characters were written."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.started_launchers import full_path
from ddpdoctor.launch.evaluator.values import Origin, Value
from ddpdoctor.launch.lookup import FileLookup

__all__ = ["JobTexts"]


class JobTexts:
    """The texts of one job: its own, and those of files."""

    def __init__(self, files: FileLookup, written: Mapping[str, str | None]) -> None:
        self._files = files
        self.written: dict[str, str | None] = dict(written)
        self.written_at_places: dict[str, tuple[Origin, ...]] = {}
        self.source, self.file = "", ""

    def read(self, path: str, folder: str | None) -> str | None:
        """A file that the job has written, or one that is there; None where a piece of it is unknown."""
        text = self.read_all(path, folder)
        return None if text is None or UNKNOWN in text else text

    def read_all(self, path: str, folder: str | None) -> str | None:
        """The same with its unknown pieces, for a shell that executes it."""
        full = full_path(path, folder)
        if (
            full in self.written or UNKNOWN in full
        ):  # a path with an unknown piece is the same wherever it is written alike
            return self.written.get(full)
        return self._files.text(full)

    def own_script(self, program: Value, folder: str | None) -> Value | None:
        """The text of a shell script that is run by its path, `./wrapper.sh`; None for every other program."""
        text = self.read_script(program, folder) if "/" in program.text else None
        return text if text is not None and _SHELL_SCRIPT.match(text.text) else None

    def read_script(self, path: Value, folder: str | None) -> Value | None:
        """The text of a file with the place where the job file writes it, else that of the word that names it."""
        text = self.read_all(path.text, folder) if path.is_known or not path.varies else None
        origins = self.written_at_places.get(full_path(path.text, folder), ())
        return None if text is None else Value(text, origins or path.origins)

    def places_of(self, text: Value) -> Callable[[int, int], Origin] | None:
        """Where the characters of a text are: of `bash -c '…'` exactly, of a here-document with expansions by its rows."""
        whole = text.origins[0] if text.origins and text.text else None
        if whole is None or whole.file != self.file:
            return None
        at = self.source.find(text.text, whole.start, whole.end) if len(text.origins) == 1 else -1
        if at >= 0:
            return lambda start, end: Origin(whole.file, at + start, at + end)
        written = self.source[whole.start : whole.end]
        ends = [each.end() for each in _ROW_END.finditer(written)]
        if len(ends) != text.text.count("\n") or len(ends) < 2:
            return None
        rows = [whole.start, *(whole.start + end for end in ends)]
        breaks = [each.start() for each in re.finditer("\n", text.text)]

        def row_of(start: int, end: int) -> Origin:
            row = bisect_left(breaks, start)
            last = self.source.find("\n", rows[row])
            begin = rows[row] + len(self.source[rows[row] : last]) - len(self.source[rows[row] : last].lstrip())
            return Origin(whole.file, begin, max(begin, last))

        return row_of


_ROW_END = re.compile(r"(?<!\\)(?:\\\\)*\n")
"""The end of a row that no backslash continues."""


_SHELL_SCRIPT = re.compile(r"#!\S*/(?:env )?(?:ba|da|z|k)?sh\b")
