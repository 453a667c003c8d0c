"""SCRIPT059 to SCRIPT061: checkpoints that several ranks read or write."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import CausalStage, Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import before, code, dist_of, point, replace, safe, under, with_keyword
from ddpdoctor.rules.script.rank_branches import RANK_WORDS, in_rank_branch, runs_one_rank_first
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
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.interpreter.abstract_values import TorchDevice, Unknown
from ddpdoctor.scripts.simulation.joint_paths import is_default_group_collective, program_simulations
from ddpdoctor.scripts.simulation.trace import Event, Simulation
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log
    from ddpdoctor.facts.rehearsal import Rehearsal

PER_RANK = {"rank", "local_rank", "global_rank", "RANK", "getpid", "process_index", "get_rank", "hostname", "uuid4"}
PER_RANK |= {"mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile", "gethostname"}
_GPU_ZERO = ("cuda:0", TorchDevice("cuda", 0))
_CURRENT = ("cuda", TorchDevice("cuda"))
"""GPU 0 as well, unless each rank selected another GPU."""


def _here(module: Module, event: Event) -> bool:
    return event.call in module.index.parents


def by_all(module: Module, name: str) -> Iterator[tuple[Simulation, list[Event]]]:
    """Calls that every rank of the program makes on every path on which any rank does, as one event per rank."""
    by_call: dict[ast.Call, tuple[Simulation, list[Event]]] = {}
    on_some_ranks: set[ast.Call] = set()
    for run in program_simulations(module) if not is_alone(module) else ():
        if not any(e.name in ("dist.init_process_group", "DDP", "FSDP") for e in run.traces[0].events):
            continue
        for event in (e for t in run.traces for e in t.events if e.name == name and _here(module, e)):
            firsts = (next((e for e in t.events if e.call is event.call), None) for t in run.traces)
            same = [e for e in firsts if e is not None]
            if run.divergent(event.tests) or len(same) < len(run.traces) or _asks(event):
                on_some_ranks.add(event.call)
            by_call.setdefault(event.call, (run, same))
    yield from (item for call, item in by_call.items() if call not in on_some_ranks)


def _asks(event: Event) -> bool:
    """Whether a condition around an event uses a rank, whatever its value."""
    tests = [t.node.test for t in event.tests if isinstance(t.node, (ast.If, ast.While))]
    return any(names_in(test) & RANK_WORDS for test in tests)


def one_path(module: Module, events: list[Event], position: int, *names: str) -> bool:
    """Whether all ranks use the same path, as far as the source shows."""
    paths = [e.argument(position, *names) for e in events]
    node = paths[0]
    if node is None or names_a_rank(module, node):
        return False
    values = [e.read(p) for e, p in zip(events, paths, strict=True)]
    if any(f is Unknown.VARIES or f is Unknown.DATA for f in values) or any(f != values[0] for f in values[1:]):
        return False
    return isinstance(values[0], str) or _is_path_text(module, node)


def names_a_rank(module: Module, node: ast.expr, depth: int = 0) -> bool:
    """Whether a path contains the rank or another value of its own, also through names that hold a part of it."""
    if names_in(node) & PER_RANK:
        return True
    parts = (last_value(module, n) for n in ast.walk(node) if isinstance(n, ast.Name)) if depth < 3 else ()
    return any(p is not None and p is not node and names_a_rank(module, p, depth + 1) for p in parts)


def _is_path_text(module: Module, node: ast.expr) -> bool:
    """Whether a path is built from literals and configuration in this call."""
    return any(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in ast.walk(node)) or isinstance(
        node, (ast.Attribute, ast.Name)
    )


@cause("SCRIPT059", "checkpoint-loaded-on-gpu-zero", Severity.WARNING)
def checkpoint_loaded_on_gpu_zero(script: Script) -> Iterator[Finding]:
    """Every rank loads a checkpoint onto GPU 0.

    ## Why it matters
    Tensors are loaded onto the device that they were saved from. On resume GPU 0 holds one copy per rank and runs out
    of memory.

    ## Fix
    Pass `map_location="cpu"` to torch.load, then call load_state_dict.

    ## Example
        # before
        model.load_state_dict(torch.load("model.pt"))
        # CUDA out of memory on GPU 0

        # after
        model.load_state_dict(torch.load("model.pt", map_location="cpu"))
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
                yield point(
                    module,
                    call,
                    "every rank loads this checkpoint onto GPU 0",
                    'map_location="cpu"',
                    label="no map_location" if where is None else "the same GPU on every rank",
                    edits=safe(
                        (
                            with_keyword(module, call, 'map_location="cpu"')
                            if where is None
                            else replace(module, where, '"cpu"'),
                        )
                    ),
                )


def _is_checkpoint(module: Module, call: ast.Call) -> bool:
    """Whether the loaded object is passed to load_state_dict."""
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
@with_histories(MistakeKind.WRITTEN_PER_NODE)
def checkpoint_written_by_all_ranks(script: Script) -> Iterator[Finding]:
    """All ranks write one checkpoint file.

    ## Why it matters
    The ranks overwrite each other, and the file is sometimes corrupted. This shows only when it is read:
    `PytorchStreamReader failed reading zip archive`.

    ## Fix
    Save on rank 0 only, followed by a barrier.

    Sharded formats (torch.distributed.checkpoint) are written by all ranks.

    ## Example
        # before
        torch.save(ddp.module.state_dict(), "model.pt")
        # on load: PytorchStreamReader failed reading zip archive

        # after
        if dist.get_rank() == 0:
            torch.save(ddp.module.state_dict(), "model.pt")
        dist.barrier()
    """
    for module in modules(script):
        for _, events in by_all(module, "torch.save"):
            call = events[0].call
            if (
                one_path(module, events, 1, "f")
                and not in_rank_branch(module, call)
                and not _is_made_once(module, call)
            ):
                yield point(
                    module,
                    call,
                    f"every rank writes {code(module, argument(call, 1, 'f') or call, 40)}",
                    "if rank == 0:",
                    label="the file may get corrupted",
                    edits=_on_one(module, call),
                )


def _is_made_once(module: Module, call: ast.Call) -> bool:
    """Whether one rank saves before the others look whether the file exists: `if not exists(path): save(path)`, or in `else`."""
    tests = (p.test for p, child in module.index.enclosing(call) if isinstance(p, ast.If) and child is not p.test)
    asks = any(names_in(test) & {"exists", "isfile", "is_file", "isdir"} for test in tests)
    return asks and runs_one_rank_first(module, call)


def _on_one(module: Module, call: ast.Call) -> tuple[Edit, ...]:
    statement = module.index.statement(call)
    is_whole = isinstance(statement, ast.Expr) and statement.value is call
    return under(module, statement, f"if {dist_of(module)}.get_rank() == 0:") if is_whole else ()


@cause("SCRIPT061", "checkpoint-read-before-written", Severity.ERROR, stage=CausalStage.DEATH)
@with_histories(MistakeKind.READ_BEFORE_WRITTEN)
def checkpoint_read_before_written(script: Script) -> Iterator[Finding]:
    """Ranks read a file that rank 0 may not have finished.

    ## Why it matters
    Ranks other than 0 sometimes fail with `FileNotFoundError`, or read a file that is too short.

    ## Fix
    Call `dist.barrier()` between saving and loading.

    ## Example
        # before
        if rank == 0:
            torch.save(state, "model.pt")
        state = torch.load("model.pt", map_location="cpu")
        # rank 1: FileNotFoundError: [Errno 2] No such file or directory: 'model.pt'

        # after
        if rank == 0:
            torch.save(state, "model.pt")
        dist.barrier()
        state = torch.load("model.pt", map_location="cpu")
    """
    for module in modules(script):
        reported: set[ast.Call] = set()
        for run in program_simulations(module):
            for save, load in _unprotected(run):
                if load.call not in reported and _here(module, load) and not in_try(module, load.call):
                    reported.add(load.call)
                    yield point(
                        module,
                        load.call,
                        f"all ranks read the file that rank 0 writes in line {save.call.lineno}, without a barrier",
                        "dist.barrier() before",
                        label="the file may not be complete",
                        edits=(before(module, module.index.statement(load.call), f"{dist_of(module)}.barrier()"),),
                    )


def _unprotected(run: Simulation) -> Iterator[tuple[Event, Event]]:
    """A save on some ranks and a later load of the same path, with no collective in between."""
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
    """Whether an event is `open(path, "w")`."""
    mode = event.read(event.argument(1, "mode"))
    return event.name == "open" and isinstance(mode, str) and mode[:1] in ("w", "x")


def _same_path(save: Event, load: Event) -> bool:
    one = save.argument(0 if save.name == "open" else 1, "f", "file")
    two = load.argument(0, "f", "file")
    if one is None or two is None:
        return False
    texts = save.read(one), load.read(two)
    return ast.dump(one) == ast.dump(two) or (isinstance(texts[0], str) and texts[0] == texts[1])


DAMAGED = "A checkpoint is damaged"
WHICH_DAMAGE = (
    "Either it is incomplete (compare its size with `ls -l` of the original) or several ranks wrote it (search the script for a "
    "torch.save without `if rank == 0`)"
)


@checkpoint_read_before_written.look
def not_written_yet(log: Log) -> Iterator[Finding]:
    """Ranks other than 0 do not find a checkpoint on the node where rank 0 runs."""
    from ddpdoctor.rules.log.missing_files import missing_file_finding

    yield from missing_file_finding(log, of_nodes=False)


@checkpoint_written_by_all_ranks.look
def damaged_checkpoint(log: Log) -> Iterator[Finding]:
    """A damaged file of torch.save: several ranks writing it is only one of the possible reasons."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, (r"PytorchStreamReader failed",))
    if lines:
        yield finding_of(log, lines, DAMAGED, WHICH_DAMAGE, blames_speaker=True)


@checkpoint_written_by_all_ranks.look
def saved_by_all(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Several ranks save to one path."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.CHECKPOINT_RACE,
        lambda o, who: f"{who} save to {o.values['path'].rpartition('/')[2]} at the same time",
        label="all ranks write this file",
        expected="rank 0 only",
    )


@checkpoint_read_before_written.look
def read_too_early(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A file is read although nothing orders it after the write."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.READ_BEFORE_WRITTEN,
        lambda o, who: (
            f"{who} read {o.values['path'].rpartition('/')[2]} before rank {o.values['writer']} is known to have written it"
        ),
        label="the file may not be complete",
        expected="dist.barrier() between write and read",
    )


@checkpoint_loaded_on_gpu_zero.look
def loaded_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A file of one GPU that other ranks load without map_location."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.LOADED_ON_OTHER_GPU,
        lambda o, who: f"{who} load tensors of {o.values['devices']} without map_location",
        label="every rank loads to the GPU of the file",
        expected='map_location="cpu"',
    )


@checkpoint_written_by_all_ranks.look
def saved_per_node(rehearsal: Rehearsal) -> Iterator[Finding]:
    """One rank of each node saves to one path."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.SAVED_PER_NODE,
        lambda o, who: (
            f"{who} of different nodes save to {o.values['path'].rpartition('/')[2]} at the same time: "
            "a race on a shared file system"
        ),
        label="one rank of each node writes this file",
        expected="rank 0 only",
        severity=Severity.WARNING,
    )
