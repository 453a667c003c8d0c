"""What one line of NCCL says, in all of its forms.

Up to 2.30.4 NCCL prints `FILE:LINE NCCL WARN TEXT` and `NCCL INFO FILE:LINE -> CODE`; since 2.30.7 the function follows the
place: `FILE:LINE (FUNCTION) NCCL WARN TEXT`, `NCCL INFO FILE:LINE (FUNCTION) -> CODE`. 2.32 has a level between WARN and INFO,
`NCCL ATTN`. The diagnostics of 2.31 and newer print `HOST:PID NCCL DIAG TEXT`. Source: src/debug.cc and src/include/debug.h
(INFO_LOC_FN) of 2.18 to 2.30.7, the strings of 2.31.2 and 2.32.3.
"""

from __future__ import annotations

import functools

from ddpdoctor.late_pattern import pattern
from ddpdoctor.light_dataclass import dataclass

__all__ = ["NcclLine", "nccl_line", "without_function"]

_PLACE = r"(?P<file>(?<![\w./+-])[\w./+-]{1,300}\.(?:cc|cuh?|h|c|cpp)|(?<!\w)[a-z]\w{1,100}):(?P<line>\d{1,9})"
"""It begins where a word begins: a line of one long word is then gone through once, not once for each character."""
_FUNCTION = r"\((?P<function>[A-Za-z_~][\w:~<>]{0,100}|operator\(\))\)"
_WARN = pattern(rf"(?:{_PLACE} )?(?:{_FUNCTION} )?NCCL (?:WARN|ATTN) (?P<text>.*)")
_INFO = pattern(rf"NCCL INFO (?:{_PLACE} (?:{_FUNCTION} )?)?(?P<text>.*)")
_DIAG = pattern(r"(?:(?<![\w.-])(?P<file>[\w.-]{1,255}):(?P<line>\d{1,10}) )?NCCL DIAG (?P<text>.*)")
_LEVELS = (("WARN", _WARN), ("ATTN", _WARN), ("INFO", _INFO), ("DIAG", _DIAG))
_NAMED = pattern(rf"(?P<place>{_PLACE}) {_FUNCTION} (?=NCCL WARN |-> ?\d)")


@dataclass(frozen=True, slots=True)
class NcclLine:
    """A line of NCCL without what identifies its process. `level` is WARN, ATTN, INFO or DIAG.

    Parts that the line does not have are empty or None.
    """

    level: str
    file: str
    line: int | None
    function: str
    text: str

    @property
    def hint(self) -> str:
        """What NCCL advises (`HINT: …`, 2.30 and newer), without the word; "" for any other line."""
        return self.text.partition("HINT:")[2].strip() if self.text.startswith("HINT:") else ""


@functools.lru_cache(1 << 14)
def nccl_line(text: str) -> NcclLine | None:
    """A line taken apart; None if NCCL did not print it."""
    for level, known in _LEVELS:
        matched = known.search(text) if f"NCCL {level} " in text else None
        if matched is not None:
            named = matched.groupdict()
            number = int(named["line"]) if named["line"] else None
            return NcclLine(level, named["file"] or "", number, named.get("function") or "", named["text"].strip())
    return None


def without_function(text: str) -> str:
    """The line in NCCL's older form, in which signatures are written: no function after the place, WARN for ATTN."""
    if "NCCL " not in text:
        return text
    text = text.replace("NCCL ATTN ", "NCCL WARN ", 1)
    return _NAMED.sub(r"\g<place> ", text) if ") NCCL WARN " in text or ") ->" in text else text
