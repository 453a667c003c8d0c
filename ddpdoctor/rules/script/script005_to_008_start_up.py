"""SCRIPT005 to SCRIPT008: the environment that a script reads and writes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, delete, point, replace, without_argument
from ddpdoctor.rules.script.script_questions import Start, argument, has_more, is_literal, is_test, start_of, value
from ddpdoctor.rules.script.variables import TORCHRUN, Setting, is_guarded, reads, reads_ranks, sets
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.vocabulary import VARIABLES

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

_FREE_PORT = re.compile(r"(?i)(free|find|open|unused|available|random|pick).*port")
_OWN = ((None, "rank"), (None, "store"))


def _other_scheduler(module: Module) -> bool:
    """The file takes its ranks from Slurm or MPI: then nobody but itself sets the master."""
    return any(name in VARIABLES and name not in TORCHRUN for name, _, _ in reads(module))


@cause("SCRIPT005", "local-rank-unset-under-spawn", Severity.ERROR)
def local_rank_unset_under_spawn(script: Script) -> Iterator[Finding]:
    """The script reads LOCAL_RANK, which mp.spawn does not set.

    ## Why it matters
    `KeyError: 'LOCAL_RANK'` in every child: mp.spawn passes the index as first argument and sets no variable.

    ## Fix
    Use the index that mp.spawn passes, or start the script with torchrun and without mp.spawn.
    """
    for module in modules(script):
        children = _spawned(module)
        written = {s.name for s in sets(module)} | {n for n, _, fails in reads(module) if not fails}
        written |= {str(value(module, c.args[0])) for c in module.calls("os.environ.setdefault") if c.args}
        for name, node, fails in reads(module):
            if not fails or name not in ("LOCAL_RANK", "RANK", "WORLD_SIZE") or name in written:
                continue
            function = module.index.function_of(node)
            if function in children and not is_guarded(module, node, name) and not _in_try(module, node):
                yield point(
                    module,
                    node,
                    f"{name} is read in {function.name}, which mp.spawn starts without it (KeyError: '{name}'); "
                    "expected the index that "
                    "mp.spawn passes",
                    "the first argument of the spawned function",
                    edits=_by_index(module, node, function, name),
                )


def _by_index(
    module: Module, node: ast.AST, function: ast.FunctionDef | ast.AsyncFunctionDef | None, name: str
) -> tuple[Edit, ...]:
    """The index that mp.spawn passes, in the function that it runs itself."""
    own = any(s.function is function and s.indexed for s in module.spawns)
    if function is None or not own or not function.args.args or name == "WORLD_SIZE":
        return ()
    parent = module.index.parents[node]
    whole = parent if isinstance(parent, ast.Call) and module.names.of(parent.func) == "int" else node
    return (replace(module, whole, function.args.args[0].arg),)


def _in_try(module: Module, node: ast.AST) -> bool:
    return any(isinstance(p, ast.Try) and p.handlers for p, _ in module.index.enclosing(node))


def _spawned(module: Module) -> set[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions that only run in children of mp.spawn, and what they call."""
    found = {s.function for s in module.spawns if s.how == "spawn" and s.function is not None}
    waiting = list(found)
    while waiting:
        function = waiting.pop()
        for call in (n for n in ast.walk(function) if isinstance(n, ast.Call)):
            target = module.target(call)
            if target is None or target.module is not module or target.function in found:
                continue
            if all(module.index.function_of(c) in found for c in module.callers.get(target.function, ())):
                found.add(target.function)
                waiting.append(target.function)
    return found


def _under_launcher(module: Module, start: Start | None) -> str:
    """By whom the script is started as far as can be told: for the message; "" when by nobody that sets ranks."""
    if start is not None:
        return start.launcher.value if start.gives_ranks and not module.spawns else ""
    if module.spawns or _other_scheduler(module):
        return ""
    if reads_ranks(module):
        return "torchrun, whose variables this script reads,"
    return "the launcher that this script needs for its rank" if _needs_ranks(module) else ""


def _needs_ranks(module: Module) -> bool:
    """A program that joins its group by env:// and sets no RANK: somebody has to start it who does."""
    calls = module.calls("dist.init_process_group")
    if not calls or not module.is_program or any(s.name == "RANK" for s in sets(module)):
        return False
    given = [argument(call, position, name) for call in calls for position, name in ((1, "init_method"), *_OWN)]
    return all(each is None for each in given) and not any(has_more(call) for call in calls)


@cause("SCRIPT006", "master-addr-overwritten", Severity.ERROR)
def master_addr_overwritten(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """The script overwrites MASTER_ADDR or MASTER_PORT under a launcher.

    ## Why it matters
    The launcher already hosts the store, at an address of its own. With another one in the environment every rank is a
    client of a port that nobody opened: `The client socket has timed out after … while trying to connect to (127.0.0.1,
    29501)`.

    ## Fix
    Delete the assignment, or use `os.environ.setdefault`, which leaves a launcher's value alone.
    """
    for module in modules(script):
        start = start_of(module, launch)
        under = "" if is_test(module) else _under_launcher(module, start)
        for setting in sets(module) if under else ():
            text = setting.text or (setting.default if start is not None else None)
            drawn = text is None and _is_drawn(setting)
            text = "a port that each rank finds for itself" if drawn else text
            if setting.name not in ("MASTER_ADDR", "MASTER_PORT") or text is None or _agrees(text, start):
                continue
            yield point(
                module,
                setting.node,
                f"{setting.name} becomes {text} here, but under {under} the store is elsewhere: every rank "
                "waits for a port that "
                "nobody opened; expected the launcher's value",
                f"no assignment to {setting.name}",
                fix="Delete the line"
                if drawn
                else f'Delete the line, or write os.environ.setdefault("{setting.name}", "{text}").',
                severity=None if start is not None or reads_ranks(module) else Severity.WARNING,
                edits=_default(setting) if not drawn else (),
            )


def _is_drawn(setting: Setting) -> bool:
    """A port that a random number or a function for free ports gives: another one in every process."""
    module = setting.module
    calls = [n for n in ast.walk(setting.given) if isinstance(n, ast.Call)]
    names = [module.names.of(c.func) or "" for c in calls]
    lasts = [getattr(c.func, "attr", getattr(c.func, "id", "")) for c in calls]
    return any(n.startswith("random.") for n in names) or any(_FREE_PORT.search(n) for n in lasts)


def _default(setting: Setting) -> tuple[Edit, ...]:
    """setdefault in place of an assignment; an update of the environment without the variable."""
    module = setting.module
    if isinstance(setting.node, ast.Call) and module.names.of(setting.node.func) == "os.environ.update":
        is_keyword = any(k.value is setting.given for k in setting.node.keywords)
        return without_argument(module, setting.node, setting.given) if is_keyword else ()
    target = setting.node.targets[0] if isinstance(setting.node, ast.Assign) else None
    environ = code(module, target.value) if isinstance(target, ast.Subscript) else "os.environ"
    text = f'{environ}.setdefault("{setting.name}", {code(module, setting.given, 200)})'
    return (replace(module, setting.node, text),)


def _agrees(text: str, start: Start | None) -> bool:
    """What a static launch line says itself."""
    plan = start.line.plan if start is not None else None
    if plan is None or plan.backend != "static":
        return False
    return text in (plan.host, str(plan.port))


@cause("SCRIPT007", "rank-hard-coded", Severity.ERROR)
def rank_hard_coded(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """The script hard-codes RANK under a launcher.

    ## Why it matters
    Every process is the same rank and waits for the others: `wait timeout after …, keys: /default_pg/0//cpu//0/1` on
    all of them, or `Timed out after 1801 seconds waiting for clients. 1/2 clients joined.`

    ## Fix
    Delete the assignments: the launcher sets RANK, LOCAL_RANK and WORLD_SIZE for each worker.
    """
    for module in modules(script):
        start = start_of(module, launch)
        world = next((s.text for s in sets(module) if s.name == "WORLD_SIZE"), None)
        if _is_alone_by_arguments(module):
            continue  # SCRIPT008: nobody waits for anybody
        for setting in sets(module):
            if setting.name != "RANK" or setting.text is None or world == "1" or module.spawns or is_test(module):
                continue
            if start is not None and not start.gives_ranks:
                continue
            if start is None and world is None and not reads_ranks(module):
                continue
            yield point(
                module,
                setting.node,
                f"RANK becomes {setting.text} in every process that a launcher starts"
                + (f", in a world of {world}" if world else "")
                + ": all wait for the other ranks; expected the launcher's value",
                "no assignment to RANK",
                edits=_of_launcher(module) if isinstance(setting.node, ast.stmt) else (),
            )


def _is_alone_by_arguments(module: Module) -> bool:
    """Whether every call that makes the group says world_size=1 itself: arguments win over the environment."""
    calls = module.calls("dist.init_process_group")
    worlds = [argument(call, None, "world_size") for call in calls]
    return bool(calls) and all(x is not None and is_literal(module, x) and value(module, x) == 1 for x in worlds)


@cause("SCRIPT008", "world-size-one-hard-coded", Severity.ERROR)
def world_size_one_hard_coded(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """The script hard-codes a world of one, so every process trains alone.

    ## Why it matters
    A launcher starts N processes and each one is a job of its own: N trainings that never exchange a gradient, exit
    code 0, and an all_reduce that gives back its own value.

    ## Fix
    Delete rank=0, world_size=1 and the assignments to RANK and WORLD_SIZE.
    """
    for module in modules(script):
        start = start_of(module, launch)
        if start is not None and not start.is_rank and (not start.gives_ranks or start.world == 1):
            continue
        certain = start is not None or reads_ranks(module)
        if is_test(module) or (not certain and not _trains(module)):
            continue
        under = start.launcher.value if start is not None else "a launcher"
        for node in _worlds_of_one(module):
            yield point(
                module,
                node,
                f"the world has one rank here, whatever {under} starts: every process trains alone and nothing says "
                "so; expected the "
                "launcher's world size",
                "no world_size=1",
                edits=_of_all(module, node),
            ).if_certain(certain)
            break


def _of_all(module: Module, node: ast.AST) -> tuple[Edit, ...]:
    """Without the numbers of one process, in the call and in the environment."""
    numbers = [k.value for k in node.keywords if k.arg in ("rank", "world_size")] if isinstance(node, ast.Call) else []
    call = without_argument(module, node, *numbers) if isinstance(node, ast.Call) else ()
    return (*call, *_of_launcher(module))


def _of_launcher(module: Module) -> tuple[Edit, ...]:
    """No numbers of the launcher written down."""
    fixed = [s.node for s in sets(module) if s.name in ("RANK", "LOCAL_RANK", "WORLD_SIZE") and s.text is not None]
    return tuple(delete(module, each) for each in fixed if isinstance(each, ast.stmt))


def _trains(module: Module) -> bool:
    joins = bool(module.calls("DDP", "dist.init_process_group"))
    return joins and bool(module.calls("DDP", "DistributedSampler")) and module.is_program


def _worlds_of_one(module: Module) -> Iterator[ast.AST]:
    for call in module.calls("dist.init_process_group"):
        rank_given, world = argument(call, None, "rank"), argument(call, None, "world_size")
        given = [value(module, x) for x in (rank_given, world) if x is not None and is_literal(module, x)]
        if given == [0, 1] and not is_guarded(module, call, "WORLD_SIZE"):
            yield call
    for setting in sets(module):
        if setting.name == "WORLD_SIZE" and setting.text == "1":
            yield setting.node


@local_rank_unset_under_spawn.look
def local_rank_under_spawn(log: Log) -> Iterator[Finding]:
    """LOCAL_RANK is missing in a child of mp.spawn."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.logs.started_by import is_spawned
    from ddpdoctor.rules.log.signatures import finding_of
    from ddpdoctor.rules.log.world_sizes import NO_LOCAL_RANK

    lines = [line for line in matching_lines(log, NO_LOCAL_RANK) if is_spawned(log, line)]
    if lines:
        yield finding_of(log, lines, "The script reads LOCAL_RANK, which mp.spawn does not set", blames_speaker=False)
