"""SCRIPT013: the timeout of a process group has to be a timedelta."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, imported, point, replace, safe
from ddpdoctor.rules.script.script010_to_012_014_init_process_group import INIT
from ddpdoctor.rules.script.script_questions import argument, has_more, spread, value
from ddpdoctor.scripts.interpreter.frames import CallResult
from ddpdoctor.scripts.syntax.module import Module, modules


def _is_time(module: Module, node: ast.expr) -> bool:
    timeout = value(module, node)
    return isinstance(timeout, CallResult) and timeout.name == "timedelta"


@cause(
    "SCRIPT013",
    "timeout-not-a-timedelta",
    Severity.ERROR,
    signatures=(r"Expected timeout argument to be of type",),
)
def timeout_not_a_timedelta(script: Script) -> Iterator[Finding]:
    """The timeout is not a timedelta of the intended length.

    ## Why it matters
    A number fails with `Expected timeout argument to be of type datetime.timedelta`. `timedelta(1800)` is accepted
    but means 1800 days, so that a hang is never noticed.

    ## Fix
    Pass a timedelta with a unit: `timeout=timedelta(minutes=30)`.

    ## Example
        # before
        dist.init_process_group("nccl", timeout=1800)
        # TypeError: Expected timeout argument to be of type datetime.timedelta

        # after
        dist.init_process_group("nccl", timeout=timedelta(seconds=1800))
    """
    for module in modules(script):
        for call in module.calls(INIT, "dist.new_group", "dist.monitored_barrier"):
            positional = len(call.args) == 3 and not has_more(call)
            given = argument(call, 2 if positional else None, "timeout") if module.names.of(call.func) == INIT else None
            given = given or argument(call, None, "timeout") or spread(module, call).get("timeout")
            if given is None or (
                positional and argument(call, None, "timeout") is None and not _is_time(module, given)
            ):
                continue
            yield from _timeout(module, given)


def _timeout(module: Module, given: ast.expr) -> Iterator[Finding]:
    timeout = value(module, given)
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        text = code(module, given)
        yield point(
            module,
            given,
            f"timeout={timeout:g} is a number, not a timedelta",
            f"timedelta(seconds={text})",
            label="TypeError: pass a timedelta",
            fix=f"Write `timedelta(seconds={text})`.",
            edits=safe(as_timedelta(module, given)),
        )
    elif _is_numeric_option(module, given):
        text = code(module, given)
        yield point(
            module,
            given,
            f"{text} is a number from the command line, not a timedelta",
            f"timedelta(seconds={text})",
            label="TypeError: pass a timedelta",
            fix=f"Write `timedelta(seconds={text})`.",
            edits=safe(as_timedelta(module, given)),
        )
    elif (
        isinstance(timeout, CallResult)
        and timeout.name == "timedelta"
        and len(timeout.call.args) == 1
        and not timeout.call.keywords
    ):
        days = value(module, timeout.call.args[0])
        if isinstance(days, (int, float)) and days >= 10:
            yield point(
                module,
                timeout.call,
                f"timedelta({days:g}) means {days:g} days: a hang is never noticed",
                f"timedelta(seconds={days:g})",
                label="the first argument is days",
                fix=f"Write `timedelta(seconds={days:g})`.",
                edits=(replace(module, timeout.call.args[0], f"seconds={code(module, timeout.call.args[0])}"),),
            )


def as_timedelta(module: Module, given: ast.expr) -> tuple[Edit, ...]:
    """Wrap a number of seconds in the timedelta that torch expects."""
    return (
        replace(module, given, f"timedelta(seconds={code(module, given)})"),
        *imported(module, "timedelta", "from datetime import timedelta"),
    )


def _is_numeric_option(module: Module, given: ast.expr) -> bool:
    """Whether the value is `args.timeout` of an option with `type=int` or `type=float`."""
    option = module.options.get(given.attr) if isinstance(given, ast.Attribute) else None
    kind = argument(option, None, "type") if option is not None else None
    return kind is not None and module.names.of(kind) in ("int", "float")
