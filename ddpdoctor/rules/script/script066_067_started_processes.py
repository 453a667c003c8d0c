"""SCRIPT066 and SCRIPT067: processes that a script starts, and how they end."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import after, code, point, replace, safe
from ddpdoctor.rules.script.script_questions import argument, is_test, value
from ddpdoctor.scripts.interpreter.frames import CallResult
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.spawning import Spawn


def start_method(module: Module, spawn: Spawn) -> str | None:
    """The start method of child processes: `spawn` or `fork`, if it is certain."""
    if spawn.how == "spawn":
        given = value(module, argument(spawn.call, None, "start_method"))
        return given if isinstance(given, str) else "spawn"
    func = spawn.call.func
    base = func.value if isinstance(func, ast.Attribute) else None
    context = value(module, base) if isinstance(base, (ast.Name, ast.Call)) else None
    if isinstance(context, CallResult) and context.name == "mp.get_context":
        chosen = value(module, argument(context.call, 0, "method"))
        return chosen if isinstance(chosen, str) else None
    for call in module.calls("mp.set_start_method"):
        chosen = value(module, argument(call, 0, "method"))
        return chosen if isinstance(chosen, str) else None
    return "fork" if module.names.of(func) == "mp.Process" else None


@cause(
    "SCRIPT066",
    "spawn-without-main-guard",
    Severity.ERROR,
    signatures=(r"finished its\s+bootstrapping phase",),
)
def spawn_without_main_guard(script: Script) -> Iterator[Finding]:
    """Processes are started without a main guard.

    ## Why it matters
    A spawned child imports the script and would start children again. It fails with `RuntimeError: An attempt has
    been made to start a new process before the current process has finished its bootstrapping phase.`

    ## Fix
    Put the start under `if __name__ == "__main__":`.

    ## Example
        # before
        mp.spawn(main, nprocs=2)
        # RuntimeError: An attempt has been made to start a new process before the current process
        # has finished its bootstrapping phase.

        # after
        if __name__ == "__main__":
            mp.spawn(main, nprocs=2)
    """
    for module in modules(script):
        for spawn in module.spawns:
            if start_method(module, spawn) != "spawn":
                continue
            at = _at_import(module, spawn.call)
            if at is not None:
                yield point(
                    module,
                    at,
                    "processes are started at import, without a main guard",
                    'if __name__ == "__main__":',
                    label="each spawned child runs this again: RuntimeError",
                    edits=safe(_under_guard(module, at)),
                )


def _under_guard(module: Module, at: ast.AST) -> tuple[Edit, ...]:
    """Put the rest of the file under a main guard, from the start of processes or the choice of their start method."""
    chosen = [at, *(c for c in module.calls("mp.set_start_method") if module.index.function_of(c) is None)]
    first = min((module.index.outermost(call) for call in chosen), key=lambda s: s.lineno)
    region = [s for s in module.tree.body if s.lineno >= first.lineno]
    texts = [n for s in region for n in ast.walk(s) if isinstance(n, (ast.Constant, ast.JoinedStr))]
    if any(n.end_lineno != n.lineno for n in texts) or any(
        isinstance(s, (ast.FunctionDef, ast.ClassDef)) for s in region
    ):
        return ()
    rows = module.lines[first.lineno - 1 :]
    body = "".join(f"    {row}" if row.strip() else row for row in rows)
    end = len(module.lines)
    last = len(module.lines[-1].rstrip("\r\n")) + 1
    return (Edit(module.path, first.lineno, 1, end, last, f'if __name__ == "__main__":\n{body}'.rstrip("\n")),)


def _at_import(module: Module, node: ast.AST, depth: int = 0) -> ast.AST | None:
    """The place at module level, outside a main guard, that runs a node on import."""
    function = module.index.function_of(node)
    if function is None:
        around = [p for p, _ in module.index.enclosing(node)]
        return None if any(isinstance(p, (ast.If, ast.ClassDef, ast.Lambda)) for p in around) else node
    if depth > 4:
        return None
    for call in module.callers.get(function, ()):
        place = _at_import(module, call, depth + 1)
        if place is not None:
            return place
    return None


@cause("SCRIPT067", "child-exit-code-ignored", Severity.WARNING)
def child_exit_code_ignored(script: Script) -> Iterator[Finding]:
    """The parent ignores the exit codes of its children.

    ## Why it matters
    The children fail and the parent exits with 0. The scheduler and the CI see success.

    ## Fix
    Check `p.exitcode` after `join()`, and exit with it.

    `mp.spawn(..., join=True)` raises if a child fails.

    ## Example
        # before
        for p in processes:
            p.join()

        # after
        for p in processes:
            p.join()
        if any(p.exitcode for p in processes):
            raise SystemExit(1)
    """
    for module in modules(script):
        if (
            "exitcode" in module.text
            or "ProcessRaisedException" in module.text
            or not module.calls("dist.init_process_group")
            or is_test(module)
        ):
            continue
        for spawn in module.spawns:
            joins = [c for c in module.method_calls.get("join", ()) if not c.args and not _is_text(c)]
            if spawn.how == "Process" and joins:
                yield point(
                    module,
                    joins[0],
                    "exit codes of the children are ignored: a failed job exits with 0",
                    "sys.exit(any(p.exitcode for p in processes))",
                    label="join() does not raise: check exitcode",
                    edits=safe(_exit_code_checked(module, joins[0])),
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
                    "mp.spawn(join=False) without join(): the parent exits with 0 if children fail",
                    "join=True",
                    label="use join=True",
                    fix="Pass `join=True`, which raises if a child fails.",
                    edits=(replace(module, argument(spawn.call, 3, "join") or spawn.call, "True"),),
                )


def _exit_code_checked(module: Module, join: ast.Call) -> tuple[Edit, ...]:
    """Exit with 1 if a child failed, after the loop that joins the children."""
    base = join.func.value if isinstance(join.func, ast.Attribute) else None
    loop = module.index.parents.get(module.index.statement(join))
    if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) and isinstance(base, ast.Name):
        name, items = loop.target.id, code(module, loop.iter, 200)
        return (
            after(
                module,
                loop,
                f"if any({name}.exitcode for {name} in {items}):\n{_inside(module, loop)}raise SystemExit(1)",
            ),
        )
    statement = module.index.statement(join)
    name = base.id if isinstance(base, ast.Name) and isinstance(statement, ast.Expr) else ""
    ended = (*module.method_calls.get("kill", ()), *module.method_calls.get("terminate", ()))
    if not name or any(isinstance(c.func, ast.Attribute) and ast.unparse(c.func.value) == name for c in ended):
        return ()
    return (after(module, statement, f"if {name}.exitcode:\n{_inside(module, statement)}raise SystemExit(1)"),)


def _inside(module: Module, statement: ast.stmt) -> str:
    return " " * (statement.col_offset + 4)


def _is_text(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Constant)
