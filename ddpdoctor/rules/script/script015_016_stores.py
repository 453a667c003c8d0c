"""SCRIPT015 and SCRIPT016: options and stores that are given to init_process_group."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, imported, point, replace, with_keyword, without_argument
from ddpdoctor.rules.script.script010_to_012_014_init_process_group import INIT
from ddpdoctor.rules.script.script013_timeout_not_a_timedelta import as_timedelta
from ddpdoctor.rules.script.script_questions import argument, each_rank, has_more, last_value, value
from ddpdoctor.scripts.interpreter.frames import CallResult
from ddpdoctor.scripts.simulation.entry_points import rank_contexts
from ddpdoctor.scripts.syntax.module import Module, modules


@cause(
    "SCRIPT015",
    "pg-options-is-a-dict",
    Severity.ERROR,
    signatures=(r"Expected backend_options argument to be of type",),
)
def pg_options_is_a_dict(script: Script) -> Iterator[Finding]:
    """pg_options is a plain dict.

    ## Why it matters
    Gloo ignores it without a word. NCCL raises `Expected backend_options argument to be of type
    ProcessGroupNCCL.Options`.

    ## Fix
    `timeout=` for a timeout; `dist.ProcessGroupNCCL.Options()` and its attributes for the rest.
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
                    "pg_options is a dict: Gloo ignores it and NCCL raises an AssertionError; expected "
                    "ProcessGroupNCCL.Options, or "
                    "timeout=",
                    "timeout=, or ProcessGroupNCCL.Options()",
                    edits=without_argument(module, call, given),
                )


@cause("SCRIPT016", "store-arguments-wrong", Severity.ERROR)
def store_arguments_wrong(script: Script) -> Iterator[Finding]:
    """A store is created or passed with arguments that cannot work.

    ## Why it matters
    A number as timeout is a TypeError; `store=` without rank and world_size, or with an init_method, is an
    AssertionError or a ValueError. A TCPStore that every rank opens as master, or with no master, waits until its
    timeout, and a HashStore never leaves its process.

    ## Fix
    `TCPStore(host, port, world_size, is_master=(rank == 0), timeout=timedelta(...))`, given with `rank=` and `world_size=`.
    """
    for module in modules(script):
        for call in module.calls(INIT):
            told = _passed(module, call)
            if told:
                method = argument(call, 1, "init_method")
                both = value(module, method) is not None and method is not None
                edits = without_argument(module, call, method) if both and method is not None else _own(module, call)
                yield point(module, call, told, "store=, rank= and world_size=", edits=edits)
        for call in module.calls("dist.TCPStore"):
            told = _opened(module, call)
            if told:
                yield point(module, call, told, "is_master=(rank == 0)", edits=_opened_once(module, call))


def _own(module: Module, call: ast.Call) -> tuple[Edit, ...]:
    """The rank and world size that the launcher gives beside a store, the store's own world size where it has one."""
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
    """The timeout as a timedelta; rank 0 as the only master, where a name holds the rank."""
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


def _passed(module: Module, call: ast.Call) -> str:
    given = argument(call, None, "store")
    if value(module, argument(call, 0, "backend")) == "fake":
        return ""  # torch's world of one process, for tests
    if given is None or has_more(call) or (isinstance(given, ast.Constant) and given.value is None):
        return ""
    if argument(call, 1, "init_method") is not None and value(module, argument(call, 1, "init_method")) is not None:
        return "store= and init_method= exclude each other (ValueError); expected one of them"
    rank, world = argument(call, None, "rank"), argument(call, None, "world_size")
    missing = [n for n, a in (("rank", rank), ("world_size", world)) if a is None]
    if missing:
        return f"store= without {' and '.join(missing)} ends with an AssertionError; expected both beside the store"
    size = value(module, world)
    made = value(module, given)
    if isinstance(made, CallResult) and made.name == "dist.HashStore" and size != 1:
        return "a HashStore lives in one process: the ranks never see each other; expected a TCPStore or a FileStore"
    if type(size) is int and size > 1 and value(module, rank) == 0 and isinstance(rank, ast.Constant):
        return f"every process says that it is rank 0 of {size}, and all wait for the others; expected its own rank"
    return ""


def _opened(module: Module, call: ast.Call) -> str:
    late = argument(call, 4, "timeout")
    if late is not None and type(value(module, late)) in (int, float):
        seconds = code(module, late)
        return f"TCPStore gets the number {seconds} as timeout (TypeError); expected timedelta(seconds={seconds})"
    size, master = value(module, argument(call, 2, "world_size")), argument(call, 3, "is_master")
    used = any(
        isinstance(s := value(module, argument(c, None, "store")), CallResult) and s.call is call
        for c in module.calls(INIT)
    )
    alone = size == 1 or module.index.function_of(call) in {s.function for s in module.spawns if s.how == "Process"}
    if not used or alone or isinstance(size, bool) or len(rank_contexts(module)) < 2:
        return ""
    everywhere = each_rank(module, master) if master is not None else [False]
    if all(v is True for v in everywhere):
        return "every rank opens the TCPStore as master, and the second finds its port taken; expected is_master=(rank == 0)"
    if all(v is False for v in everywhere) and (master is None or isinstance(master, ast.Constant)):
        return "no rank opens the TCPStore as master, and all wait; expected is_master=(rank == 0)"
    return ""
