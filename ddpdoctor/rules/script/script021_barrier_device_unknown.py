"""SCRIPT021: a barrier before NCCL knows the GPU of the rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import imported, point, with_keyword
from ddpdoctor.rules.script.script001_to_003_device_selection import LOCAL, SELECT, selects
from ddpdoctor.rules.script.script_questions import argument, backends
from ddpdoctor.scripts.simulation.events import COMPARED
from ddpdoctor.scripts.simulation.joint_paths import program_simulations
from ddpdoctor.scripts.simulation.trace import Event
from ddpdoctor.scripts.syntax.module import Module, modules


@cause(
    "SCRIPT021",
    "barrier-device-unknown",
    Severity.WARNING,
    signatures=(r"used by this process (are|is) currently unknown", r"Guessing device ID based on global rank"),
)
def barrier_device_unknown(script: Script) -> Iterator[Finding]:
    """A barrier or object collective runs before NCCL knows the device of the rank.

    ## Why it matters
    NCCL guesses the GPU from the rank: `devices used by this process are currently unknown. This can potentially
    cause a hang if this rank to GPU mapping is incorrect`. A wrong guess hangs, or puts two ranks on one GPU.

    ## Fix
    Pass `device_id=torch.device("cuda", local_rank)` to init_process_group, or select the GPU first.

    ## Example
        # before
        dist.init_process_group("nccl")
        dist.barrier()
        # devices used by this process are currently unknown. This can potentially cause a hang ...

        # after
        dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
        dist.barrier()
    """
    for module in modules(script):
        used = backends(module)
        if not used or used != {"nccl"} or module.frameworks:
            continue
        if not module.is_program:
            continue  # the program that imports it may select the device
        yield from _objects_on_first_gpu(module)
        is_late = selects(module)
        for call in module.calls("dist.barrier"):
            is_first = _comes_first(module, call) if is_late else True
            if is_first and argument(call, None, "device_ids", "group") is None and not call.args:
                init = module.calls("dist.init_process_group")[0]
                when = "before the rank selects its GPU" if is_late else "without a selected GPU"
                yield point(
                    module,
                    call,
                    f"dist.barrier() {when}: NCCL guesses one",
                    "a known device",
                    label="a wrong guess hangs",
                    fix=f'Pass `device_id=torch.device("cuda", local_rank)` to init_process_group (line {init.lineno}).',
                    edits=(
                        with_keyword(module, init, f'device_id=torch.device("cuda", {LOCAL})'),
                        *imported(module, "os", "import os"),
                        *imported(module, "torch", "import torch"),
                    ),
                )
                break


_OBJECTS = ("dist.all_gather_object", "dist.gather_object", "dist.broadcast_object_list", "dist.scatter_object_list")
_CURRENT = ("set_device", "device_id=", "CUDA_VISIBLE_DEVICES", "cuda.device(", "import ray", "gpu_id", "init_dist")


def _objects_on_first_gpu(module: Module) -> Iterator[Finding]:
    """Object collectives copy their bytes to the current GPU, which is cuda:0 on every rank that selects none."""
    if any(word in module.text for word in _CURRENT) or _imports_project(module):
        return
    for call in module.calls(*_OBJECTS):
        if argument(call, None, "device") is None and argument(call, None, "group") is None and len(call.args) < 3:
            yield point(
                module,
                call,
                "an object collective with NCCL, and no rank selects its GPU",
                "torch.cuda.set_device(local_rank) first",
                label="the bytes go to cuda:0 on every rank",
                fix="Call `torch.cuda.set_device(local_rank)` before init_process_group.",
            )
            return


def _imports_project(module: Module) -> bool:
    """Whether a file of the project is imported, which may select the device."""
    targets = {b.target for s in module.index.scopes.values() for bound in s.names.values() for b in bound if b.target}
    return any(module.beside(t) is not None or module.beside(t.rpartition(".")[0] or t) is not None for t in targets)


def _comes_first(module: Module, barrier: ast.Call) -> bool:
    """Whether every rank calls it before any other collective, and selects its device only later."""
    if "device_id=" in module.text or "CUDA_VISIBLE_DEVICES" in module.text or module.calls("cuda.device"):
        return False
    if module.text.count("set_device") != len(module.calls(*SELECT)):
        return False
    traces = [track.events for run in program_simulations(module) for track in run.traces]
    return bool(traces) and all(_is_first_of(barrier, events) for events in traces)


def _is_first_of(barrier: ast.Call, events: list[Event]) -> bool:
    at = next((i for i, e in enumerate(events) if e.call is barrier), None)
    if at is None or any(e.name in SELECT or e.name in COMPARED for e in events[:at]):
        return False
    return any(e.name in SELECT for e in events[at:])
