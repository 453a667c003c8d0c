"""The files with settings: the pyproject.toml files at and above the working directory, and the site-wide file.

Imports as little as possible: `ddpdoctor check` reads them before it imports anything else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ddpdoctor.system.regular_file import read_regular

__all__ = ["SITE_FILE", "SITE_VARIABLE", "project_files", "read_bytes", "site_file"]

SITE_FILE = "/etc/ddpdoctor.toml"
SITE_VARIABLE = "DDPDOCTOR_SITE_CONFIG"
"""Environment variable with another path of the site-wide file; empty for none."""


MOST_BYTES = 4 << 20
"""Settings are a few lines; lock tables in a pyproject.toml reach some hundred KiB."""


def project_files() -> list[str]:
    """The pyproject.toml files with settings of ddpdoctor, the nearest first."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # the working directory was removed
        return []
    found = []
    while True:
        path = os.path.join(folder, "pyproject.toml")
        if os.path.isfile(path) and b"ddpdoctor" in read_bytes(path):
            found.append(path)
        above = os.path.dirname(folder)
        if above == folder:
            return found
        folder = above


def site_file(environ: Mapping[str, str]) -> str | None:
    """The site-wide file, None without one."""
    path = environ.get(SITE_VARIABLE, SITE_FILE)
    return path if path and os.path.isfile(path) else None


def read_bytes(path: str) -> bytes:
    """What a file holds; nothing if this user may not read it."""
    try:
        return read_regular(path, MOST_BYTES)
    except OSError:
        return b""
