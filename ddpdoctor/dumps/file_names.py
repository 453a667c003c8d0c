"""What file names say: the rank of a dump or a stack, and whose code a frame is in."""

from __future__ import annotations

import re
import sys

__all__ = ["is_own_code", "numbers_in", "rank_in_name"]

_LIBRARY = re.compile(r"(site|dist)-packages/|(^|/)torch/|/lib(64)?/python3|^<|\?\?|\.(cpp|cc|c|h|hpp|cu|so[.\d]*)$")
_RANK = re.compile(r"rank[-_.=]?(\d{1,7})(?!\d)", re.IGNORECASE)
_OF = re.compile(r"(\d{1,7})[-_]?of[-_]?\d{1,7}$")
_LAST = re.compile(r"(\d{1,7})$")
_ENDINGS = re.compile(
    r"(\.(json|pkl|pickle|bin|dump|txt|log|out|gz|xz|bz2|zst|old|bak)|(?<!\s)\s*\(\d+\))$", re.IGNORECASE
)


def rank_in_name(name: str) -> int | None:
    """The rank that a file's name says: `nccl_trace_rank_3`, `fr_3.json`, `rank3/dump.pkl`; None when it says none."""
    for depth, part in enumerate(reversed(name.replace("\\", "/").split("/")[-3:])):
        stem = part
        while shorter := _ENDINGS.sub("", stem):
            if shorter == stem:
                break
            stem = shorter
        found = _RANK.findall(stem)
        match = None if found or depth else _OF.search(stem) or _LAST.search(stem)  # folders have numbers of their own
        if found or match:
            return int(found[-1]) if found else int(match[1]) if match else None
    return None


def numbers_in(name: str) -> tuple[int, ...]:
    """The numbers in a file's name and in that of its folder: 3 of `pod-worker-3/dump.pkl`."""
    return tuple(int(digits) for digits in re.findall(r"\d{1,9}", "/".join(name.replace("\\", "/").split("/")[-2:])))


def is_own_code(file: str) -> bool:
    """Whether a frame belongs to the user: not to Python, to an installed package, or to C++."""
    # py-spy shortens files of the standard library to `threading.py`, `multiprocessing/queues.py`.
    first = file.partition("/")[0].removesuffix(".py")
    return not (_LIBRARY.search(file) or (first and first in sys.stdlib_module_names))
