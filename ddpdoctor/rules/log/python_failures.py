"""Which of Python's own failures an exception is: those that have a cause and a fix of their own."""

from __future__ import annotations

import re
from enum import Enum

from ddpdoctor.facts.log import Traceback

__all__ = ["PythonFailure", "failure_of"]


class PythonFailure(Enum):
    """What Python could not do; each member is reported by a cause of its own."""

    MODULE_MISSING = "import a module that is not installed"
    NAME_MISSING = "import a name that the installed module does not have"
    FILE_MISSING = "open a file that does not exist"
    PERMISSION_DENIED = "open a file without permission"
    ENTRY_MISSING = "read an entry that the checkpoint does not have"
    INTERFACE_DIFFERS = "call what the installed package does not have"


_NO_MODULE = re.compile(r"No module named ")
_NO_NAME = re.compile(r"cannot import name ")
_DENIED = re.compile(r"\bopen\(/[^)\n]{1,300}\): Permission denied|\[Errno 13\] Permission denied")
_OF_CHECKPOINT = re.compile(
    r"resume|restore|checkpoint|ckpt|state_dict|pretrained|torch\.load|load_(?:model|weights|state)", re.IGNORECASE
)
_ENTRY = re.compile(
    r"['\"]?(?:\w+_)?(?:state_dict|optimizer|optim|lr_scheduler|scheduler|scaler|model|net|ema|epoch|global_step|arch)['\"]?$"
)
"""The names under which training scripts save what they resume from."""
_NOT_IN_MODULE = re.compile(r"module '(?P<module>[\w.]+)' has no attribute '")
_NO_KEYWORD = re.compile(r"unexpected keyword argument '\w+'")
_MISSING_CLASSES = ("FileNotFoundError", "NotADirectoryError", "IsADirectoryError")


def failure_of(raised: Traceback) -> PythonFailure | None:
    """The kind of this exception; None if it is none of them."""
    name = raised.exception.rpartition(".")[2]
    if name in ("ModuleNotFoundError", "ImportError"):
        return _of_import(raised)
    if name in _MISSING_CLASSES:
        return PythonFailure.FILE_MISSING
    if name == "PermissionError" or _DENIED.search(raised.message):
        return PythonFailure.PERMISSION_DENIED
    if name == "KeyError" and _is_of_checkpoint(raised):
        return PythonFailure.ENTRY_MISSING
    is_other = _NOT_IN_MODULE.search(raised.message) if name == "AttributeError" else _is_other_call(name, raised)
    return PythonFailure.INTERFACE_DIFFERS if is_other else None


def _of_import(raised: Traceback) -> PythonFailure | None:
    if _NO_NAME.search(raised.message):
        return PythonFailure.NAME_MISSING
    return PythonFailure.MODULE_MISSING if _NO_MODULE.search(raised.message) else None


def _is_of_checkpoint(raised: Traceback) -> bool:
    """Whether the key was read from a checkpoint, by the code that read it or by its name."""
    texts = [text for frame in raised.frames for text in (frame.function, frame.code)]
    is_read = any(_OF_CHECKPOINT.search(text) for text in texts)
    return is_read or _ENTRY.match(raised.message.strip()) is not None


def _is_other_call(name: str, raised: Traceback) -> bool:
    """Whether a call has an argument that a function of a package does not take."""
    if name != "TypeError" or _NO_KEYWORD.search(raised.message) is None:
        return False
    own = raised.own_frames
    is_in_package = bool(raised.frames) and bool(own) and raised.frames[-1] not in own
    return is_in_package or "__init__() got" in raised.message
