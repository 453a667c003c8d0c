"""The command line: the only code that prints or exits. Everything heavy is imported where it is used."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code.

    The only place that catches everything: a bug becomes one line and exit code 3, Ctrl-C becomes 130, and a reader
    that went away (a closed pipe) ends the command quietly, as SIGPIPE would.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
        code = 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        print("ddpdoctor: interrupted", file=sys.stderr)
        code = 130
    except Exception as error:  # the error boundary: anything that gets here is our own bug
        code = _confess(error)
    sys.exit(code)


def _run(words: list[str]) -> int:
    if words == ["--version"]:  # asked for by scripts and images: answered without building the whole application
        from ddpdoctor import __version__

        print(f"ddpdoctor {__version__}")
        return 0
    from ddpdoctor.cli.app import run

    return run(words)


def _forget_stdout() -> None:
    # The interpreter flushes stdout once more at exit and would complain about the closed pipe there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _confess(error: Exception) -> int:
    if os.environ.get("DDPDOCTOR_TRACEBACK"):
        import traceback

        traceback.print_exc()
    print(
        f"ddpdoctor: internal error: {type(error).__name__}: {error}\n"
        "This is a bug in ddpdoctor, not in the job. DDPDOCTOR_TRACEBACK=1 shows where.",
        file=sys.stderr,
    )
    return 3
