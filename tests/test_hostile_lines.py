"""No regular expression takes more than linear time on a line that a stranger made for it."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest
from hostile_lines import Expression, expressions, hostile_texts

from ddpdoctor.collectors.log.scanner import LONGEST_LINE
from ddpdoctor.logs.tracebacks.line_context import MOST_LINE_BYTES
from ddpdoctor.privacy import redaction

IS_FULL = os.environ.get("DDPDOCTOR_FULL") == "1"
LINE = 1 << 20
SIZES = (1000, 4000, 16_000, 64_000, 256_000, LINE) if IS_FULL else (1000, 4000, 16_000, 64_000)
TIMES = 30.0
"""How much more time than a plain expression one may take: the plain one goes through 1 MiB in some 20 ms."""
PIECE = MOST_LINE_BYTES + MOST_LINE_BYTES // 4
"""What the reader of logs shows to a signature at once."""
LONGEST = {"privacy/redaction.py": redaction.LONGEST, "logs/job_names.py": 4096}
"""By file: the characters that its expressions see at most; a path has no more than PATH_MAX."""


MOST_OF_ONE = 20.0
"""CPU time after which an expression is stopped: it is exponential."""


class _TooSlowError(Exception):
    """An expression did not end."""


def _stop(number: int, frame: object) -> None:
    raise _TooSlowError


def _seconds(each: Expression, text: object) -> float:
    before = signal.signal(signal.SIGVTALRM, _stop)
    started = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_OF_ONE)
    try:
        each.use(text)
    except _TooSlowError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
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
    file = each.place.partition(":")[0]
    sizes = (PIECE,) if file == "signature" else tuple(size for size in SIZES if size < LONGEST.get(file, LINE + 1))
    for number in range(len(hostile_texts(each.pattern, each.flags, 100))):
        for size in sizes:
            text = hostile_texts(each.pattern, each.flags, size)[number]
            # A short text is fast in any case: only what exceeds a twentieth of the limit is measured exactly.
            least = _seconds(each, text)
            times = min(LINE, LONGEST.get(file, LINE)) / size
            if least > limit / 20 and least * times > limit:
                least = min(least, *(_seconds(each, text) for _ in range(2)))
                if least * times > limit:
                    return least * times, size, text
    return None


def test_an_expression_with_quadratic_time_is_found() -> None:
    limit = TIMES * _plain()
    for pattern in (r"(\w+)=\"", r"Xid \([^)]*\): "):
        assert _worst(Expression("x", pattern, 0, frozenset({"search"})), limit), pattern
    assert _worst(Expression("x", r"\b\w+=\"[^\"]{0,20}\"", 0, frozenset({"search"})), limit) is None


def test_an_expression_with_exponential_time_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.MOST_OF_ONE", 0.5)
    pattern = r"^data:\n(?:[ \t]+[^\n]*\n)+(?=kind)"
    assert _seconds(Expression("x", pattern, 0, frozenset({"search"})), "data:\n" + "   data:\n" * 100) < 5


def test_all_expressions_are_found() -> None:
    found = expressions()
    places = {each.place.partition(":")[0].split("/")[0] for each in found}
    assert {"logs", "dumps", "tool_output", "launch", "privacy", "signature", "facts"} <= places
    assert sum(each.place.startswith("signature:") for each in found) > 500
    assert len(found) > 1200


def test_no_expression_is_slow_on_a_line_of_ordinary_length() -> None:
    """1,000 characters: what is exponential, or worse than quadratic, takes far longer than the limit."""
    limit = max(0.1, 5 * _plain())
    slow = []
    for each in expressions():
        for text in hostile_texts(each.pattern, each.flags, 1000):
            if _seconds(each, text) > limit and min(_seconds(each, text) for _ in range(2)) > limit:
                slow.append(f"{each.place}: {each.pattern!r:.200}: {text!r:.80}")
    assert not slow, "\n".join(slow)


@pytest.mark.slow
def test_no_expression_takes_more_than_linear_time() -> None:
    assert LONGEST_LINE <= PIECE
    limit = TIMES * _plain()
    slow = []
    for each in expressions():
        worst = _worst(each, limit)
        if worst is not None:
            slow.append(
                f"{worst[0]:.2f} s for 1 MiB ({worst[1]} characters): {each.place}: {each.pattern!r}: {worst[2]!r:.80}"
            )
    assert not slow, "\n".join(slow)
