"""ddpdoctor: what is wrong with this PyTorch distributed job, where, and what to type instead."""

import sys

__version__ = "0.1.0"


def _is_the_program() -> bool:
    """Whether this process was started as ddpdoctor, not a program that imports a part of it."""
    name = sys.argv[0] if getattr(sys, "argv", None) else ""
    if name == "-m":  # runpy imports the package before it knows the file
        pairs = zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
        return any(option == "-m" and module.partition(".")[0] == "ddpdoctor" for option, module in pairs)
    return name.rpartition("/")[2] == "ddpdoctor"


def _end_quietly_on_interrupt() -> None:
    """Until the command handles Ctrl-C itself, it ends the process as it ends a C program: no traceback of imports.

    `_signal` is loaded in every interpreter; `signal` imports enum, which takes several milliseconds.
    """
    native = sys.modules["_signal"]
    if native.getsignal(native.SIGINT) is native.default_int_handler:
        native.signal(native.SIGINT, native.SIG_DFL)


if _is_the_program():
    _end_quietly_on_interrupt()
