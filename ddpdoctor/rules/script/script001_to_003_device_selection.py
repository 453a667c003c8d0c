"""SCRIPT001 to SCRIPT003: which GPU a rank uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import after, before, code, delete, imported, point, replace
from ddpdoctor.rules.script.rank_branches import in_rank_branch
from ddpdoctor.rules.script.script_questions import (
    LOCAL_RANKS,
    RANKS,
    Start,
    argument,
    backends,
    each_rank,
    has_more,
    is_alone,
    is_test,
    start_of,
    value,
)
from ddpdoctor.rules.script.variables import defaults, sets
from ddpdoctor.scripts.interpreter.abstract_values import TorchDevice
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log, LogLine
    from ddpdoctor.facts.rehearsal import Rehearsal

LOCAL = 'int(os.environ["LOCAL_RANK"])'
CREATED = frozenset(
    f"torch.{name}"
    for name in (
        *("arange", "empty", "empty_like", "eye", "full", "ones", "ones_like", "rand", "randint", "randn"),
        *("tensor", "zeros", "zeros_like"),
    )
)
"""Functions of torch that create a tensor, on the CPU by default."""
SELECT = ("cuda.set_device", "torch.accelerator.set_device_index", "torch.accelerator.set_device_idx")


_LOOPBACK = re.compile(r"(^|//)(localhost|127\.\d+\.\d+\.\d+|::1|\[::1\])(:|$)")
_PREPARES = re.compile(r"(?i)device|gpu|cuda|setup|set_up|init|launch|prepare")


def choices(module: Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Expressions that select a device: the whole expression, and the part that is the index or the name."""
    for call in module.calls(*SELECT):
        if call.args:
            yield call, call.args[0]
    for call in module.calls("torch.device"):
        index = argument(call, 1, "index")
        if index is not None:
            yield call, index
        elif call.args and not isinstance(call.args[0], ast.Constant):
            yield call, call.args[0]
    for call in module.calls("cuda.device"):
        if call.args:
            yield call, call.args[0]
    for method in ("cuda", "to"):
        for call in module.method_calls.get(method, ()):
            given = argument(call, 0, "device")
            if given is not None and not (method == "to" and isinstance(given, ast.Constant)):
                yield call, given
    for call in created(module):
        given = argument(call, None, "device")
        if given is not None and not isinstance(given, ast.Constant):
            yield call, given
    for call in module.calls("DDP"):
        ids = argument(call, 1, "device_ids")
        if isinstance(ids, (ast.List, ast.Tuple)) and len(ids.elts) == 1:
            yield ids, ids.elts[0]


def created(module: Module) -> Iterator[ast.Call]:
    """Calls that create tensors, such as torch.zeros."""
    for name in sorted(CREATED):
        yield from module.calls(name)


def _index(device: object) -> object:
    if isinstance(device, TorchDevice):
        return None  # created by torch.device, which is checked itself
    if isinstance(device, str) and device.startswith("cuda:"):
        return int(device[5:]) if device[5:].isdigit() else None
    return device


def _one_node_only(module: Module) -> bool:
    """Whether the script is started on one node only: mp.spawn with the index as the rank, a store on this machine, or torchrun
    `--standalone` in its own text."""
    inits = module.calls("dist.init_process_group")
    ranks = [argument(c, None, "rank") for c in inits]
    addresses = [value(module, method) for c in inits if (method := argument(c, 1, "init_method")) is not None]
    addresses += [setting.text for setting in (*sets(module), *defaults(module)) if setting.name == "MASTER_ADDR"]
    is_local = bool(addresses) and all(isinstance(a, str) and _LOOPBACK.search(a) for a in addresses)
    if is_local or "--standalone" in module.text:
        return True
    return bool(module.spawns) and any(r is not None and each_rank(module, r) == LOCAL_RANKS for r in ranks)


@cause("SCRIPT001", "set-device-from-global-rank", Severity.ERROR)
def set_device_from_global_rank(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """The GPU is selected by the global rank.

    ## Why it matters
    The first node works, because rank and local rank are equal there. On every other node the global rank exceeds the
    number of GPUs: `CUDA error: invalid device ordinal`.

    ## Fix
    Select the GPU by the local rank: `int(os.environ["LOCAL_RANK"])`.

    ## Example
        # before
        torch.cuda.set_device(dist.get_rank())
        # node 1: RuntimeError: CUDA error: invalid device ordinal

        # after
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))

    ## Source
    torchrun gives each worker RANK and LOCAL_RANK; torch.cuda.set_device counts the devices of one machine.
    """
    for module in modules(script):
        start = start_of(module, launch)
        if (start is not None and start.nodes == 1) or _one_node_only(module) or is_test(module):
            continue
        for whole, part in choices(module):
            if [_index(v) for v in each_rank(module, part)] == RANKS and not _is_count(whole, part):
                yield point(
                    module,
                    whole,
                    f"{code(module, whole)} uses the global rank: nodes after the first have no such GPU",
                    LOCAL,
                    label="use LOCAL_RANK",
                    fix=f"Use the local rank: `{LOCAL}`.",
                    edits=_local(module, part),
                )


def _is_count(whole: ast.expr, part: ast.expr) -> bool:
    """`tensor.to(x)` with a number may be anything; a rank there is a device."""
    return isinstance(whole, ast.Call) and len(whole.args) > 2


def _local(module: Module, part: ast.expr) -> tuple[Edit, ...]:
    text = "f\"cuda:{os.environ['LOCAL_RANK']}\"" if isinstance(part, ast.JoinedStr) else LOCAL
    return (replace(module, part, text), *imported(module, "os", "import os"))


@cause("SCRIPT002", "set-device-missing", Severity.ERROR)
def set_device_missing(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """No rank selects its own GPU.

    ## Why it matters
    Every rank of a node uses cuda:0. NCCL fails with `Duplicate GPU detected : rank 1 and rank 0 both on CUDA device
    …`, or GPU 0 runs out of memory while the other GPUs are idle.

    ## Fix
    Call `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before the first use of CUDA.

    `init_process_group(..., device_id=torch.device("cuda", local_rank))` selects it as well.

    ## Example
        # before
        dist.init_process_group("nccl")
        model = Net().cuda()
        # Duplicate GPU detected : rank 1 and rank 0 both on CUDA device ...

        # after
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        model = Net().cuda()
    """
    for module in modules(script):
        used = backends(module)
        chosen = used is None and _is_nccl_on_gpus(module)
        if not (chosen or (used and all("nccl" in b for b in used))) or module.frameworks or not module.is_program:
            continue
        if is_alone(module):
            continue
        start = start_of(module, launch)
        if start is not None and start.per_node == 1:
            continue
        if start is not None and start.line.agent is not None and start.line.agent.given("virtual_local_rank"):
            continue
        fixed = _fixed_device(module, start) if used else None
        if fixed is not None:
            yield point(
                module,
                fixed,
                f"{code(module, fixed, 40)} is the same GPU on every rank of a node",
                f"torch.cuda.set_device({LOCAL})",
                label="every rank of a node uses this GPU",
                fix="Use the local rank in place of the number.",
            )
            continue
        first = _first_plain_cuda(module)
        if first is None or selects(module):
            continue
        call = module.calls("dist.init_process_group")[0]
        statement = module.index.statement(call)
        edit = after(module, statement, f"torch.cuda.set_device({LOCAL})")
        yield point(
            module,
            call,
            f"all ranks use cuda:0 (line {first.lineno}): no rank selects its own GPU",  # type: ignore[attr-defined]
            f"torch.cuda.set_device({LOCAL})",
            label="select the GPU of LOCAL_RANK",
            edits=() if chosen else (edit, *imported(module, "os", "import os")),
            severity=Severity.WARNING if chosen else None,
        )


def _fixed_device(module: Module, start: Start | None) -> ast.expr | None:
    """The only device that a script selects, if it has a literal index and the launch line starts several ranks per node."""
    if start is None or start.per_node is None or start.per_node < 2 or "CUDA_VISIBLE_DEVICES" in module.text:
        return None
    whole = [c for c in module.calls(*SELECT) if c.args]
    named = [c for c in module.calls("torch.device") if c.args]
    moved = [c for m in ("cuda", "to") for c in module.method_calls.get(m, ()) if argument(c, 0, "device") is not None]
    found: list[ast.expr] = []
    for call in (*whole, *named, *moved):
        given = call.args[0] if call in whole else argument(call, 0, "device") if call in moved else call
        if given is None or {_number(d) for d in each_rank(module, given)} != {0}:
            if given is not None and call in moved and _is_dtype(module, given):
                continue
            return None
        found.append(call)
    return found[0] if found and not in_rank_branch(module, found[0]) else None


def _number(device: object) -> object:
    """The index of a device; None if it has none or is not known."""
    if isinstance(device, TorchDevice):
        return device.index
    if isinstance(device, str) and device.startswith("cuda:"):
        return int(device[5:]) if device[5:].isdigit() else None
    return device if type(device) is int else None


def _is_nccl_on_gpus(module: Module) -> bool:
    """Whether the backend is `"nccl" if torch.cuda.is_available() else "gloo"`: nccl on every machine with a GPU."""
    given = [argument(c, 0, "backend") for c in module.calls("dist.init_process_group")]
    return bool(given) and all(value(module, backend) == "nccl" for backend in given)


def _first_plain_cuda(module: Module) -> ast.AST | None:
    """The first use of "cuda" without an index."""
    calls = [c for c in module.method_calls.get("cuda", ()) if argument(c, 0, "device") is None and not has_more(c)]
    for call in (*module.method_calls.get("to", ()), *module.calls("torch.device")):
        given = argument(call, 0, "device")
        if given is not None and _is_plain(module, given):
            calls.append(call)
    return min(calls, key=lambda c: (c.lineno, c.col_offset), default=None)


def selects(module: Module) -> bool:
    """Whether anything may select a device, or make only one visible."""
    if module.calls(*SELECT, "cuda.device") or "CUDA_VISIBLE_DEVICES" in module.text or "device_id=" in module.text:
        return True
    if "set_device" in module.text or 'f"cuda:' in module.text or "f'cuda:" in module.text or '"cuda:' in module.text:
        return True
    if any(argument(c, 0, "device") is not None or has_more(c) for c in module.method_calls.get("cuda", ())):
        return True
    if any(argument(c, 1, "index") is not None for c in module.calls("torch.device")) or _may_select(module):
        return True
    for call in (*module.method_calls.get("to", ()), *module.calls("torch.device")):
        given = argument(call, 0, "device")
        plain = ("cuda", "cpu", TorchDevice("cuda"), TorchDevice("cpu"))
        if has_more(call) or (given is not None and value(module, given) not in plain and not _is_dtype(module, given)):
            return True
    return any(has_more(c) for c in module.calls("dist.init_process_group"))


def _may_select(module: Module) -> bool:
    """Whether an imported function has a name that suggests that it sets up the job or its devices."""
    dotted = [module.names.dotted(c.func) or "" for c in module.index.calls if module.target(c) is None]
    imported_names = [name for name in dotted if "." in name and not name.startswith(("torch", "os.", "logging."))]
    return any(_PREPARES.search(name.rpartition(".")[2]) for name in imported_names)


def _is_dtype(module: Module, node: ast.expr) -> bool:
    return (module.names.of(node) or "").startswith("torch.")


@cause("SCRIPT003", "cuda-before-set-device", Severity.WARNING)
def cuda_before_set_device(script: Script) -> Iterator[Finding]:
    """CUDA is used before the rank selects its GPU.

    ## Why it matters
    Each rank first opens a context on GPU 0 and wastes some hundred MiB there. In exclusive compute mode the second
    rank fails with `CUDA-capable device(s) is/are busy or unavailable`.

    ## Fix
    Select the GPU before the first `.cuda()` or other call that uses CUDA.

    ## Example
        # before
        model = Net().cuda()
        # in exclusive compute mode: CUDA-capable device(s) is/are busy or unavailable
        torch.cuda.set_device(local_rank)

        # after
        torch.cuda.set_device(local_rank)
        model = Net().cuda()
    """
    for module in modules(script):
        for select in module.calls(*SELECT):
            function = module.index.function_of(select)
            early = [
                c for c in _touches(module) if module.index.function_of(c) is function and c.lineno < select.lineno
            ]
            early = [c for c in early if module.index.parents[module.index.statement(c)] is _block(module, select)]
            early = early or (_before_all(module) if function is not None else [])
            if early:
                yield point(
                    module,
                    early[0],
                    f"{code(module, early[0], 40)} opens a CUDA context on GPU 0 on every rank",
                    f"after line {select.lineno}",
                    label=f"line {select.lineno} selects the GPU too late",
                    fix=f"Select the GPU (line {select.lineno}) before this line.",
                    edits=_selected_first(module, select, early[0]),
                )
                break


def _before_all(module: Module) -> list[ast.Call]:
    """Uses of CUDA at module level, before the module calls the function that selects the device."""
    own = (c for c in module.index.calls if module.index.function_of(c) is None and module.target(c) is not None)
    first = min((c.lineno for c in own), default=len(module.lines) + 1)
    if module.calls(*SELECT) and any(module.index.function_of(c) is None for c in module.calls(*SELECT)):
        return []
    plain = (c for c in _touches(module) if module.index.parents[module.index.statement(c)] is module.tree)
    return [c for c in plain if c.lineno < first]


def _selected_first(module: Module, select: ast.Call, early: ast.Call) -> tuple[Edit, ...]:
    """Select the device by LOCAL_RANK before the first use of CUDA."""
    statement = module.index.statement(select)
    if module.spawns or not isinstance(statement, ast.Expr) or each_rank(module, select.args[0]) != LOCAL_RANKS:
        return ()
    text = f"{code(module, select.func)}({LOCAL})"
    there = before(module, module.index.statement(early), text)
    return (there, delete(module, statement), *imported(module, "os", "import os"))


def _block(module: Module, node: ast.AST) -> ast.AST:
    return module.index.parents[module.index.statement(node)]


def _is_plain(module: Module, given: ast.expr) -> bool:
    """Whether a device is CUDA without an index."""
    return value(module, given) in ("cuda", TorchDevice("cuda"))


def _touches(module: Module) -> list[ast.Call]:
    calls = [c for c in module.method_calls.get("cuda", ()) if argument(c, 0, "device") is None and not has_more(c)]
    for call in module.method_calls.get("to", ()):
        given = argument(call, 0, "device")
        if given is not None and value(module, given) in ("cuda", TorchDevice("cuda")):
            calls.append(call)
    on_device = [
        c for c in created(module) if (given := argument(c, None, "device")) is not None and _is_plain(module, given)
    ]
    calls += on_device
    calls += module.calls("cuda.synchronize", "cuda.mem_get_info", "cuda.init")
    return sorted(calls, key=lambda c: (c.lineno, c.col_offset))


@set_device_from_global_rank.look
def ranks_of_later_nodes(log: Log) -> Iterator[Finding]:
    """All ranks of a later node, and none of the first node, select a GPU that does not exist."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.log011_020_device_errors import ORDINAL
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, ORDINAL)
    nodes = {_node(line) for line in lines}
    first = {_node(line) for line in (*log.lines, *log.tails) if line.who.rank == 0}
    if not lines or None in nodes or not first or first & nodes:
        return
    own = {line.who.rank for line in log.lines if _node(line) in nodes} - {None}
    if own and own <= {line.who.rank for line in lines}:
        title = "The GPU is selected by the global rank: only ranks of later nodes fail"
        yield finding_of(log, lines, title, blames_speaker=True)


def _node(line: LogLine) -> object:
    return line.who.host if line.who.host is not None else line.who.node_rank


@set_device_from_global_rank.look
def ordinal_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A GPU that the node does not have."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.BAD_ORDINAL,
        lambda o, who: f"cuda:{o.values['index']} does not exist: each node has {o.values['count']} GPUs ({who})",
        label="no such GPU on this node",
        expected="the local rank",
    )


@set_device_missing.look
def one_device_for_all(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Ranks of one node use one GPU."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.SAME_DEVICE,
        lambda o, who: f"{who} on one node all use {o.values['device']} in {o.values['operation']}",
        label="one GPU for several ranks",
        expected="one GPU per rank: the local rank",
    )
