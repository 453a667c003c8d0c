"""SCRIPT015 and SCRIPT016: options and stores that are passed to init_process_group."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, imported, point, replace, with_keyword, without_argument
from ddpdoctor.rules.script.rank_branches import in_rank_branch
from ddpdoctor.rules.script.script010_to_012_014_init_process_group import INIT
from ddpdoctor.rules.script.script013_timeout_not_a_timedelta import as_timedelta
from ddpdoctor.rules.script.script_questions import argument, each_rank, has_more, last_value, start_of, value
from ddpdoctor.scripts.interpreter.frames import CallResult
from ddpdoctor.scripts.simulation.entry_points import rank_contexts
from ddpdoctor.scripts.syntax.module import Module, modules

MASTER = "Pass `is_master=(rank == 0)`."


class _Problem(NamedTuple):
    """The headline of a finding, the text of its caret, and the fix."""

    message: str
    label: str
    fix: str


@cause(
    "SCRIPT015",
    "pg-options-is-a-dict",
    Severity.ERROR,
    signatures=(r"Expected backend_options argument to be of type",),
)
def pg_options_is_a_dict(script: Script) -> Iterator[Finding]:
    """pg_options is a plain dict.

    ## Why it matters
    Gloo ignores it silently. NCCL raises `Expected backend_options argument to be of type ProcessGroupNCCL.Options`.

    ## Fix
    Pass `timeout=` for a timeout, or a `dist.ProcessGroupNCCL.Options()` object.

    ## Example
        # before
        dist.init_process_group("nccl", pg_options={"is_high_priority_stream": True})
        # AssertionError: Expected backend_options argument to be of type ProcessGroupNCCL.Options

        # after
        options = dist.ProcessGroupNCCL.Options()
        options.is_high_priority_stream = True
        dist.init_process_group("nccl", pg_options=options)
    """
    for module in modules(script):
        for call in module.calls(INIT, "dist.new_group"):
            given = argument(call, None, "pg_options", "backend_options")
            if given is None:
                continue
            made = last_value(module, given)
            if isinstance(made, ast.Dict) or (isinstance(made, ast.Call) and module.names.of(made.func) == "dict"):
                yield point(
                    module,
                    given,
                    "pg_options is a dict, not a ProcessGroupNCCL.Options object",
                    "timeout=, or ProcessGroupNCCL.Options()",
                    label="ignored by Gloo, AssertionError with NCCL",
                    edits=without_argument(module, call, given),
                )


@cause("SCRIPT016", "store-arguments-wrong", Severity.ERROR)
def store_arguments_wrong(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """A store is created or passed with arguments that cannot work.

    ## Why it matters
    A number as timeout is a TypeError; `store=` without rank and world_size, or with an init_method, is an
    AssertionError or a ValueError. If every rank or no rank opens a TCPStore as master, the ranks time out, and a
    HashStore is never shared between processes.

    ## Fix
    Pass `is_master=(rank == 0)` and a timedelta to TCPStore, and `store=` with `rank=` and `world_size=`.

    ## Example
        # before
        store = dist.TCPStore(host, port, size, True, timeout=600)
        dist.init_process_group("gloo", store=store)

        # after
        store = dist.TCPStore(host, port, size, is_master=(rank == 0), timeout=timedelta(seconds=600))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    """
    for module in modules(script):
        for call in module.calls(INIT):
            problem = _passed(module, call)
            if problem is not None:
                method = argument(call, 1, "init_method")
                both = value(module, method) is not None and method is not None
                edits = without_argument(module, call, method) if both and method is not None else _own(module, call)
                yield point(
                    module,
                    call,
                    problem.message,
                    "store=, rank= and world_size=",
                    label=problem.label,
                    fix=problem.fix,
                    edits=edits,
                )
        start = start_of(module, launch)
        is_of_all = start is not None and start.gives_ranks and (start.world or 0) > 1
        for call in module.calls("dist.TCPStore"):
            problem = _port_of(module, call) or _opened(module, call, is_of_all=is_of_all)
            if problem is not None:
                edits = _opened_once(module, call)
                yield point(
                    module,
                    call,
                    problem.message,
                    "is_master=(rank == 0)",
                    label=problem.label,
                    fix=problem.fix,
                    edits=edits if _port_of(module, call) is None else (),
                )
        for call in module.calls("dist.PrefixStore"):
            first, second = argument(call, 0, "prefix"), argument(call, 1, "store")
            made = value(module, first)
            if isinstance(made, CallResult) and isinstance(value(module, second), str):
                yield point(
                    module,
                    call,
                    "PrefixStore gets the store first, but takes the prefix first",
                    "PrefixStore(prefix, store)",
                    label="TypeError: the prefix is a str",
                    fix="Swap the two arguments.",
                )


def _own(module: Module, call: ast.Call) -> tuple[Edit, ...]:
    """Pass the rank and world size of the launcher with a store, or the world size of the store itself."""
    made = value(module, argument(call, None, "store"))
    if not isinstance(made, CallResult) or made.name not in ("dist.TCPStore", "dist.FileStore") or module.spawns:
        return ()
    rank, world = argument(call, None, "rank"), argument(call, None, "world_size")
    known = module.names.bindings("rank", module.index.scope(call)) is not None
    text = "rank" if known else 'int(os.environ["RANK"])'
    size = argument(made.call, 2 if made.name == "dist.TCPStore" else 1, "world_size")
    count = code(module, size) if size is not None else 'int(os.environ["WORLD_SIZE"])'
    needs = imported(module, "os", "import os") if "os." in text + count else ()
    if rank is not None:
        return (*needs, replace(module, rank, text)) if world is not None else ()
    sizes = () if world is not None else (f"world_size={count}",)
    return (*needs, with_keyword(module, call, ", ".join((f"rank={text}", *sizes))))


def _opened_once(module: Module, call: ast.Call) -> tuple[Edit, ...]:
    """Make the timeout a timedelta; make rank 0 the only master, if a name holds the rank."""
    late, master = argument(call, 4, "timeout"), argument(call, 3, "is_master")
    if late is not None and type(value(module, late)) in (int, float):
        return as_timedelta(module, late)
    function = module.index.function_of(call)
    known = {*module.index.scopes[module.tree].names, *(module.index.scopes[function].names if function else ())}
    if "rank" not in known:
        return ()
    if master is None:
        return (with_keyword(module, call, "is_master=rank == 0"),)
    return (replace(module, master, "rank == 0"),)


def _passed(module: Module, call: ast.Call) -> _Problem | None:
    """What is wrong with the store that a call of init_process_group passes."""
    given = argument(call, None, "store")
    if value(module, argument(call, 0, "backend")) == "fake":
        return None  # torch's world of one process, for tests
    if given is None or has_more(call) or (isinstance(given, ast.Constant) and given.value is None):
        return None
    if argument(call, 1, "init_method") is not None and value(module, argument(call, 1, "init_method")) is not None:
        return _Problem(
            "store= and init_method= are both given", "ValueError: they exclude each other", "Pass only one of them."
        )
    rank, world = argument(call, None, "rank"), argument(call, None, "world_size")
    missing = [n for n, a in (("rank", rank), ("world_size", world)) if a is None]
    if missing:
        names = " and ".join(missing)
        return _Problem(f"store= without {names}", "AssertionError", f"Pass {names} with the store.")
    size = value(module, world)
    made = value(module, given)
    if isinstance(made, CallResult) and made.name == "dist.HashStore" and size != 1:
        return _Problem(
            "HashStore with more than one process",
            "it is not shared between processes",
            "Use a TCPStore or a FileStore.",
        )
    if type(size) is int and size > 1 and value(module, rank) == 0 and isinstance(rank, ast.Constant):
        return _Problem(
            f"every process is rank 0 of {size}", "all wait for the other ranks", "Pass the rank of the process."
        )
    return None


def _port_of(module: Module, call: ast.Call) -> _Problem | None:
    """A port that is a literal string."""
    port = argument(call, 1, "port")
    if port is None or not isinstance(value(module, port), str):
        return None
    return _Problem(
        f"port={code(module, port)} is a string, not a number", "TypeError: pass an int", "Pass the port as an int."
    )


def _opened(module: Module, call: ast.Call, *, is_of_all: bool) -> _Problem | None:
    """What is wrong with a call of TCPStore. `is_of_all`: a launch line starts the file on several ranks."""
    late = argument(call, 4, "timeout")
    if late is not None and type(value(module, late)) in (int, float):
        seconds = code(module, late)
        return _Problem(
            f"TCPStore timeout {seconds} is a number, not a timedelta",
            "TypeError: pass a timedelta",
            f"Write `timedelta(seconds={seconds})`.",
        )
    size, master = value(module, argument(call, 2, "world_size")), argument(call, 3, "is_master")
    used = any(
        isinstance(s := value(module, argument(c, None, "store")), CallResult) and s.call is call
        for c in module.calls(INIT)
    )
    alone = size == 1 or module.index.function_of(call) in {s.function for s in module.spawns if s.how == "Process"}
    used = used or (is_of_all and isinstance(master, ast.Constant) and not in_rank_branch(module, call))
    if not used or alone or isinstance(size, bool) or len(rank_contexts(module)) < 2:
        return None
    everywhere = each_rank(module, master) if master is not None else [False]
    if all(v is True for v in everywhere):
        return _Problem("every rank opens the TCPStore as master", "the second rank finds the port in use", MASTER)
    if all(v is False for v in everywhere) and (master is None or isinstance(master, ast.Constant)):
        return _Problem("no rank opens the TCPStore as master", "all ranks wait until the timeout", MASTER)
    return None
