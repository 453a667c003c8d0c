"""Files that the script's own code opens for writing, and folders that it makes: for races between ranks."""

from __future__ import annotations

import linecache
import os
import re
import sys
import tempfile
import threading
from typing import Any

from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import frames_of_user, is_called_by_library

__all__ = ["watch"]

WRITES = os.O_WRONLY | os.O_RDWR
MOST = 500
_IGNORED = ("/dev/", "/proc/", "/sys/")
ASKED = re.compile(r"save|write|dump|export|download|cache|open|mkdir|makedirs|remove|\.to_", re.IGNORECASE)
"""What a line says that makes a library write files where the user wants them."""
TRUSTED = "/hub/trusted_list"
"""The file of torch.hub: each process makes it where it is missing."""
_local = threading.local()
_reported: set[tuple[str, str]] = set()


def watch() -> None:
    """Report files from now on. An audit hook stays until the process ends."""
    sys.addaudithook(_hook)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event not in ("open", "os.mkdir", "os.rename", "os.remove", "shutil.rmtree") or getattr(_local, "busy", False):
        return
    _local.busy = True
    try:
        _report(event, args)
    finally:
        _local.busy = False


def _report(event: str, args: tuple[Any, ...]) -> None:
    path = args[1] if event == "os.rename" else args[0]
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, (str, os.PathLike)):
        return
    kind = event
    if event == "open":
        mode, flags = args[1], args[2] if len(args) > 2 else 0
        is_write = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool((flags or 0) & WRITES)
        kind = ("append" if isinstance(mode, str) and "a" in mode else "write") if is_write else "read"
    path = os.path.abspath(os.fspath(path))
    if path == channel().config.get("last_step"):
        return  # the rehearsal's own
    if (
        path.startswith(_IGNORED)
        or "__pycache__" in path
        or path.endswith(TRUSTED)
        or (kind, path) in _reported
        or len(_reported) >= MOST
    ):
        return
    if kind == "read" and (path.endswith((".py", ".pyc", ".so", ".json5")) or path.startswith(sys.prefix)):
        return
    if event == "open" and os.path.isdir(path):
        return  # a temporary file without a name
    at = frames_of_user()
    if not at:
        return
    torch_distributed = sys.modules.get("ddpdoctor.rehearsal.hook.collectives")
    count = torch_distributed.calls().count if torch_distributed is not None else 0
    is_library = is_called_by_library() or _is_temporary()
    if is_library and kind != "read" and not ASKED.search(linecache.getline(at[0][0], at[0][1])):
        return  # the library's own files, of which the user's line says nothing
    _reported.add((kind, path))
    channel().say(
        "file",
        what=kind,
        path=path,
        at=at,
        call=count,
        exists=os.path.exists(path),
        library=is_library,
    )


def _is_temporary() -> bool:
    """Whether the tempfile module makes it, under a name of its own on each rank."""
    walked = sys._getframe(1)
    while walked.f_back is not None and walked.f_code.co_filename != tempfile.__file__:
        walked = walked.f_back
    return walked.f_code.co_filename == tempfile.__file__
