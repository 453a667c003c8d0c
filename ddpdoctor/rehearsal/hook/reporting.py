"""Exceptions that end the script, as records and as Python prints them."""

from __future__ import annotations

import sys
import traceback

from ddpdoctor.rehearsal.hook import executed
from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import OWN, deepest_of_user

__all__ = ["report"]

MOST_TEXT = 2000


def report(error: BaseException) -> None:
    """Record an exception that ended the script, and print it without the frames of the hook."""
    places = [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
    executed.report()
    training = sys.modules.get("ddpdoctor.rehearsal.hook.training")
    unused = training.unused_parameters(str(error)) if training is not None else {}
    channel().say(
        "raised",
        type=type(error).__name__,
        module=type(error).__module__,
        text=str(error)[:MOST_TEXT],
        at=deepest_of_user(places[::-1]),
        innermost=places[-1:],
        **unused,
    )
    summary = traceback.TracebackException.from_exception(error)
    for each in _chain(summary):
        each.stack = traceback.StackSummary.from_list([f for f in each.stack if not f.filename.startswith(OWN)])
    for line in summary.format():
        sys.stderr.write(line)


def _chain(summary: traceback.TracebackException) -> list[traceback.TracebackException]:
    found = [summary]
    for each in found:
        found += [other for other in (each.__cause__, each.__context__) if other is not None]
    return found
