"""Runs a program forwards and lists its mistakes: edges that the tables of legal orders lack."""

from __future__ import annotations

from functools import lru_cache

from ddpdoctor.scripts.histories.executor import Executor, ProgramTooLong
from ddpdoctor.scripts.histories.library import call_library
from ddpdoctor.scripts.histories.methods import call_method
from ddpdoctor.scripts.histories.record import Mistake, MistakeKind
from ddpdoctor.scripts.histories.values import TracedKind
from ddpdoctor.scripts.syntax.module import Module

__all__ = ["mistakes_of"]


@lru_cache(maxsize=64)
def mistakes_of(module: Module) -> tuple[Mistake, ...]:
    """The mistakes of a file that is started as a program; empty for a file that others import."""
    if not module.is_program or not module.calls("dist.init_process_group"):
        return ()
    executor = Executor(module, call_library, call_method)
    try:
        executor.program()
        _end(executor)
    except (ProgramTooLong, RecursionError):
        return tuple(executor.mistakes)
    return tuple(executor.mistakes)


def _end(ex: Executor) -> None:
    """What is a mistake only because nothing followed."""
    heap = ex.state.heap
    for ref, module, node in ex.samplers:
        sampler = heap[ref]
        dataset = sampler.fields["dataset"]
        if sampler.has("used") or not dataset.ref:
            continue
        for where, loader, data, given, has_more in ex.loaders:
            if data.ref == dataset.ref and given is None and not has_more:
                ex.mistake_in(MistakeKind.SAMPLER_UNUSED, module, node, loader if where is module else None)
    for _, module, node, earlier in ex.late.values():
        ex.mistake_in(MistakeKind.EPOCH_SET_TOO_LATE, module, node, earlier)
    for ref, where, node, kind in ex.bypassed:
        if ref not in ex.hand_reduced and kind is TracedKind.MODULE and ex.updates.get(ref, True):
            ex.mistake_in(MistakeKind.WRAPPER_BYPASSED, where, node)
