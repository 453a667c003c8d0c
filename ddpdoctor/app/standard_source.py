"""`lint -`: standard input as a file whose suffix says what it is: Python, a notebook, a manifest or a shell script."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ddpdoctor.app.request import UsageError
from ddpdoctor.findings import Report

__all__ = ["STANDARD_INPUT", "on_disk"]

STANDARD_INPUT = "-"
MOST_BYTES = 16 << 20
ANSWER_SECONDS = 60.0
"""Time limit for the end of standard input."""

Original = Callable[[Report], Report]


@contextlib.contextmanager
def on_disk(paths: Sequence[str], seconds: float = ANSWER_SECONDS) -> Iterator[tuple[list[str], Original]]:
    """The paths, `-` as a temporary file; and a function that restores the name in a report.

    Standard input that does not end within `seconds` counts as empty, which the report says.

    Raises:
        UsageError: standard input is a terminal, or `-` is given twice.
    """
    given = list(dict.fromkeys(paths))
    if STANDARD_INPUT not in given:
        yield given, lambda report: report
        return
    from ddpdoctor.app.given_names import with_given_names
    from ddpdoctor.app.standard_input import standard_bytes
    from ddpdoctor.launch.source_kind import suffix_of
    from ddpdoctor.system.lifetime import temporary_folder

    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("-: standard input is a terminal; expected a file or a pipe: ddpdoctor lint - < train.sh")
    late: tuple[str, ...] = ()
    try:
        data = standard_bytes(MOST_BYTES + 1, seconds)
    except TimeoutError as error:
        data, late = b"", (f"-: not read: {error}",)
    with temporary_folder() as folder:
        name = os.path.join(folder, f"standard_input{suffix_of(data)}")
        with open(name, "wb") as file:
            file.write(data)

        def original(report: Report) -> Report:
            report = replace(report, failures=(*late, *report.failures))
            return with_given_names(report, {name: STANDARD_INPUT})

        yield [name if path == STANDARD_INPUT else path for path in given], original
