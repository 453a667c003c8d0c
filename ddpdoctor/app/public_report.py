"""Reports as they may leave the process: in files, pipes and to other nodes without secrets; on a terminal as they are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ddpdoctor.privacy.reports import secrets_in, secrets_of_variables, without_secrets, without_values
from ddpdoctor.system.regular_file import text_of_regular

if TYPE_CHECKING:
    from ddpdoctor.app.request import Request
    from ddpdoctor.findings import Report

__all__ = ["public_report", "public_text"]

LARGEST_FILE_BYTES = 1 << 16
MOST_FILES = 16
"""Files that findings point into are read again for secrets that span lines: the first of them, up to a size."""


def public_report(report: Report, request: Request) -> Report:
    """The report without secrets of the launch line, the environment, and the files that it quotes."""
    files = {finding.where.file for finding in report.findings if finding.where.file is not None}
    texts = (*_launch(request), *_texts(sorted(files)[:MOST_FILES]))
    return without_secrets(report, texts, secrets_of_variables(os.environ))


def public_text(text: str, request: Request) -> str:
    """A text of ddpdoctor's own about the launch line, without its secrets."""
    known = secrets_in(_launch(request)) | secrets_of_variables(os.environ)
    return without_values(known)(text)


def _launch(request: Request) -> tuple[str, ...]:
    return () if request.launch is None else (" ".join(request.launch), *request.launch)


def _texts(paths: Iterable[str]) -> Iterable[str]:
    for path in paths:
        try:
            if os.path.isfile(path) and os.path.getsize(path) <= LARGEST_FILE_BYTES:
                yield text_of_regular(path, LARGEST_FILE_BYTES)
        except OSError:  # removed since it was judged: nothing of it is quoted that the report does not hold
            continue
