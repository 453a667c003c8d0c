"""`run --watch`: records of the calls of a real job. Nothing is replaced: no device, no backend, no file, no argument.

After a number of optimizer steps it switches itself off. It also does when the supervisor does not read fast enough, and before
torch.compile sees a replaced function.
"""

from __future__ import annotations

import atexit
import functools
import sys
import weakref
from typing import Any

import torch
import torch.distributed as dist

from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import deepest_of_user, place

__all__ = ["begin"]

_steps = {"count": 0}
_models: weakref.WeakSet[Any] = weakref.WeakSet()


def begin() -> None:
    """Record from now on."""
    from torch.optim import optimizer as module

    from ddpdoctor.rehearsal.hook import collectives

    collectives.watch()
    _watch_ddp()
    _watch_backward(collectives)
    _watch_compile()
    _watch_end()
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(_stepped)


def _stepped(optimizer: Any, *_: Any) -> None:
    if channel().is_off or not dist.is_initialized():
        return
    _steps["count"] += 1
    channel().say("step", count=_steps["count"], at=place())
    if _steps["count"] >= channel().config.get("steps", 20):
        end("")


def end(reason: str) -> None:
    """Report that no further calls are recorded, and switch off."""
    if not channel().is_off:
        channel().say("watched", count=_steps["count"], reason=reason)
        channel().switch_off()


def _watch_ddp() -> None:
    from torch.nn.parallel import DistributedDataParallel

    init = DistributedDataParallel.__init__

    @functools.wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        from ddpdoctor.rehearsal.hook.collectives import record

        group = kwargs.get("process_group")
        record("DistributedDataParallel", group, lambda: init(self, *args, **kwargs), at=place())
        _models.add(self)

    DistributedDataParallel.__init__ = made


def _watch_backward(collectives: Any) -> None:
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        is_synchronizing = any(each.training and each.require_backward_grad_sync for each in list(_models))
        if channel().is_off or not is_synchronizing:
            return original(*args, **kwargs)
        return collectives.record("backward", None, lambda: original(*args, **kwargs), at=place(), hides=False)

    torch.autograd.backward = backward


def _watch_compile() -> None:
    original = torch.compile

    @functools.wraps(original)
    def compiling(*args: Any, **kwargs: Any) -> Any:
        end("torch.compile")
        return original(*args, **kwargs)

    torch.compile = compiling


def _watch_end() -> None:
    """How the process ends: at its end, or by an exception."""
    raised: list[str] = []
    before = sys.excepthook

    def hook(kind: Any, error: Any, traceback: Any) -> None:
        raised.append(kind.__name__)
        frames = []
        while traceback is not None:
            code = traceback.tb_frame.f_code
            frames.append((code.co_filename, traceback.tb_lineno, code.co_name))
            traceback = traceback.tb_next
        channel().say("raised", type=kind.__name__, text=str(error)[:2000], at=deepest_of_user(frames[::-1]))
        before(kind, error, traceback)

    sys.excepthook = hook
    atexit.register(_left, raised)


def _left(raised: list[str]) -> None:
    if not raised and channel().is_connected:
        channel().say("left", how="end")
