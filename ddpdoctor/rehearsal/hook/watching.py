"""What a rank reports about itself at its end: works that nobody waited for, and groups that were not destroyed."""

from __future__ import annotations

import sys
from typing import Any

from ddpdoctor.rehearsal.hook.channel import channel

__all__ = ["at_end", "begin"]


def begin() -> None:
    """Report exceptions that end processes of multiprocessing, and of torch's spawn, which catches them itself."""
    _watch_processes()
    _watch_spawn()


def _watch_spawn() -> None:
    import functools
    import importlib

    module: Any = importlib.import_module("torch.multiprocessing.spawn")
    original = module._wrap

    @functools.wraps(original)
    def wrapped(function: Any, index: int, *rest: Any, **options: Any) -> Any:
        return original(_Reported(function), index, *rest, **options)

    module._wrap = wrapped


class _Reported:
    """A function whose exceptions are recorded."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        from ddpdoctor.rehearsal.hook.reporting import report

        try:
            return self._function(*args)
        except Exception as error:
            report(error)
            raise


def _watch_processes() -> None:
    import multiprocessing.process as module

    original = module.BaseProcess._bootstrap  # type: ignore[attr-defined]

    def bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = self.run

        def running() -> None:
            from ddpdoctor.rehearsal.hook.ending import RehearsalEnd
            from ddpdoctor.rehearsal.hook.reporting import report

            try:
                run()
            except RehearsalEnd:
                channel().say("left", how="ended")
            except SystemExit as request:
                channel().say("left", how="exit", code=request.code if isinstance(request.code, int) else 0, at=[])
                raise
            except BaseException as error:
                report(error)
                raise
            else:
                channel().say("left", how="end", **at_end())

        self.run = running
        return original(self, *args, **kwargs)

    module.BaseProcess._bootstrap = bootstrap  # type: ignore[attr-defined]


def at_end() -> dict[str, Any]:
    """Works without a wait, and whether the default group still exists."""
    module = sys.modules.get("ddpdoctor.rehearsal.hook.collectives")
    if module is None:
        return {}
    torch = sys.modules["torch"]
    unwaited = [number for _, number, _ in module.calls().works.values()]
    return {"unwaited": unwaited[:50], "initialized": bool(torch.distributed.is_initialized())}
