"""Loads the hook: when torch is imported, before any code of the user sees it."""

from __future__ import annotations

import importlib.abc
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
    from ddpdoctor.rehearsal.hook import collectives, cuda, devices, executed, files, standins, training, watching

    # torch.distributed is not part of every build
    has_distributed = torch.distributed.is_available()
    if channel().config.get("gpus", 0):
        cuda.imagine()
    standins.install()
    if has_distributed:
        collectives.watch()
        training.watch()
    watching.begin()
    files.watch()
    devices.enter()
    executed.begin()


def prepare() -> None:
    """Install the hook as soon as torch is imported: for processes that the ranks start."""
    if CONFIG_VARIABLE in __import__("os").environ and read_config():
        sys.meta_path.insert(0, _AfterTorch())


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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
