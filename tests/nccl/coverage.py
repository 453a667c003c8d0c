"""Writes docs/nccl-coverage.md: how many of NCCL's warnings ddpdoctor names, per release, from tests/nccl/warnings.tsv.

    PYTHONPATH=tests python tests/nccl/coverage.py > docs/nccl-coverage.md

A warning counts as named if a signature of a cause matches it: as it is, or for a value that it prints (an error of CUDA or of
the system). Every other warning is quoted as the nearest reason, with its function (LOG502).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from ddpdoctor.facts.log import Log, LogLine, LogSource
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.rules import load

__all__ = ["FORMATS", "RELEASES", "Format", "codes", "document", "line_of"]

FORMATS_FILE = Path(__file__).with_name("warnings.tsv")
_FIELD = re.compile(r"%[-+ #0]*(?:\d+|\*)?(?:\.\d+)?(?:ll|l|hh|h|z|j)?([a-zA-Z%])")
_NUMBERS = {"s": "eth0", "x": "1f", "X": "1F", "p": "0x7f10", "f": "1.5", "c": "<", "m": "No such device", "%": "%"}
_CALLS = (
    "ibv_reg_mr",
    "ibv_create_qp",
    "ibv_open_device",
    "ibv_modify_qp",
    "recv from 10.0.0.4<41001>",
    "connect",
    "socket",
)
_REASONS = (
    "Cannot allocate memory",
    "Connection refused",
    "No such device",
    "Too many open files",
    "out of memory",
    "port error",
    "IBV_WC_RETRY_EXC_ERR",
    "creating",
    "/dev/shm/nccl-Qw12",
)
"""What warnings print of calls that failed, and why: the values that users meet most."""


@dataclass(frozen=True, slots=True)
class Format:
    """A warning of NCCL's source, the function that prints it, and the first and the last of RELEASES that have it."""

    file: str
    function: str
    first: str
    last: str
    text: str

    def is_in(self, release: str) -> bool:
        """Whether a release has it."""
        return RELEASES.index(self.first) <= RELEASES.index(release) <= RELEASES.index(self.last)


def _read() -> tuple[Format, ...]:
    with FORMATS_FILE.open(newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return tuple(Format(*row) for row in rows[1:])


FORMATS = _read()
RELEASES = tuple(
    sorted(
        {r for f in FORMATS for r in (f.first, f.last)}, key=lambda release: [int(part) for part in release.split(".")]
    )
)


def line_of(each: Format, *values: str) -> str:
    """The warning as NCCL prints it, in the form of its last release; `values` replace its texts, the last one all others."""
    given = iter(values)
    text = _FIELD.sub(
        lambda m: next(given, values[-1] if values else "eth0") if m[1] == "s" else _NUMBERS.get(m[1], "3"), each.text
    )
    function = f" ({each.function})" if each.last == RELEASES[-1] else ""
    return f"{each.file}:12{function} NCCL WARN {text}"


def codes(lines: list[str]) -> dict[str, list[str]]:
    """Which causes a signature names, by line."""
    log = Log(sources=(LogSource("job.txt"),), lines=tuple(LogLine(0, i, line) for i, line in enumerate(lines, 1)))
    found: dict[str, list[str]] = {}
    for rule in load():
        for line in matching_lines(log, rule.signatures):
            found.setdefault(line.text, []).append(rule.code)
    return found


def named() -> dict[Format, tuple[str, ...]]:
    """The formats that a cause names, with its code."""
    tries = {each: list(dict.fromkeys(_tries(each))) for each in FORMATS}
    found = codes([line for lines in tries.values() for line in lines])
    known = {each: [code for line in lines for code in found.get(line, ())] for each, lines in tries.items()}
    return {each: tuple(dict.fromkeys(of)) for each, of in known.items() if of}


def _tries(each: Format) -> Iterator[str]:
    yield line_of(each)
    fields = [m[1] for m in _FIELD.finditer(each.text)].count("s")
    if fields and re.search(r"fail|event|Error while|completion", each.text):
        yield from (line_of(each, reason) for reason in _REASONS)
        yield from (line_of(each, *pair) for pair in product((*_CALLS, "creating", "mlx5_0"), _REASONS) if fields > 1)


PAGE = """\
# NCCL's warnings, release by release

Written by `tests/nccl/coverage.py` from `tests/nccl/warnings.tsv`, which `tests/nccl/extract_warnings.py` extracts from the
public source of NCCL (the last tag of each minor version). A warning is *named* if a cause has a signature for it, as it is or
for an error of CUDA or of the system that it prints. Every other warning is *quoted*: if the job failed, triage shows it whole
with the function that printed it, and with NCCL's own hints, as the nearest reason (LOG502).

| release | warnings | named | quoted |
|---|---|---|---|
{rows}

Two calls with the same text in two functions are two warnings. Many of them report a mistake inside NCCL or a plugin, or belong
to an interface that torch does not use; users see few of them.

No source of 2.31 and 2.32 is public as a tag of the repository. Of them, the strings of the libraries 2.31.2 and 2.32.3 were
read: the level `NCCL ATTN`, the lines `NCCL DIAG`, new hints, and new texts of known causes.

Causes that name at least one warning ({count}):

{causes}
"""


def document() -> str:
    """The page."""
    of = named()
    rows = []
    for release in RELEASES:
        present = [each for each in FORMATS if each.is_in(release)]
        known = sum(each in of for each in present)
        rows.append(f"| {release} | {len(present)} | {known} | {len(present) - known} |")
    causes = sorted({code for each in of for code in of[each]})
    return PAGE.format(rows="\n".join(rows), count=len(causes), causes="\n".join(_lines(causes)))


def _lines(words: list[str], per_line: int = 12) -> list[str]:
    rows = [words[i : i + per_line] for i in range(0, len(words), per_line)]
    return [", ".join(row) + ("," if row is not rows[-1] else ".") for row in rows]


if __name__ == "__main__":
    print(document(), end="")
