"""Stand-ins for experiment trackers: a rehearsal starts no run, and a tracker without network would only fail."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import is_of_user, place

__all__ = ["TrackerFinder"]

# Trackers, and what starts a run of each.
STARTS = {
    "wandb": "init",
    "mlflow": "start_run",
    "neptune": "init_run",
    "comet_ml": "Experiment",
    "clearml": "Task",
    "aim": "Run",
    "swanlab": "init",
}
DEEPEST = 8


class Anything:
    """A value that accepts every call, attribute and item, and does nothing."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything(f"{self._name}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _record(self._name)
        return Anything(self._name)

    def __getitem__(self, key: Any) -> Any:
        return Anything(f"{self._name}.item")

    def __setitem__(self, key: Any, value: Any) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __str__(self) -> str:
        return "rehearsal"

    def __fspath__(self) -> str:
        return "rehearsal"


def _record(name: str) -> None:
    """Record the start of a run."""
    package, _, call = name.partition(".")
    if STARTS.get(package) in (call, call.partition(".")[0]):
        channel().say("tracker", what=name, at=place())


class TrackerFinder(importlib.abc.MetaPathFinder):
    """The first finder: trackers are replaced also where they are installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        package = name.partition(".")[0]
        if package not in STARTS or _is_only_asked():
            return None
        if name == package and not _imports_itself() and importlib.machinery.PathFinder.find_spec(name) is None:
            return None  # a library looks whether it is installed
        return importlib.machinery.ModuleSpec(name, _TrackerLoader(), is_package=True)


def _is_only_asked() -> bool:
    """Whether importlib.util.find_spec asks for a module, and nothing imports it."""
    frame: Any = sys._getframe(1)
    files: list[str] = []
    while frame is not None and len(files) < DEEPEST:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    return any("importlib.util" in file or file.endswith("importlib/util.py") for file in files[:4])


def _imports_itself() -> bool:
    """Whether the user's own code imports it, the nearest frame that is not of the import system."""
    frame: Any = sys._getframe(2)
    while frame is not None and ("importlib" in frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and is_of_user(frame.f_code.co_filename)


class _TrackerLoader(importlib.abc.Loader):
    def create_module(self, spec: Any) -> Any:
        return _Tracker(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if "." not in name:
            channel().say("standin", what=name, by="nothing is logged", at=place())


class _Tracker(ModuleType):
    """The module of a tracker."""

    __version__ = "0.20.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(f"{self.__name__}.{name}")
