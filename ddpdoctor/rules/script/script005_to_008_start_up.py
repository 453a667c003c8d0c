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
    from ddpdoctor.facts.rehearsal import Rehearsal

_FREE_PORT = re.compile(r"(?i)free|find|open|unused|available|random|pick")
_OWN = ((None, "rank"), (None, "store"))


def _other_scheduler(module: Module) -> bool:
    """Whether the file reads its rank from Slurm or MPI: then it sets the master address itself."""
    return any(name in VARIABLES and name not in TORCHRUN for name, _, _ in reads(module))


@cause("SCRIPT005", "local-rank-unset-under-spawn", Severity.ERROR)
def local_rank_unset_under_spawn(script: Script) -> Iterator[Finding]:
    """The script reads LOCAL_RANK, which mp.spawn does not set.

    ## Why it matters
    Every child fails with `KeyError: 'LOCAL_RANK'`. mp.spawn passes the index as the first argument and sets no
    environment variable.

    ## Fix
    Use the index that mp.spawn passes as the first argument.

    Or start the script with torchrun, without mp.spawn.

    ## Example
        # before
        def main(index):
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            # KeyError: 'LOCAL_RANK'

        mp.spawn(main, nprocs=4)

        # after
        def main(index):
            torch.cuda.set_device(index)

        mp.spawn(main, nprocs=4)
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
                    f"{name} is not set in {function.name}(), which mp.spawn starts",
                    "the first argument of the spawned function",
                    label=f"KeyError: '{name}'",
                    edits=_by_index(module, node, function, name),
                )


def _by_index(
    module: Module, node: ast.AST, function: ast.FunctionDef | ast.AsyncFunctionDef | None, name: str
) -> tuple[Edit, ...]:
    """Replace the variable with the index that mp.spawn passes, in the spawned function itself."""
    own = any(s.function is function and s.indexed for s in module.spawns)
    if function is None or not own or not function.args.args or name == "WORLD_SIZE":
        return ()
    parent = module.index.parents[node]
    whole = parent if isinstance(parent, ast.Call) and module.names.of(parent.func) == "int" else node
    return (replace(module, whole, function.args.args[0].arg),)


def _in_try(module: Module, node: ast.AST) -> bool:
    return any(isinstance(p, ast.Try) and p.handlers for p, _ in module.index.enclosing(node))


def _spawned(module: Module) -> set[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions that run only in children of mp.spawn, and the functions that they call."""
    functions = {s.function for s in module.spawns if s.how == "spawn" and s.function is not None}
    waiting = list(functions)
    while waiting:
        function = waiting.pop()
        for call in (n for n in ast.walk(function) if isinstance(n, ast.Call)):
            target = module.target(call)
            if target is None or target.module is not module or target.function in functions:
                continue
            if all(module.index.function_of(c) in functions for c in module.callers.get(target.function, ())):
                functions.add(target.function)
                waiting.append(target.function)
    return functions


def _under_launcher(module: Module, start: Start | None) -> str:
    """The launcher that sets the ranks, as far as it is known, for the message; "" if there is none."""
    if start is not None:
        return start.launcher.value if start.gives_ranks and not module.spawns else ""
    if module.spawns or _other_scheduler(module):
        return ""
    if reads_ranks(module):
        return "torchrun"
    return "the launcher" if _needs_ranks(module) else ""


def _needs_ranks(module: Module) -> bool:
    """Whether the program joins its group with env:// and sets no RANK, so that a launcher has to set it."""
    calls = module.calls("dist.init_process_group")
    if not calls or not module.is_program or any(s.name == "RANK" for s in sets(module)):
        return False
    given = [argument(call, position, name) for call in calls for position, name in ((1, "init_method"), *_OWN)]
    return all(value_given is None for value_given in given) and not any(has_more(call) for call in calls)


@cause("SCRIPT006", "master-addr-overwritten", Severity.ERROR)
def master_addr_overwritten(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """The script overwrites MASTER_ADDR or MASTER_PORT under a launcher.

    ## Why it matters
    The launcher already hosts the store at its own address; with another address every rank connects to a port where
    no process listens. All ranks fail with `The client socket has timed out after … while trying to connect to
    (127.0.0.1, 29501)`.

    ## Fix
    Delete the assignment, or use `os.environ.setdefault`, which keeps the launcher's value.

    ## Example
        # before
        os.environ["MASTER_PORT"] = "29501"
        dist.init_process_group("nccl")
        # The client socket has timed out after 600000ms while trying to connect to (127.0.0.1, 29501)

        # after
        os.environ.setdefault("MASTER_PORT", "29501")
        dist.init_process_group("nccl")
    """
    for module in modules(script):
        start = start_of(module, launch)
        under = "" if is_test(module) else _under_launcher(module, start)
        for setting in sets(module) if under else ():
            text = setting.text or (setting.default if start is not None else None)
            drawn = text is None and _is_drawn(setting)
            text = "a random port on each rank" if drawn else text
            if setting.name not in ("MASTER_ADDR", "MASTER_PORT") or text is None or _agrees(text, start):
                continue
            yield point(
                module,
                setting.node,
                f"{setting.name} is overwritten with {text}, but {under} sets it",
                f"no assignment to {setting.name}",
                label="no process listens there: timeout",
                fix="Delete this line."
                if drawn
                else f'Delete this line, or write `os.environ.setdefault("{setting.name}", "{text}")`.',
                severity=None if start is not None or reads_ranks(module) else Severity.WARNING,
                edits=_default(setting) if not drawn else (),
            )


def _is_drawn(setting: Setting) -> bool:
    """Whether the value is a random number or a free port: each process gets a different one."""
    module = setting.module
    calls = [n for n in ast.walk(setting.given) if isinstance(n, ast.Call)]
    names = [module.names.of(c.func) or "" for c in calls]
    lasts = [getattr(c.func, "attr", getattr(c.func, "id", "")) for c in calls]
    return any(n.startswith("random.") for n in names) or any(
        (found := _FREE_PORT.search(n)) and "port" in n[found.end() :].lower() for n in lasts
    )


def _default(setting: Setting) -> tuple[Edit, ...]:
    """Replace the assignment with setdefault, or remove the variable from the update of the environment."""
    module = setting.module
    if isinstance(setting.node, ast.Call) and module.names.of(setting.node.func) == "os.environ.update":
        is_keyword = any(k.value is setting.given for k in setting.node.keywords)
        return without_argument(module, setting.node, setting.given) if is_keyword else ()
    target = setting.node.targets[0] if isinstance(setting.node, ast.Assign) else None
    environ = code(module, target.value) if isinstance(target, ast.Subscript) else "os.environ"
    text = f'{environ}.setdefault("{setting.name}", {code(module, setting.given, 200)})'
    return (replace(module, setting.node, text),)


def _agrees(text: str, start: Start | None) -> bool:
    """Whether a static launch line has the same value."""
    plan = start.line.plan if start is not None else None
    if plan is None or plan.backend != "static":
        return False
    return text in (plan.host, str(plan.port))


@cause("SCRIPT007", "rank-hard-coded", Severity.ERROR)
def rank_hard_coded(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """The script hard-codes RANK under a launcher.

    ## Why it matters
    Every process has the same rank and waits for the others. All of them fail with `wait timeout after …, keys:
    /default_pg/0//cpu//0/1`, or with `Timed out after 1801 seconds waiting for clients. 1/2 clients joined.`

    ## Fix
    Delete the assignments: the launcher sets RANK, LOCAL_RANK, and WORLD_SIZE for each worker.

    ## Example
        # before
        os.environ["RANK"] = "0"
        os.environ["WORLD_SIZE"] = "2"
        dist.init_process_group("gloo")
        # Timed out after 1801 seconds waiting for clients. 1/2 clients joined.

        # after
        dist.init_process_group("gloo")
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
                f"RANK is hard-coded to {setting.text} under a launcher" + (f" (world size {world})" if world else ""),
                "no assignment to RANK",
                label="all processes get this rank and wait",
                edits=_of_launcher(module) if isinstance(setting.node, ast.stmt) else (),
            )


def _is_alone_by_arguments(module: Module) -> bool:
    """Whether every call that makes the group says world_size=1 itself: arguments win over the environment."""
    calls = module.calls("dist.init_process_group")
    worlds = [argument(call, None, "world_size") for call in calls]
    return bool(calls) and all(x is not None and is_literal(module, x) and value(module, x) == 1 for x in worlds)


@cause("SCRIPT008", "world-size-one-hard-coded", Severity.ERROR)
def world_size_one_hard_coded(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """The script hard-codes a world size of 1, so that every process trains alone.

    ## Why it matters
    The launcher starts N processes, and each of them trains as a job of its own without exchanging gradients. There
    is no error: the exit code is 0, and all_reduce returns its own input.

    ## Fix
    Delete `rank=0, world_size=1` and the assignments to RANK and WORLD_SIZE.

    ## Example
        # before
        dist.init_process_group("nccl", rank=0, world_size=1)
        # exit code 0, but each process trained alone

        # after
        dist.init_process_group("nccl")
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
                f"the world size is 1: every process that {under} starts trains alone",
                "no world_size=1",
                label="no gradients are exchanged",
                edits=_of_all(module, node),
            ).if_certain(certain)
            break


def _of_all(module: Module, node: ast.AST) -> tuple[Edit, ...]:
    """Remove rank and world size, from the call and from the environment."""
    numbers = [k.value for k in node.keywords if k.arg in ("rank", "world_size")] if isinstance(node, ast.Call) else []
    call = without_argument(module, node, *numbers) if isinstance(node, ast.Call) else ()
    return (*call, *_of_launcher(module))


def _of_launcher(module: Module) -> tuple[Edit, ...]:
    """Delete hard-coded values of the variables that the launcher sets."""
    assignments = [
        s.node for s in sets(module) if s.name in ("RANK", "LOCAL_RANK", "WORLD_SIZE") and s.text is not None
    ]
    return tuple(delete(module, statement) for statement in assignments if isinstance(statement, ast.stmt))


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
    """LOCAL_RANK is not set in a child of mp.spawn."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.logs.started_by import is_spawned
    from ddpdoctor.rules.log.signatures import finding_of
    from ddpdoctor.rules.log.world_sizes import NO_LOCAL_RANK

    lines = [line for line in matching_lines(log, NO_LOCAL_RANK) if is_spawned(log, line)]
    if lines:
        yield finding_of(log, lines, "The script reads LOCAL_RANK, which mp.spawn does not set", blames_speaker=False)


@rank_hard_coded.look
def same_rank_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Several processes join with one rank."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.SAME_RANK,
        lambda o, who: f"{o.values['count']} processes each join as rank {o.values['rank']}",
        label="every process passes this rank",
        expected="a different rank for each process",
    )


@world_size_one_hard_coded.look
def world_of_one(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Each process joins a world of its own."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.WORLD_OF_ONE,
        lambda o, who: f"{len(o.ranks)} processes each joined a world of size 1",
        label="nothing is shared between the ranks",
        expected="the world size of the job",
    )
