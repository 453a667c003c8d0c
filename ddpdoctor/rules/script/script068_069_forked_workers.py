"""SCRIPT068 and SCRIPT069: a forked child must not use CUDA or the process group of its parent."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, point, replace, without_argument
from ddpdoctor.rules.script.script001_to_003_device_selection import CREATED
from ddpdoctor.rules.script.script066_067_started_processes import start_method
from ddpdoctor.rules.script.script_questions import argument, value
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.nodes import Function
from ddpdoctor.scripts.syntax.spawning import Spawn

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal

_CONTEXTS = ("cuda.init", "cuda.set_device", "cuda.synchronize", "cuda.mem_get_info")


@cause(
    "SCRIPT068",
    "cuda-after-fork",
    Severity.ERROR,
    signatures=(
        r"Cannot re-initialize CUDA in forked subprocess",
        r"can't create new processes if CUDA is already initialized",
    ),
)
def cuda_after_fork(script: Script) -> Iterator[Finding]:
    """CUDA is used in a forked process.

    ## Why it matters
    It fails with `RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you
    must use the 'spawn' start method`. The parent used CUDA before the fork; DataLoader workers are forked as well.

    ## Fix
    Use the spawn start method, or use no CUDA before the fork and none in a dataset.

    ## Example
        # before
        class Data(Dataset):
            def __getitem__(self, i):
                return self.items[i].cuda()

        loader = DataLoader(Data(), num_workers=4)
        # RuntimeError: Cannot re-initialize CUDA in forked subprocess

        # after
        class Data(Dataset):
            def __getitem__(self, i):
                return self.items[i]

        for batch in DataLoader(Data(), num_workers=4):
            batch = batch.cuda()
    """
    for module in modules(script):
        yield from _in_workers(module)
        for spawn in module.spawns:
            if start_method(module, spawn) != "fork" or spawn.function is None:
                continue
            touched = _cuda_before(module, spawn.call)
            if touched is not None and _uses_cuda(module, spawn.function):
                yield point(
                    module,
                    spawn.call,
                    f"child is forked after line {touched.lineno} used CUDA, and uses CUDA itself",
                    'mp.set_start_method("spawn")',
                    label="RuntimeError: use the spawn start method",
                    fix="Use the spawn start method.",
                    edits=_spawned(module, spawn),
                )


def _spawned(module: Module, spawn: Spawn) -> tuple[Edit, ...]:
    """Start the same processes with the spawn method."""
    func = spawn.call.func
    for call in module.calls("mp.get_context"):
        chosen = argument(call, 0, "method")
        if chosen is not None and value(module, chosen) == "fork":
            return (replace(module, chosen, '"spawn"'),)
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
        return (replace(module, func.value, f'{func.value.id}.get_context("spawn")'),)
    return ()


def _in_workers(module: Module) -> Iterator[Finding]:
    for call in module.calls("DataLoader"):
        workers = value(module, argument(call, 5, "num_workers"))
        context = argument(call, None, "multiprocessing_context")
        dataset = argument(call, 0, "dataset")
        owner = module.class_of_value(dataset) if dataset is not None else None
        item = module.method(owner, "__getitem__") if owner is not None else None
        given = argument(call, 6, "collate_fn")
        collate = module.target_of(given) if given is not None else None
        if type(workers) is not int or workers < 1 or context is not None or "spawn" in module.text:
            continue
        for target in (item, collate):
            used = _cuda_call(module, target.function) if target is not None and target.module is module else None
            if used is None or target is None:
                continue
            yield point(
                module,
                used,
                f"{target.function.name}() uses CUDA in the forked DataLoader workers (line {call.lineno})",
                "CPU tensors from the dataset",
                label="Cannot re-initialize CUDA in forked subprocess",
                fix="Return CPU tensors, and move batches to the GPU in the training loop.",
                edits=_left_on_cpu(module, used),
            )


def _left_on_cpu(module: Module, call: ast.Call) -> tuple[Edit, ...]:
    given = argument(call, None, "device")
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("cuda", "to") and module.names.of(call.func) is None:
        return (replace(module, call, code(module, call.func.value, 400)),)
    return without_argument(module, call, given) if given is not None else ()


def _cuda_call(module: Module, function: Function) -> ast.Call | None:
    return next((n for n in ast.walk(function) if isinstance(n, ast.Call) and _moves(module, n)), None)


def _is_cuda(device: object) -> bool:
    return (isinstance(device, str) and device.startswith("cuda")) or getattr(device, "type", None) == "cuda"


def _uses_cuda(module: Module, function: Function) -> bool:
    return _cuda_call(module, function) is not None or any(
        (module.names.of(n.func) or "").startswith("cuda.set") for n in ast.walk(function) if isinstance(n, ast.Call)
    )


def _cuda_before(module: Module, start: ast.Call) -> ast.Call | None:
    """A call of the parent that creates a CUDA context before the start."""
    function = module.index.function_of(start)
    for call in module.index.calls:
        same = module.index.function_of(call) is function and call.lineno < start.lineno
        if same and (module.names.of(call.func) in _CONTEXTS or _moves(module, call)):
            return call
    return None


def _moves(module: Module, call: ast.Call) -> bool:
    """Whether it is `x.cuda()`, `x.to("cuda")` or `torch.zeros(1, device="cuda")`."""
    attr = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if attr == "cuda" and module.names.of(call.func) is None:
        return True
    given = argument(call, 0, "device") if attr == "to" else argument(call, None, "device")
    is_call = attr == "to" or (module.names.of(call.func) or "") in CREATED
    return is_call and given is not None and _is_cuda(value(module, given))


@cause("SCRIPT069", "distributed-after-fork", Severity.ERROR)
def distributed_after_fork(script: Script) -> Iterator[Finding]:
    """A forked child uses the process group of its parent.

    ## Why it matters
    The child has copies of the sockets of the group, but none of its threads. It waits forever, and the parent may
    read its bytes.

    ## Fix
    Start children before init_process_group, or with `mp.get_context("spawn")` and a group of their own.

    `--diff` does not correct this: only the author knows which ranks the child should communicate with.

    ## Example
        # before
        dist.init_process_group("gloo")
        mp.get_context("fork").Process(target=report).start()  # report() calls dist.all_reduce()

        # after
        child = mp.get_context("spawn").Process(target=report)  # report() calls init_process_group() itself
        child.start()
        dist.init_process_group("gloo")
    """
    for module in modules(script):
        for spawn in module.spawns:
            if (
                start_method(module, spawn) != "fork"
                or spawn.function is None
                or not _communicates(module, spawn.function)
            ):
                continue
            before = [c for c in module.calls("dist.init_process_group") if _is_before(module, c, spawn.call)]
            if before and not _joins_itself(module, spawn.function):
                yield _after_fork(module, spawn.call, before[0])
        yield from _forks(module)


def _forks(module: Module) -> Iterator[Finding]:
    """os.fork after init_process_group, if the child communicates."""
    for fork in module.calls("os.fork"):
        before = [c for c in module.calls("dist.init_process_group") if _is_before(module, c, fork)]
        statement = module.index.statement(fork)
        name = statement.targets[0] if isinstance(statement, ast.Assign) else None
        child = f"{ast.unparse(name)} == 0" if name is not None else ""
        for branch in (n for n in module.index.parents if isinstance(n, ast.If) and n.lineno >= fork.lineno):
            if before and ast.unparse(branch.test) == child and _communicates(module, branch):
                yield _after_fork(module, fork, before[0])


def _after_fork(module: Module, start: ast.Call, init: ast.Call) -> Finding:
    return point(
        module,
        start,
        f"forked child uses the process group of its parent (line {init.lineno})",
        'mp.get_context("spawn")',
        label="the child has no threads: it hangs",
        fix='Start the child before init_process_group, or with `mp.get_context("spawn")`.',
    )


def _is_before(module: Module, one: ast.Call, two: ast.Call) -> bool:
    """Whether a call certainly runs before another: earlier in its function, or in a function that later calls the other."""
    function, later = module.index.function_of(one), module.index.function_of(two)
    if function is later:
        return one.lineno < two.lineno
    calls = module.callers.get(later, []) if later is not None else []
    return any(module.index.function_of(c) is function and one.lineno < c.lineno for c in calls)


def _communicates(module: Module, function: ast.AST) -> bool:
    return any(
        (module.names.of(n.func) or "").startswith("dist.") for n in ast.walk(function) if isinstance(n, ast.Call)
    )


def _joins_itself(module: Module, function: Function) -> bool:
    return any(
        module.names.of(n.func) == "dist.init_process_group" for n in ast.walk(function) if isinstance(n, ast.Call)
    )


@cuda_after_fork.look
def bad_fork(rehearsal: Rehearsal) -> Iterator[Finding]:
    """CUDA in a process that was forked after CUDA was used."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.BAD_FORK,
        lambda o, who: "a forked process uses CUDA, which its parent had used before the fork",
        label="CUDA does not work in this process",
        expected="start the process with spawn",
    )
