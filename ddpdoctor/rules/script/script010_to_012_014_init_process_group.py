"""SCRIPT010, SCRIPT011, SCRIPT012, and SCRIPT014: the arguments of init_process_group."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, imported, point, replace, safe, with_keyword, without_argument
from ddpdoctor.rules.script.script_questions import (
    Start,
    argument,
    each_rank,
    has_more,
    is_literal,
    last_value,
    start_of,
    value,
)
from ddpdoctor.rules.script.variables import reads_ranks
from ddpdoctor.scripts.interpreter.frames import CallResult
from ddpdoctor.scripts.syntax.module import Module, modules

INIT = "dist.init_process_group"
KNOWN = ("env", "tcp", "file", "xla")
_RANKS = re.compile(r"(?i)^(rank|global_rank|local_rank|world_size|size|n_?gpus|nprocs|gpu)$")
_SCHEME = re.compile(r"^([a-zA-Z][\w+.-]*)://")


@cause("SCRIPT010", "init-method-hard-coded", Severity.ERROR)
def init_method_hard_coded(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """A hard-coded tcp:// address is used under a launcher.

    ## Why it matters
    Under torchrun the launcher hosts the store, so that no process listens at this address: `The client socket has
    timed out after …`. The same line works under mp.spawn, where rank 0 hosts the store itself.

    ## Fix
    Leave init_method out: env:// uses the launcher's address.

    ## Example
        # before
        dist.init_process_group("nccl", init_method="tcp://10.0.0.1:29501", rank=rank, world_size=size)
        # The client socket has timed out after 600000ms while trying to connect to (10.0.0.1, 29501)

        # after
        dist.init_process_group("nccl")
    """
    for module in modules(script):
        start = start_of(module, launch)
        certain = start is not None and start.is_torchrun
        if not certain and (start is not None or not reads_ranks(module)):
            continue
        if not certain and module.spawns:
            continue
        for call in module.calls(INIT):
            method = argument(call, 1, "init_method")
            if method is None or _is_fallback(module, call):
                continue
            literal = is_literal(module, method)
            address = value(module, method) if literal else _of_option(module, method, start)
            if isinstance(address, str) and address.startswith("tcp://"):
                yield point(
                    module,
                    method,
                    f"{address} is hard-coded, but torchrun hosts the store at its own address",
                    "no init_method",
                    label="no process listens at this address: timeout",
                    edits=without_argument(module, call, method),
                )


def _is_fallback(module: Module, call: ast.Call) -> bool:
    """Whether a call is made only if the variables of a launcher are not there: in `except KeyError:`."""
    return any(isinstance(parent, ast.ExceptHandler) for parent, _ in module.index.enclosing(call))


def _of_option(module: Module, method: ast.expr, start: Start | None) -> object:
    """The value of an option under a launch line: from the line, or the default."""
    option = module.options.get(method.attr) if isinstance(method, ast.Attribute) else None
    if start is None or option is None or not isinstance(method, ast.Attribute):
        return None
    if any(attr == method.attr for _, attr in module.index.attributes):
        return None  # the script overwrites it
    flags = [a.value for a in option.args if isinstance(a, ast.Constant)]
    arguments = [word.text for word in start.line.argv]
    given = [at for at, word in enumerate(arguments) if word.partition("=")[0] in flags]
    if not given:
        return value(module, argument(option, None, "default"))
    _, equals, text = arguments[given[-1]].partition("=")
    return text if equals else next(iter(arguments[given[-1] + 1 :]), None)


@cause(
    "SCRIPT011",
    "init-method-without-rank",
    Severity.ERROR,
    signatures=(r"(rank|world_size|world size) parameter missing",),
)
def init_method_without_rank(script: Script) -> Iterator[Finding]:
    """A tcp:// init method is used without rank and world_size.

    ## Why it matters
    It fails with `Error initializing torch.distributed using tcp:// rendezvous: rank parameter missing` even if RANK
    is set. Neither tcp:// nor file:// reads the environment.

    ## Fix
    Pass `rank=` and `world_size=`, or use env://.

    ## Example
        # before
        dist.init_process_group("gloo", init_method="tcp://10.0.0.1:29501")
        # ValueError: Error initializing torch.distributed using tcp:// rendezvous: rank parameter missing

        # after
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", init_method="tcp://10.0.0.1:29501", rank=rank, world_size=size)
    """
    for module in modules(script):
        for call in module.calls(INIT):
            method = argument(call, 1, "init_method")
            address = _beginning(module, method)
            if value(module, argument(call, 0, "backend")) == "mpi":
                continue  # MPI provides the ranks, and the init method is not used
            if has_more(call) or not address.startswith(("tcp://", "file://")) or "?" in address:
                continue
            given = {name for name in ("rank", "world_size") if argument(call, None, name) is not None}
            missing = [name for name in ("rank", "world_size") if name not in given]
            if missing:
                scheme = address.partition(":")[0]
                yield point(
                    module,
                    call,
                    f"{scheme}:// without {' and '.join(missing)}: it does not read the environment",
                    "rank= and world_size=, or env://",
                    label=f"{missing[0].replace('_', ' ')} parameter missing",
                    edits=_ranks_passed(module, call, missing, method),
                )


def _beginning(module: Module, method: ast.expr | None) -> str:
    """The known part of an address: all of it, or the literal text in the expression that builds it."""
    whole = value(module, method)
    if isinstance(whole, str) or method is None:
        return whole if isinstance(whole, str) else ""
    made = last_value(module, method)
    is_text = isinstance(made, (ast.JoinedStr, ast.BinOp)) or (
        isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr == "format"
    )
    if made is None or not is_text:
        return ""
    texts = [n for n in ast.walk(made) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return "".join(str(n.value) for n in sorted(texts, key=lambda n: (n.lineno, n.col_offset)))


def _begins_with_text(made: ast.expr | None) -> bool:
    """Whether an expression that builds a string begins with a constant."""
    while isinstance(made, ast.BinOp):
        made = made.left
    first = made.values[0] if isinstance(made, ast.JoinedStr) and made.values else made
    return isinstance(first, ast.Constant)


def _ranks_passed(module: Module, call: ast.Call, missing: list[str], method: ast.expr | None) -> tuple[Edit, ...]:
    """Pass the missing numbers by the names that the function has for them; drop the address where a launcher sets it."""
    function = module.index.function_of(call)
    known = module.index.scopes[function].names if function is not None else {}
    if all(name in known for name in missing):
        return (with_keyword(module, call, ", ".join(f"{name}={name}" for name in missing)),)
    if method is not None and not module.spawns and _beginning(module, method).startswith("tcp"):
        others = [k.value for k in call.keywords if k.arg in ("rank", "world_size")]
        return without_argument(module, call, method, *others)
    given = ", ".join(f'{name}=int(os.environ["{name.upper()}"])' for name in missing)
    return (with_keyword(module, call, given), *imported(module, "os", "import os"))


@cause("SCRIPT012", "init-method-unknown", Severity.ERROR, signatures=(r"No rendezvous handler for",))
def init_method_unknown(script: Script) -> Iterator[Finding]:
    """The init method uses a scheme that torch does not support.

    ## Why it matters
    It fails with `RuntimeError: No rendezvous handler for slurm://`. torch supports only env://, tcp:// and file://.

    ## Fix
    Use env://, and set RANK, WORLD_SIZE, MASTER_ADDR, and MASTER_PORT from the scheduler's variables.

    ## Example
        # before
        dist.init_process_group("nccl", init_method="slurm://")
        # RuntimeError: No rendezvous handler for slurm://

        # after
        os.environ["RANK"] = os.environ["SLURM_PROCID"]
        os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]
        dist.init_process_group("nccl", init_method="env://")
    """
    for module in modules(script):
        if "register_rendezvous_handler" in module.text or "torch_xla" in module.text:
            continue
        for call in module.calls(INIT):
            method = argument(call, 1, "init_method")
            whole = value(module, method)
            begins = method is not None and _begins_with_text(last_value(module, method))
            address = whole if isinstance(whole, str) else _beginning(module, method) if begins else ""
            if method is None or not (isinstance(whole, str) or _SCHEME.match(address)):
                continue
            scheme = _SCHEME.match(address)
            if scheme is None or scheme[1] not in KNOWN:
                shown = f"{scheme[1]}://" if scheme is not None else repr(address)
                yield point(
                    module,
                    method,
                    f"init_method {shown} has no scheme that torch knows",
                    "env://",
                    label=f"No rendezvous handler for {shown}" if scheme is not None else "No rendezvous handler for …",
                    edits=(replace(module, method, '"env://"'),),
                )


@cause("SCRIPT014", "init-arguments-positional", Severity.ERROR)
def init_arguments_positional(script: Script) -> Iterator[Finding]:
    """rank and world_size are passed to init_process_group by position.

    ## Why it matters
    The second positional argument is init_method and the third is timeout. The error is about a timeout that you
    never set: `TypeError: Expected timeout argument to be of type datetime.timedelta`.

    ## Fix
    Pass them by name: `init_process_group(backend, rank=rank, world_size=world_size)`.

    ## Example
        # before
        dist.init_process_group("gloo", rank, world_size)
        # TypeError: Expected timeout argument to be of type datetime.timedelta

        # after
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
    """
    for module in modules(script):
        for call in module.calls(INIT):
            numbers = [] if has_more(call) else call.args[1:]
            first = next((at for at, a in enumerate(numbers[:3], start=1) if _is_number(module, a, at)), None)
            if first is None:
                continue
            wrong = call.args[first:]
            named = [_name_of(a) for a in wrong]
            if len(wrong) == 2 and named[0] == named[1]:
                named = ["rank", "world_size"]
            where = {1: "init_method", 2: "timeout", 3: "world_size"}[first]
            edits = tuple(replace(module, a, f"{n}={code(module, a, 200)}") for n, a in zip(named, wrong, strict=True))
            yield point(
                module,
                call,
                f"{code(module, wrong[0])} is passed by position and becomes {where}",
                f"{named[0]}={code(module, wrong[0])}",
                label=f"TypeError: pass {named[0]}= by name",
                edits=safe(edits) if len(set(named)) == len(named) else (),
            )


def _is_number(module: Module, node: ast.expr, at: int) -> bool:
    if at == 3:
        return False
    content = value(module, node)
    if type(content) is int or all(type(v) is int for v in each_rank(module, node)):
        return at == 1 or not isinstance(node, ast.Constant) or node.value not in (None, -1)
    text = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return not isinstance(content, (str, CallResult)) and bool(_RANKS.match(text))


def _name_of(node: ast.expr) -> str:
    return "world_size" if re.search(r"(?i)size|gpus|nprocs|count", ast.unparse(node)) else "rank"
