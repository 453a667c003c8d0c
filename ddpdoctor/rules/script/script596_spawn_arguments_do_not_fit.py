"""SCRIPT596: what mp.spawn and Process pass to a function does not fit it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, point, replace, safe
from ddpdoctor.rules.script.script066_067_started_processes import start_method
from ddpdoctor.rules.script.script_questions import argument, has_more, names_in, value
from ddpdoctor.scripts.interpreter.abstract_values import known
from ddpdoctor.scripts.interpreter.rank_evaluator import RankEvaluator
from ddpdoctor.scripts.interpreter.simulated_job import one_node
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.nodes import Function
from ddpdoctor.scripts.syntax.spawning import Spawn

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal


@cause(
    "SCRIPT596",
    "spawn-arguments-do-not-fit",
    Severity.ERROR,
    signatures=(r"after \* must be an iterable, not", r"Can't (get|pickle) local object"),
)
def spawn_arguments_do_not_fit(script: Script) -> Iterator[Finding]:
    """The arguments of started processes do not fit their function or their number.

    ## Why it matters
    mp.spawn passes the index of the process before `args`. A missing comma, an argument too many, or a local function
    ends each child with a TypeError or `Can't pickle local object`, and too few processes wait for the others.

    ## Fix
    Write `mp.spawn(worker, args=(world_size,), nprocs=world_size)` for a `worker(rank, world_size)` of the module.

    ## Example
        # before
        mp.spawn(worker, args=(world_size), nprocs=2)
        # TypeError: ddp.worker() argument after * must be an iterable, not int

        # after
        mp.spawn(worker, args=(world_size,), nprocs=world_size)

    ## Source
    torch/multiprocessing/spawn.py.
    """
    for module in modules(script):
        for spawn in module.spawns:
            yield from _not_a_tuple(module, spawn)
            yield from _wrong_count(module, spawn)
            yield from _local_function(module, spawn)
            yield from _other_than_world(module, spawn)
            yield from _one_after_the_other(module, spawn)
            yield from _one_rank_for_all(module, spawn)


def _given(spawn: Spawn) -> ast.expr | None:
    """The expression passed as `args`."""
    return argument(spawn.call, 1 if spawn.how == "spawn" else None, "args")


def _not_a_tuple(module: Module, spawn: Spawn) -> Iterator[Finding]:
    given = _given(spawn)
    if given is None or isinstance(given, (ast.Tuple, ast.List, ast.Starred)):
        return
    content = value(module, given)
    is_one = known(content) and isinstance(content, (int, float)) and not isinstance(content, (list, tuple))
    counted = isinstance(given, ast.Name) and module.names.of(given) is None and _is_count(module, given)
    if is_one or counted:
        text = code(module, given, 100)
        yield point(
            module,
            given,
            f"args=({text}) is one number, not a tuple",
            f"({text},)",
            label="a comma is missing",
            fix=f"Write `args=({text},)`.",
            edits=safe(_as_tuple(module, given)),
        )


def _as_tuple(module: Module, given: ast.expr) -> tuple[Edit, ...]:
    """Add the comma; with its parentheses, if the value has none."""
    row = module.lines[(given.end_lineno or given.lineno) - 1].rstrip("\r\n")
    rest = row.encode()[given.end_col_offset or 0 :].decode("utf-8", "replace")
    before = module.lines[given.lineno - 1].encode()[: given.col_offset].decode("utf-8", "replace")
    in_parentheses = before.rstrip().endswith("=(") and rest.lstrip().startswith(")")
    text = code(module, given, 400)
    return (replace(module, given, f"{text}," if in_parentheses else f"({text},)"),)


def _is_count(module: Module, name: ast.Name) -> bool:
    """Whether a name holds the number of GPUs."""
    bound = module.names.bindings(name.id, module.index.scope(name))
    made = [b.value for b in bound[1]] if bound is not None else []
    return bool(made) and all(
        isinstance(m, ast.Call) and module.names.of(m.func) in ("cuda.device_count", "os.cpu_count") for m in made
    )


def _wrong_count(module: Module, spawn: Spawn) -> Iterator[Finding]:
    given, function = _given(spawn), spawn.function
    elements = given.elts if isinstance(given, (ast.Tuple, ast.List)) else [] if given is None else None
    is_plain = elements is not None and not any(isinstance(e, ast.Starred) for e in elements)
    if function is None or elements is None or not is_plain or function.decorator_list or has_more(spawn.call):
        return
    if isinstance(module.index.parents.get(function), ast.ClassDef) or argument(spawn.call, None, "kwargs") is not None:
        return
    least, most = _accepted(function)
    count = len(elements) + spawn.indexed
    if count < least or (most is not None and count > most):
        takes = f"{least}" if least == most else f"at least {least}" if most is None else f"{least} to {most}"
        how = "with the index of the process" if spawn.indexed else "in all"
        yield point(
            module,
            given if given is not None else spawn.call,
            f"{function.name}() takes {takes} arguments, but gets {count} {how}",
            f"{takes} arguments",
            label="TypeError in each child",
            fix="Leave the rank out of `args`: mp.spawn passes it first."
            if spawn.indexed and most is not None and count > most
            else f"Pass what {function.name}() takes.",
        )


def _accepted(function: Function) -> tuple[int, int | None]:
    """The fewest and the most positional arguments of a function; None without a limit."""
    names = [*function.args.posonlyargs, *function.args.args]
    return len(names) - len(function.args.defaults), None if function.args.vararg is not None else len(names)


def _local_function(module: Module, spawn: Spawn) -> Iterator[Finding]:
    """A function inside of a function, or a lambda, cannot be pickled for a spawned child."""
    given = argument(spawn.call, 0, "fn") if spawn.how == "spawn" else argument(spawn.call, None, "target")
    if given is None or start_method(module, spawn) != "spawn":
        return
    bound = module.names.bindings(given.id, module.index.scope(given)) if isinstance(given, ast.Name) else None
    is_local = (
        bound is not None
        and bound[0].function is not None
        and any(isinstance(b.at, (ast.FunctionDef, ast.AsyncFunctionDef)) for b in bound[1])
    )
    if isinstance(given, ast.Lambda) or is_local:
        yield point(
            module,
            spawn.call,
            f"{code(module, given, 40)} is a local function, which a spawned child cannot import",
            "a function of the module",
            label="Can't pickle local object",
            fix="Define it at module level, and pass what it needs in `args`.",
        )


def _other_than_world(module: Module, spawn: Spawn) -> Iterator[Finding]:
    """A fixed number of processes and another fixed world size."""
    count = RankEvaluator(module, one_node(4)[0]).value(spawn.count) if spawn.count is not None else None
    if type(count) is not int or spawn.count is None or spawn.function is None:
        return
    for call in module.calls("dist.init_process_group"):
        size = argument(call, None, "world_size")
        tests = [p.test for p, _ in module.index.enclosing(call) if isinstance(p, ast.If)]
        if any(names_in(test) & {a.arg for a in spawn.function.args.args} for test in tests):
            continue  # only some of the processes join
        sizes = (
            {repr(RankEvaluator(module, one_node(n)[0]).value(size)) for n in (2, 4, 8)} if size is not None else set()
        )
        number = next(iter(sizes), "")
        if len(sizes) == 1 and number.isdigit() and int(number) not in (count, 0) and len(module.spawns) == 1:
            fixed = {RankEvaluator(module, one_node(n)[0]).value(spawn.count) for n in (2, 4, 8)}
            if fixed == {count} and argument(call, None, "rank") is not None and _rank_is_index(module, spawn, call):
                yield point(
                    module,
                    spawn.count,
                    f"{count} processes are started, but the world has {number} ranks (line {call.lineno})",
                    f"{number} processes",
                    label="the others never join" if int(number) > count else "ranks beyond the world size",
                    fix=f"Start {number} processes.",
                )


def _rank_is_index(module: Module, spawn: Spawn, call: ast.Call) -> bool:
    """Whether the index of the process is the rank itself: the first parameter, which Process gets from the loop around it."""
    rank = argument(call, None, "rank")
    names = spawn.function.args.args if spawn.function is not None else []
    is_own = module.index.function_of(call) is spawn.function
    if not (is_own and isinstance(rank, ast.Name) and bool(names) and rank.id == names[0].arg):
        return False
    return spawn.indexed or (bool(spawn.arguments) and ast.unparse(spawn.arguments[0]) in _counters(module, spawn))


def _loops(module: Module, node: ast.AST) -> list[ast.For | ast.comprehension]:
    """The loops of its function around a node, with those of comprehensions."""
    loops: list[ast.For | ast.comprehension] = []
    for parent, _ in module.index.enclosing(node):
        if parent in module.index.scopes:
            break
        loops += [parent] if isinstance(parent, ast.For) else getattr(parent, "generators", [])
    return loops


def _counters(module: Module, spawn: Spawn) -> set[str]:
    return {ast.unparse(loop.target) for loop in _loops(module, spawn.call)}


def _one_after_the_other(module: Module, spawn: Spawn) -> Iterator[Finding]:
    """A Process that is joined in the loop that starts it, before the next one is started."""
    statement = module.index.parents.get(spawn.call)
    name = statement.targets[0] if isinstance(statement, ast.Assign) else None
    loop = next((each for each in _loops(module, spawn.call) if isinstance(each, ast.For)), None)
    if (
        spawn.how != "Process"
        or not isinstance(name, ast.Name)
        or loop is None
        or not module.calls("dist.init_process_group")
    ):
        return
    for call in module.method_calls.get("join", ()):
        is_own = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == name.id
        if is_own and not call.args and not call.keywords and module.index.statement(call) in loop.body:
            yield point(
                module,
                call,
                f"{name.id}.join() waits for each process before the next one is started",
                "join() after all are started",
                label="the first rank waits for the others: deadlock",
                fix="Start all processes first, then join them in a second loop.",
            )


def _one_rank_for_all(module: Module, spawn: Spawn) -> Iterator[Finding]:
    """Several processes that all get the same literal rank."""
    function = spawn.function
    if spawn.how != "Process" or function is None or not spawn.arguments or not _loops(module, spawn.call):
        return
    for call in module.calls("dist.init_process_group"):
        rank = argument(call, None, "rank")
        names = [a.arg for a in function.args.args]
        is_own = module.index.function_of(call) is function and isinstance(rank, ast.Name) and rank.id in names
        position = names.index(rank.id) if is_own and isinstance(rank, ast.Name) else len(spawn.arguments)
        given = spawn.arguments[position] if position < len(spawn.arguments) else None
        if isinstance(given, ast.Constant) and type(given.value) is int:
            yield point(
                module,
                given,
                f"every process of the loop gets rank {given.value}",
                "the counter of the loop",
                label="the others never join",
                fix="Pass the counter of the loop as the rank.",
            )


@spawn_arguments_do_not_fit.look
def world_not_filled(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Fewer processes join than the world size that they pass."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.WORLD_NOT_FILLED,
        lambda o, who: f"{o.values['count']} processes join a world of {o.values['size']}",
        label="waits for ranks that no process has",
        expected="as many processes as the world size",
    )
