"""What a rank reports about itself at its end: works that were not waited for, and groups that were not destroyed."""

from __future__ import annotations

import sys
from typing import Any

from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import frames_of_user, place

__all__ = ["at_end", "begin"]


def begin() -> None:
    """Report exceptions that end processes of multiprocessing, and of torch's spawn, which catches them itself."""
    _watch_processes()
    _watch_spawn()


def _watch_spawn() -> None:
    import functools
    import importlib

    module: Any = importlib.import_module("torch.multiprocessing.spawn")
    original, start = module._wrap, module.start_processes

    @functools.wraps(start)
    def spawning(function: Any, args: Any = (), nprocs: int = 1, *rest: Any, **options: Any) -> Any:
        channel().say("spawning", count=nprocs, at=place())
        return start(function, args, nprocs, *rest, **options)

    for each in [found for key, found in list(sys.modules.items()) if key.startswith("torch.multiprocessing")]:
        if vars(each).get("start_processes") is start:
            each.start_processes = spawning  # type: ignore[attr-defined]

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
            from ddpdoctor.rehearsal.hook import executed
            from ddpdoctor.rehearsal.hook.ending import RehearsalEnd
            from ddpdoctor.rehearsal.hook.reporting import report

            try:
                run()
            except RehearsalEnd:
                channel().say("left", how="ended")
            except SystemExit as request:
                executed.report()
                channel().say("left", how="exit", code=request.code if isinstance(request.code, int) else 0, at=[])
                raise
            except BaseException as error:
                report(error)
                raise
            else:
                executed.report()
                channel().say("left", how="end", **at_end())

        self.run = running
        return original(self, *args, **kwargs)

    module.BaseProcess._bootstrap = bootstrap  # type: ignore[attr-defined]
    waited = module.BaseProcess.join

    def join(self: Any, timeout: Any = None) -> Any:
        at = frames_of_user()
        if at and timeout is None:
            channel().say("child_join", at=at)
        return waited(self, timeout)

    module.BaseProcess.join = join  # type: ignore[method-assign]


def at_end() -> dict[str, Any]:
    """Works without a wait, and whether the default group still exists."""
    module = sys.modules.get("ddpdoctor.rehearsal.hook.collectives")
    if module is None:
        return {}
    torch = sys.modules["torch"]
    unwaited = [number for _, number, _ in module.calls().works.values()]
    training = sys.modules["ddpdoctor.rehearsal.hook.training"]
    return {
        "unwaited": unwaited[:50],
        "initialized": bool(torch.distributed.is_initialized()),
        "schedules": training.schedules()[:20],
    }
