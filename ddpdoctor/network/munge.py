"""Messages between processes of one user, sealed by munge, the authentication service of Slurm clusters.

A sealed message can be opened only by processes of the user who sealed it, on the machines that share munge's key. The
commands `munge` and `unmunge` are used because the library would have to be loaded into this process.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import shutil
from collections.abc import Mapping

from ddpdoctor.system.process import LateError, run

__all__ = ["Munge"]

SECONDS = 2.0
"""Time limit per call: munged answers within milliseconds, or it is suspended."""
LONGEST = 2048
"""Characters of a sealed message."""
INTACT = (0, 15, 16, 17)
"""Exit codes of unmunge with which the content is authentic: valid, expired, from the future (clocks differ), opened before.
Fresh numbers in the message itself make sure that it is of this session.
"""
_UID = re.compile(rb"^UID:.*\((\d+)\)\s*$", re.MULTILINE)


class Munge:
    """Seals messages for the processes of this user. `uid` is the user as munged sees it, which differs in containers."""

    def __init__(self, uid: int) -> None:
        self._uid = uid

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Munge | None:
        """munge, if this process is part of a Slurm job and a message can be sealed and opened here; else None."""
        if "SLURM_JOB_ID" not in environ or not (shutil.which("munge") and shutil.which("unmunge")):
            return None
        sealed = _seal(b"", None)
        opened = None if sealed is None else _open(sealed)
        return None if opened is None else cls(opened[0])

    def sealed(self, message: bytes) -> str | None:
        """The message, encrypted for this user; None if munge failed."""
        return _seal(message, self._uid)

    def opened(self, sealed: object) -> bytes | None:
        """The content of a message that this user sealed; None if it is anything else."""
        if not isinstance(sealed, str) or len(sealed) > LONGEST or not re.fullmatch(r"MUNGE:[A-Za-z0-9+/=]+:", sealed):
            return None
        found = _open(sealed)
        return found[1] if found is not None and found[0] == self._uid else None


def _seal(message: bytes, uid: int | None) -> str | None:
    """Base64 inside, so that the content has no line ends that the commands could change."""
    only = [] if uid is None else [f"--restrict-uid={uid}"]
    try:
        done = run(["munge", "--cipher=aes128", *only], SECONDS, stdin=base64.b64encode(message), environ=os.environ)
    except (LateError, OSError):
        return None
    text = done.out.decode("ascii", "replace").strip()
    return text if done.code == 0 and len(text) <= LONGEST else None


def _open(sealed: str) -> tuple[int, bytes] | None:
    """The user who sealed it, and the content."""
    try:
        done = run(["unmunge"], SECONDS, stdin=sealed.encode(), environ=os.environ)
    except (LateError, OSError):
        return None
    about, _, content = done.out.partition(b"\n\n")
    uid = _UID.search(about)
    if done.code not in INTACT or uid is None:
        return None
    try:
        return int(uid[1]), base64.b64decode(content.strip(), validate=True)
    except binascii.Error:
        return None
