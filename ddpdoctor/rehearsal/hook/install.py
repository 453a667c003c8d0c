"""Loads the hook: when torch is imported, before any code of the user sees it."""

from __future__ import annotations

import atexit
import importlib.abc
import multiprocessing
import sys
from typing import Any

from ddpdoctor.rehearsal.hook.channel import CONFIG_VARIABLE, channel, read_config

__all__ = ["install", "prepare"]

_installed = False


def install() -> None:
    """Replace what the rehearsal observes. torch has been imported, or is now.

    Once per process; a forked child has it from its parent.
    """
    global _installed
    if _installed:
        return
    _installed = True
    import torch

    if channel().is_watch:
        if torch.distributed.is_available():
            from ddpdoctor.rehearsal.hook import job_watch

            job_watch.begin()
        return
    from ddpdoctor.rehearsal.hook import (
        collectives,
        cuda,
        devices,
        executed,
        files,
        origins,
        plain_numbers,
        rewriting,
        standins,
        training,
        watching,
    )

    # torch.distributed is not part of every build
    has_distributed = torch.distributed.is_available()
    if channel().config.get("gpus", 0):
        cuda.imagine()
    standins.install()
    if has_distributed:
        collectives.watch()
        training.watch()
        rewriting.watch()
        origins.when_made(plain_numbers.teach)
    watching.begin()
    files.watch()
    devices.enter()
    executed.begin()


def prepare() -> None:
    """Install the hook as soon as torch is imported: for processes that the ranks start."""
    if CONFIG_VARIABLE in __import__("os").environ and read_config():
        sys.meta_path.insert(0, _AfterTorch())


def _report_end() -> None:
    """Report how this process ends: one that a rank or the script's own launcher has started, such as Lightning's ranks."""
    from ddpdoctor.rehearsal.hook import executed, watching
    from ddpdoctor.rehearsal.hook.ending import RehearsalEnd
    from ddpdoctor.rehearsal.hook.reporting import report

    said: list[str] = []

    def raised(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        said.append("raised")
        if isinstance(error, RehearsalEnd):
            channel().say("left", how="ended")
        else:
            report(error)

    def ended() -> None:
        collectives = sys.modules.get("ddpdoctor.rehearsal.hook.collectives")
        is_rank = collectives is not None and collectives.calls().world_backend
        if is_rank and not said and multiprocessing.parent_process() is None:
            executed.report()
            channel().say("left", how="end", **watching.at_end())

    sys.excepthook = raised
    atexit.register(ended)


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds torch once, with a loader that installs the hook after it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            spec.loader = _Installing(spec.loader)
        return spec


class _Installing(importlib.abc.Loader):
    """Loads torch, then the hook."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def create_module(self, spec: Any) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._inner.exec_module(module)
        install()
        if not channel().is_watch:
            _report_end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
