"""SCRIPT059 to SCRIPT061: checkpoints that several ranks read and write."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import CausalStage, Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import before, code, dist_of, point, replace, under, with_keyword
from ddpdoctor.rules.script.rank_branches import RANK_WORDS, in_rank_branch
from ddpdoctor.rules.script.script001_to_003_device_selection import selects
from ddpdoctor.rules.script.script_questions import (
    argument,
    has_more,
    in_try,
    is_alone,
    is_distributed,
    is_test,
    last_value,
    names_in,
    value,
)
from ddpdoctor.scripts.interpreter.abstract_values import TorchDevice, Unknown
from ddpdoctor.scripts.simulation.joint_paths import is_default_group_collective, program_simulations
from ddpdoctor.scripts.simulation.trace import Event, Simulation
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

PER_RANK = {"rank", "local_rank", "global_rank", "RANK", "getpid", "process_index", "get_rank", "hostname", "uuid4"}
PER_RANK |= {"mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile", "gethostname"}
_GPU_ZERO = ("cuda:0", TorchDevice("cuda", 0))
_CURRENT = ("cuda", TorchDevice("cuda"))
"""GPU 0 as well, unless each rank selected another."""


def _here(module: Module, event: Event) -> bool:
    return event.call in module.index.parents


def by_all(module: Module, name: str) -> Iterator[tuple[Simulation, list[Event]]]:
    """Calls that every rank of the program makes in every way in which any does, as one event a rank."""
    found: dict[ast.Call, tuple[Simulation, list[Event]]] = {}
    parted: set[ast.Call] = set()
    for run in program_simulations(module) if not is_alone(module) else ():
        if not any(e.name in ("dist.init_process_group", "DDP", "FSDP") for e in run.traces[0].events):
            continue
        for event in (e for t in run.traces for e in t.events if e.name == name and _here(module, e)):
            firsts = (next((e for e in t.events if e.call is event.call), None) for t in run.traces)
            same = [e for e in firsts if e is not None]
            if run.divergent(event.tests) or len(same) < len(run.traces) or _asks(event):
                parted.add(event.call)
            found.setdefault(event.call, (run, same))
    yield from (each for call, each in found.items() if call not in parted)


def _asks(event: Event) -> bool:
    """Whether a condition around it asks for a rank, whatever its truth."""
    tests = [t.node.test for t in event.tests if isinstance(t.node, (ast.If, ast.While))]
    return any(names_in(test) & RANK_WORDS for test in tests)


def one_path(module: Module, events: list[Event], position: int, *names: str) -> bool:
    """Whether all ranks name one path, as far as can be told."""
    paths = [e.argument(position, *names) for e in events]
    node = paths[0]
    if node is None or names_a_rank(module, node):
        return False
    found = [e.read(p) for e, p in zip(events, paths, strict=True)]
    if any(f is Unknown.VARIES or f is Unknown.DATA for f in found) or any(f != found[0] for f in found[1:]):
        return False
    return isinstance(found[0], str) or _is_path_text(module, node)


def names_a_rank(module: Module, node: ast.expr, depth: int = 0) -> bool:
    """Whether a rank's number, or another word of its own, goes into a path, also through names that hold a part of it."""
    if names_in(node) & PER_RANK:
        return True
    parts = (last_value(module, n) for n in ast.walk(node) if isinstance(n, ast.Name)) if depth < 3 else ()
    return any(p is not None and p is not node and names_a_rank(module, p, depth + 1) for p in parts)


def _is_path_text(module: Module, node: ast.expr) -> bool:
    """A path that is put together from text and configuration in this very call."""
    return any(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in ast.walk(node)) or isinstance(
        node, (ast.Attribute, ast.Name)
    )


@cause("SCRIPT059", "checkpoint-loaded-on-gpu-zero", Severity.WARNING)
def checkpoint_loaded_on_gpu_zero(script: Script) -> Iterator[Finding]:
    """A checkpoint is loaded by every rank onto GPU 0.

    ## Why it matters
    Tensors return to the device that they were saved from. On resume GPU 0 holds one copy for each rank and runs out
    of memory.

    ## Fix
    `torch.load(path, map_location="cpu")`, then load_state_dict.
    """
    for module in modules(script):
        if (
            not is_distributed(module)
            or not ("cuda" in module.text or "nccl" in module.text)
            or module.frameworks
            or is_test(module)
        ):
            continue
        for call in module.calls("torch.load"):
            where = argument(call, 1, "map_location")
            if has_more(call) or in_rank_branch(module, call) or not _is_checkpoint(module, call):
                continue
            if where is None or value(module, where) in (_GPU_ZERO if selects(module) else _GPU_ZERO + _CURRENT):
                seen = "without map_location" if where is None else f"onto {code(module, where)}"
                yield point(
                    module,
                    call,
                    f"every rank loads this checkpoint {seen}: all copies come to lie on GPU 0; expected "
                    'map_location="cpu"',
                    'map_location="cpu"',
                    edits=(
                        with_keyword(module, call, 'map_location="cpu"')
                        if where is None
                        else replace(module, where, '"cpu"'),
                    ),
                )


def _is_checkpoint(module: Module, call: ast.Call) -> bool:
    """Whether what is loaded ends in load_state_dict."""
    if any(
        isinstance(p, ast.Call) and getattr(p.func, "attr", "") == "load_state_dict"
        for p, _ in module.index.enclosing(call)
    ):
        return True
    statement = module.index.statement(call)
    names = {t.id for t in statement.targets if isinstance(t, ast.Name)} if isinstance(statement, ast.Assign) else set()
    function = module.index.function_of(call)
    loads = [c for c in module.method_calls.get("load_state_dict", ()) if module.index.function_of(c) is function]
    return any(names & names_in(a) for c in loads for a in c.args)


@cause(
    "SCRIPT060",
    "checkpoint-written-by-all-ranks",
    Severity.ERROR,
    candidates=("SCRIPT060",),
    signatures=(r"PytorchStreamReader failed",),
)
def checkpoint_written_by_all_ranks(script: Script) -> Iterator[Finding]:
    """All ranks write one checkpoint file.

    ## Why it matters
    The ranks write over each other. The file is torn now and then, which shows only when it is read:
    `PytorchStreamReader failed reading zip archive`.

    ## Fix
    Save on rank 0 only, followed by a barrier. Sharded formats (torch.distributed.checkpoint) are written by all
    ranks.
    """
    for module in modules(script):
        for _, events in by_all(module, "torch.save"):
            call = events[0].call
            if one_path(module, events, 1, "f") and not in_rank_branch(module, call):
                yield point(
                    module,
                    call,
                    f"every rank writes {code(module, argument(call, 1, 'f') or call, 40)}: the file may be torn; "
                    "expected it on rank 0 "
                    "only",
                    "if rank == 0:",
                    edits=_on_one(module, call),
                )


def _on_one(module: Module, call: ast.Call) -> tuple[Edit, ...]:
    statement = module.index.statement(call)
    is_whole = isinstance(statement, ast.Expr) and statement.value is call
    return under(module, statement, f"if {dist_of(module)}.get_rank() == 0:") if is_whole else ()


@cause("SCRIPT061", "checkpoint-read-before-written", Severity.ERROR, stage=CausalStage.DEATH)
def checkpoint_read_before_written(script: Script) -> Iterator[Finding]:
    """Ranks read a file that rank 0 may not have finished.

    ## Why it matters
    `FileNotFoundError`, or a file that is too short, on ranks other than 0, now and then.

    ## Fix
    `dist.barrier()` between saving and loading.
    """
    for module in modules(script):
        told: set[ast.Call] = set()
        for run in program_simulations(module):
            for save, load in _unprotected(run):
                if load.call not in told and _here(module, load) and not in_try(module, load.call):
                    told.add(load.call)
                    yield point(
                        module,
                        load.call,
                        f"all ranks read what rank 0 writes in line {save.call.lineno}, with nothing that makes them "
                        "wait for it; "
                        "expected dist.barrier() between",
                        "dist.barrier() before",
                        edits=(before(module, module.index.statement(load.call), f"{dist_of(module)}.barrier()"),),
                    )


def _unprotected(run: Simulation) -> Iterator[tuple[Event, Event]]:
    """A save of some ranks and a later load of the same path with no collective between."""
    if len(run.traces) < 2:
        return
    events = run.traces[0].events
    other = {e.call for e in run.traces[1].events}
    for at, save in enumerate(events):
        if not (save.name == "torch.save" or _writes(save)) or not run.divergent(save.tests):
            continue
        for load in events[at + 1 :]:
            if is_default_group_collective(load) and load.name not in ("forward", "backward"):
                break
            reads = load.name == ("torch.load" if save.name == "torch.save" else "open") and not _writes(load)
            if reads and load.call in other and _same_path(save, load):
                yield save, load


def _writes(event: Event) -> bool:
    """`open(path, "w")`."""
    mode = event.read(event.argument(1, "mode"))
    return event.name == "open" and isinstance(mode, str) and mode[:1] in ("w", "x")


def _same_path(save: Event, load: Event) -> bool:
    one = save.argument(0 if save.name == "open" else 1, "f", "file")
    two = load.argument(0, "f", "file")
    if one is None or two is None:
        return False
    texts = save.read(one), load.read(two)
    return ast.dump(one) == ast.dump(two) or (isinstance(texts[0], str) and texts[0] == texts[1])


DAMAGED = (
    "A checkpoint is damaged: cut off when it was downloaded, copied or saved (compare its size with the original's), or "
    "written by several ranks at once"
)
WHICH_DAMAGE = "Undetermined: its size, and whether all ranks save it, decides"


@checkpoint_read_before_written.look
def not_written_yet(log: Log) -> Iterator[Finding]:
    """Ranks other than 0 miss a checkpoint on the node where rank 0 runs."""
    from ddpdoctor.rules.log.missing_files import missing_file_finding

    yield from missing_file_finding(log, of_nodes=False)


@checkpoint_written_by_all_ranks.look
def damaged_checkpoint(log: Log) -> Iterator[Finding]:
    """A file of torch.save that is not whole: that several ranks wrote it is only one of the reasons."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, (r"PytorchStreamReader failed",))
    if lines:
        yield finding_of(log, lines, DAMAGED, WHICH_DAMAGE, blames_speaker=True)
