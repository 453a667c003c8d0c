"""SCRIPT066 to SCRIPT069: processes that a script starts."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.facts.script.index import Function
from ddpdoctor.facts.script.module import Module, modules
from ddpdoctor.facts.script.spawning import Spawn
from ddpdoctor.facts.script.world import Made
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.script.pointing import code, point, replace
from ddpdoctor.rules.script.situation import argument, value


def _method(module: Module, spawn: Spawn) -> str | None:
    """The start method of a start of processes: `spawn` or `fork` where it is certain."""
    if spawn.how == "spawn":
        given = value(module, argument(spawn.call, None, "start_method"))
        return given if isinstance(given, str) else "spawn"
    func = spawn.call.func
    base = func.value if isinstance(func, ast.Attribute) else None
    context = value(module, base) if isinstance(base, (ast.Name, ast.Call)) else None
    if isinstance(context, Made) and context.name == "mp.get_context":
        chosen = value(module, argument(context.call, 0, "method"))
        return chosen if isinstance(chosen, str) else None
    for call in module.calls("mp.set_start_method"):
        chosen = value(module, argument(call, 0, "method"))
        return chosen if isinstance(chosen, str) else None
    return "fork" if module.names.of(func) == "mp.Process" else None


@rule(
    "SCRIPT066",
    "spawn-without-main-guard",
    Severity.ERROR,
    signatures=(r"finished its\s+bootstrapping phase",),
)
def unguarded(script: Script) -> Iterator[Finding]:
    """Processes are started without a main guard.

    ## Why it matters
    A spawned child imports the script and would start children again: `RuntimeError: An attempt has been made to
    start a new
    process before the current process has finished its bootstrapping phase.`

    ## Fix
    Put the start under `if __name__ == "__main__":`.
    """
    for module in modules(script):
        for spawn in module.spawns:
            if _method(module, spawn) != "spawn":
                continue
            at = _at_import(module, spawn.call)
            if at is not None:
                statement = module.index.statement(at)
                body = "\n".join(f"    {row}" for row in code(module, statement, 2000).splitlines())
                one_line = statement.lineno == statement.end_lineno
                yield point(
                    module,
                    at,
                    "this starts processes when the module is imported, and each spawned child imports it: a "
                    "RuntimeError about the "
                    'bootstrapping phase; expected it under if __name__ == "__main__":',
                    'if __name__ == "__main__":',
                    edits=(replace(module, statement, f'if __name__ == "__main__":\n{body}'),) if one_line else (),
                )


def _at_import(module: Module, node: ast.AST, depth: int = 0) -> ast.AST | None:
    """The place at module level, outside of a main guard, that runs a node on import."""
    function = module.index.function_of(node)
    if function is None:
        around = [p for p, _ in module.index.enclosing(node)]
        return None if any(isinstance(p, (ast.If, ast.ClassDef, ast.Lambda)) for p in around) else node
    if depth > 4:
        return None
    for call in module.callers.get(function, ()):
        found = _at_import(module, call, depth + 1)
        if found is not None:
            return found
    return None


@rule("SCRIPT067", "child-exit-code-ignored", Severity.WARNING)
def ignored(script: Script) -> Iterator[Finding]:
    """The parent ignores the exit codes of its children.

    ## Why it matters
    The children fail and the parent ends with 0: the scheduler and the CI see success.

    ## Fix
    Look at `p.exitcode` after `join()` and exit with it; or `mp.spawn(..., join=True)`, which raises.
    """
    for module in modules(script):
        if (
            "exitcode" in module.text
            or "ProcessRaisedException" in module.text
            or not module.calls("dist.init_process_group")
        ):
            continue
        for spawn in module.spawns:
            joins = [c for c in module.method_calls.get("join", ()) if not c.args and not _is_text(c)]
            if spawn.how == "Process" and joins:
                yield point(
                    module,
                    joins[0],
                    "join() returns whether the child succeeded or not, and nothing looks at its exitcode: a failed "
                    "job ends with 0; "
                    "expected a look at exitcode",
                    "sys.exit(any(p.exitcode for p in processes))",
                )
                break
            flag = value(module, argument(spawn.call, 3, "join")) if spawn.how == "spawn" else None
            if (
                flag is False
                and not joins
                and not isinstance(module.index.parents.get(spawn.call), (ast.Assign, ast.Return))
            ):
                yield point(
                    module,
                    spawn.call,
                    "join=False returns at once and nothing joins the children: the parent ends with 0 whatever "
                    "they do; expected "
                    "join=True",
                    "join=True",
                )


def _is_text(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Constant)


@rule(
    "SCRIPT068",
    "cuda-after-fork",
    Severity.ERROR,
    signatures=(r"Cannot re-initialize CUDA in forked subprocess",),
)
def cuda_after_fork(script: Script) -> Iterator[Finding]:
    """CUDA is used in a forked process.

    ## Why it matters
    `RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the
    'spawn' start
    method`: the parent touched CUDA before the fork, and the worker of a DataLoader is a fork.

    ## Fix
    No CUDA before the fork and none in a dataset: move batches to the GPU in the training loop. Or the spawn start
    method.
    """
    for module in modules(script):
        yield from _in_workers(module)
        for spawn in module.spawns:
            if _method(module, spawn) != "fork" or spawn.function is None:
                continue
            touched = _cuda_before(module, spawn.call)
            if touched is not None and _uses_cuda(module, spawn.function):
                yield point(
                    module,
                    spawn.call,
                    f"the child is forked after line {touched.lineno} touched CUDA, and uses CUDA itself "
                    "(RuntimeError); expected the "
                    "spawn start method",
                    'mp.set_start_method("spawn")',
                )


def _in_workers(module: Module) -> Iterator[Finding]:
    for call in module.calls("DataLoader"):
        workers = value(module, argument(call, 5, "num_workers"))
        context = argument(call, None, "multiprocessing_context")
        dataset = argument(call, 0, "dataset")
        owner = module.class_of_value(dataset) if dataset is not None else None
        item = module.method(owner, "__getitem__") if owner is not None else None
        if type(workers) is not int or workers < 1 or context is not None or item is None or "spawn" in module.text:
            continue
        used = _cuda_call(module, item.function)
        if used is not None:
            yield point(
                module,
                used,
                f"{owner.name if owner else 'the dataset'} uses CUDA in __getitem__, which runs in the forked "
                "workers of line "
                f"{call.lineno} (Cannot re-initialize CUDA in forked subprocess); expected the move to the GPU in "
                "the training loop",
                "CPU tensors from the dataset",
            )


def _cuda_call(module: Module, function: Function) -> ast.Call | None:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            first = value(module, node.args[0]) if node.args else None
            device = value(module, argument(node, None, "device"))
            if node.func.attr == "cuda" and module.names.of(node.func) is None:
                return node
            if (node.func.attr == "to" and _is_cuda(first)) or _is_cuda(device):
                return node
    return None


def _is_cuda(found: object) -> bool:
    return (isinstance(found, str) and found.startswith("cuda")) or getattr(found, "type", None) == "cuda"


def _uses_cuda(module: Module, function: Function) -> bool:
    return _cuda_call(module, function) is not None or any(
        (module.names.of(n.func) or "").startswith("cuda.set") for n in ast.walk(function) if isinstance(n, ast.Call)
    )


def _cuda_before(module: Module, start: ast.Call) -> ast.Call | None:
    """A call of the parent that makes a CUDA context before the start."""
    function = module.index.function_of(start)
    for call in module.index.calls:
        same = module.index.function_of(call) is function and call.lineno < start.lineno
        name = module.names.of(call.func) or ""
        touches = name in ("cuda.init", "cuda.set_device", "cuda.synchronize", "cuda.empty_cache", "cuda.mem_get_info")
        moved = isinstance(call.func, ast.Attribute) and call.func.attr == "cuda" and not name
        if same and (touches or moved):
            return call
    return None


@rule("SCRIPT069", "distributed-after-fork", Severity.ERROR)
def group_after_fork(script: Script) -> Iterator[Finding]:
    """A forked child uses the process group of its parent.

    ## Why it matters
    The child has copies of the group's sockets but none of its threads: it waits for ever, and the parent may read
    its bytes.

    ## Fix
    Start children before init_process_group, or with the spawn start method and a group of their own.
    """
    for module in modules(script):
        for spawn in module.spawns:
            if _method(module, spawn) != "fork" or spawn.function is None or not _talks(module, spawn.function):
                continue
            here = module.index.function_of(spawn.call)
            before = [
                c
                for c in module.calls("dist.init_process_group")
                if module.index.function_of(c) is here and c.lineno < spawn.call.lineno
            ]
            if before and not _joins_itself(module, spawn.function):
                yield point(
                    module,
                    spawn.call,
                    f"the child is forked after init_process_group (line {before[0].lineno}) and communicates "
                    "itself: it has no threads "
                    "for it and hangs; expected the start before init, or spawn",
                    'mp.get_context("spawn")',
                )


def _talks(module: Module, function: Function) -> bool:
    return any(
        (module.names.of(n.func) or "").startswith("dist.") for n in ast.walk(function) if isinstance(n, ast.Call)
    )


def _joins_itself(module: Module, function: Function) -> bool:
    return any(
        module.names.of(n.func) == "dist.init_process_group" for n in ast.walk(function) if isinstance(n, ast.Call)
    )
