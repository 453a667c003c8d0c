"""No regular expression takes more than linear time on a line that a stranger made for it."""

from __future__ import annotations

import os
import random
import re
import time

from hostile_lines import Expression, expressions, hostile_texts

from ddpdoctor.collectors.log.scanner import LONGEST_LINE
from ddpdoctor.logs.tracebacks.line_context import MOST_LINE_BYTES

IS_FULL = os.environ.get("DDPDOCTOR_FULL") == "1"
ONE_IN = 1 if IS_FULL else 20
MOST_SECONDS = 1e9 if IS_FULL else 6.0
"""CPU time for the sample."""
LINE = 1 << 20
SIZES = (1000, 4000, 16_000, 64_000, 256_000, LINE) if IS_FULL else (1000, 4000, 16_000, 64_000)
TIMES = 12.0
"""How much more time than a plain expression one may take: the plain one goes through 1 MiB in some 20 ms."""
PIECE = MOST_LINE_BYTES + MOST_LINE_BYTES // 4
"""What the reader of logs shows to a signature at once."""


def _seconds(each: Expression, text: object) -> float:
    started = time.process_time()
    each.use(text)
    return time.process_time() - started


def _plain() -> float:
    """CPU time in which a plain expression goes through 1 MiB here and now."""
    plain = re.compile("[a-y]z|[0-8]9")
    text = "a1" * (LINE // 2)
    times = []
    for _ in range(3):
        started = time.process_time()
        plain.search(text)
        times.append(time.process_time() - started)
    return max(min(times), 0.004)


def _worst(each: Expression, limit: float) -> tuple[float, int, object] | None:
    """The time for 1 MiB, the size and the text with which it is beyond the limit."""
    sizes = (PIECE,) if each.place.startswith("signature:") else SIZES
    for number in range(len(hostile_texts(each.pattern, each.flags, 100))):
        for size in sizes:
            text = hostile_texts(each.pattern, each.flags, size)[number]
            # A short text is fast in any case: only what exceeds a twentieth of the limit is measured exactly.
            least = _seconds(each, text)
            if least > limit / 20 and least * LINE / size > limit:
                least = min(least, *(_seconds(each, text) for _ in range(2)))
                if least * LINE / size > limit:
                    return least * LINE / size, size, text
    return None


def test_an_expression_with_quadratic_time_is_found() -> None:
    limit = TIMES * _plain()
    for pattern in (r"(\w+)=\"", r"Xid \([^)]*\): "):
        assert _worst(Expression("x", pattern, 0, frozenset({"search"})), limit), pattern
    assert _worst(Expression("x", r"\b\w+=\"[^\"]{0,20}\"", 0, frozenset({"search"})), limit) is None


def test_all_expressions_are_found() -> None:
    found = expressions()
    places = {each.place.partition(":")[0].split("/")[0] for each in found}
    assert {"logs", "dumps", "tool_output", "launch", "privacy", "signature", "facts"} <= places
    assert sum(each.place.startswith("signature:") for each in found) > 500
    assert len(found) > 1200


def test_no_expression_takes_more_than_linear_time() -> None:
    assert LONGEST_LINE <= PIECE
    known = expressions()
    chosen = known if IS_FULL else random.Random(len(known)).sample(known, len(known) // ONE_IN)
    limit = TIMES * _plain()
    begun = time.process_time()
    slow = []
    for each in chosen:
        if time.process_time() - begun > MOST_SECONDS:
            break
        worst = _worst(each, limit)
        if worst is not None:
            slow.append(
                f"{worst[0]:.2f} s for 1 MiB ({worst[1]} characters): {each.place}: {each.pattern!r}: {worst[2]!r:.80}"
            )
    assert not slow, "\n".join(slow)
