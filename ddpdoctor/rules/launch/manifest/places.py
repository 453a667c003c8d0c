"""The place in a manifest that a finding points at."""

from __future__ import annotations

from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.facts.launch.words import Mark
from ddpdoctor.findings import Where


def manifest_place(line: LaunchLine, mark: Mark | None) -> Where:
    return Where(file=line.file) if mark is None else Where(file=line.file, line=mark.line, column=mark.column)
