"""The headlines of findings about logs: who, what, and the line of the log if it is short enough."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["clipped", "headline", "names_of", "place_name", "ranks_named", "who"]

LONGEST_HEADLINE = 80
LONGEST_EXCEPTION = 60
MOST_NAMED = 3
"""More ranks or hosts than this are counted."""
SHALLOW = 4
"""An absolute path with at most this many parts, such as `/home/u/train.py`, is shown without its folder."""
_LOWERED = re.compile(
    r"(?:An?|The|This|Another|Each|Several|One|Something|Two|Some|Store|Direct|Small|Processes|Harmless|Host|Different) "
)
"""First words of titles that begin with a small letter after a name."""


def headline(speaker: str, what: str, quote: str = "") -> str:
    """`rank 3 on gpu-07: the GPU's memory ran out`, followed by the quoted line if all of it fits."""
    what = what.rstrip(".")
    if speaker:
        what = f"{speaker}: {what[0].lower() + what[1:] if _LOWERED.match(what) else what}"
    full = f"{what}: {quote}"
    return full if quote and len(full) <= LONGEST_HEADLINE else what


def clipped(text: str, longest: int = LONGEST_EXCEPTION) -> str:
    """The beginning of a text, with an ellipsis if it is cut."""
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


def place_name(file: str, line: int) -> str:
    """`train.py:10`, `models/net.py:7`: the place in a headline, with the last folder at most."""
    parts = file.split("/")
    is_shallow = file.startswith("/") and len(parts) <= SHALLOW
    return f"{parts[-1] if is_shallow else '/'.join(parts[-2:])}:{line}"


def ranks_named(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 1, 2`, `ranks 0-7`, `ranks 1, 2, 5, and 4 more`; "" without ranks."""
    numbers = sorted(set(ranks))
    if len(numbers) <= 1:
        return f"rank {numbers[0]}" if numbers else ""
    if len(numbers) > MOST_NAMED and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"ranks {numbers[0]}-{numbers[-1]}"
    return f"ranks {_listed([*map(str, numbers)])}"


def who(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """The same as `names_of`; "" if neither a rank nor a host is known."""
    return names_of(ranks, hosts) if ranks or hosts else ""


def names_of(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """`rank 3 on node1`, `ranks 1, 2`, `node1, node2`, `a process`."""
    if not ranks:
        return f"a process on {hosts[0]}" if len(hosts) == 1 else _listed(hosts) or "a process"
    return f"{ranks_named(ranks)} on {hosts[0]}" if len(hosts) == 1 else ranks_named(ranks)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:MOST_NAMED])}, and {more} more"
