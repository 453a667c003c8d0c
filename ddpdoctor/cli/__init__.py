"""The command line: the only code that prints or exits. Everything heavy is imported where it is used."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from ddpdoctor.app import clock  # noqa: F401 (it starts with the first import)
from ddpdoctor.system.selfexec import open_missing_streams

__all__ = ["main"]

INTERRUPTED = 128 + signal.SIGINT
COMPLETION_VARIABLE = "_DDPDOCTOR_COMPLETE"
"""Set by the completion script of a shell, which requests candidates for the last word."""
ENDED = (signal.SIGTERM, signal.SIGHUP)


EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""Errors of a process that may not have more files, memory, processes or threads."""


NO_THREAD = "can't start new thread"
"""What Python says where a limit of processes or memory leaves no room for a thread."""


class _EndedBySignal(BaseException):
    """SIGTERM or SIGHUP arrived; not an Exception, so that no `except Exception` catches it."""


def main(argv: Sequence[str] | None = None, command: Callable[[], int] | None = None) -> NoReturn:
    """Run one command (the one that `argv` names, or `command`) and exit with its code; no process that it started is left.

    The only place that catches everything: a bug becomes one line and exit code 3, Ctrl-C becomes 130, SIGTERM 143, and
    a closed pipe ends the command quietly, as SIGPIPE would.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    open_missing_streams()
    try:
        _handle_signals()
        code = _run(words) if command is None else command()
        sys.stdout.flush()
    except BrokenPipeError:
        code = 128 + signal.SIGPIPE
    except KeyboardInterrupt as interrupt:
        code = _say(f"ddpdoctor: interrupted{_phase(interrupt)}", INTERRUPTED)
    except _EndedBySignal as ended:
        code = 128 + ended.args[0]
    except OSError as error:
        code = _cannot_write(error)
    except MemoryError:
        code = _say("error: not enough memory; raise the limits of this shell (ulimit -a) or container", 3)
    except RuntimeError as error:
        is_limit = str(error) == NO_THREAD
        code = (
            _say(f"error: {error}; raise the limits of this shell (ulimit -a) or container", 3)
            if is_limit
            else _confess(error)
        )
    except Exception as error:  # the error boundary: any exception that gets here is a bug of ddpdoctor
        code = _confess(error)
    _leave(code)


def _run(words: list[str]) -> int:
    if words in (
        ["--version"],
        ["-V"],
    ):  # used by scripts and images: answered without building the whole application
        from ddpdoctor import __version__

        print(f"ddpdoctor {__version__}")
        return 0
    if COMPLETION_VARIABLE in os.environ:
        from ddpdoctor.cli.completion import candidates

        print(*candidates(words), sep="\n")
        return 0
    if words[:1] == ["check"]:
        from ddpdoctor.app import early_probe

        early_probe.start(words, os.environ)
    from ddpdoctor.cli.app import run

    return run(words)


def _handle_signals() -> None:
    """SIGTERM, SIGHUP and Ctrl-C end the command as `main` says, unless they are ignored (nohup, a shell's background job)."""
    for number in ENDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see ddpdoctor/__init__.py
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise _EndedBySignal(number)


def _leave(code: int) -> NoReturn:
    """End what is still running and exit; from here on no signal interrupts, and a broken stream is forgotten."""
    for number in (signal.SIGINT, *ENDED):
        signal.signal(number, signal.SIG_IGN)
    early_probe = sys.modules.get("ddpdoctor.app.early_probe")
    if early_probe is not None:
        early_probe.stop()
    processes = sys.modules.get("ddpdoctor.system.process")
    if processes is not None:
        processes.end_all()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass  # the reader is gone: what is still buffered is lost
    # Not sys.exit(): taking everything apart first takes the time of several rules, and CPython dies of SIGINT after
    # all when KeyboardInterrupt once came out of an exec(), as dataclasses use it.
    os._exit(code)


def _phase(interrupt: KeyboardInterrupt) -> str:
    """What was interrupted, as the use case said it last."""
    return f" while {interrupt.args[0]}" if interrupt.args and interrupt.args[0] else ""


def _say(text: str, code: int) -> int:
    try:
        print(text, file=sys.stderr)
    except OSError:
        pass  # standard error is closed: the exit code remains
    return code


def _cannot_write(error: OSError) -> int:
    if error.errno in EXHAUSTED:
        return _say(f"error: {error.strerror}; raise the limits of this shell (ulimit -a) or container", 3)
    # Code that reads a file handles its OSError there; what gets here is standard output, or a bug.
    if error.filename is None and not os.environ.get("DDPDOCTOR_TRACEBACK"):
        return _say(f"error: standard output: {error.strerror or error}", 3)
    return _confess(error)


def _confess(error: Exception) -> int:
    if os.environ.get("DDPDOCTOR_TRACEBACK"):
        import traceback

        traceback.print_exc()
    if isinstance(error, EOFError) and "marshal" in str(error):  # what Python leaves where a compiled file did not fit
        folder = os.path.dirname(os.path.dirname(__file__))
        return _say(
            "error: a compiled Python file is truncated, probably because the disk was full; remove all of them:\n"
            f"find {folder} -name '*.pyc' -delete",
            3,
        )
    return _say(
        f"error: internal error: {type(error).__name__}: {error}\n"
        "This is a bug in ddpdoctor, not in the job. DDPDOCTOR_TRACEBACK=1 shows where.",
        3,
    )
