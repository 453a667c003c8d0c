"""State that each process has for itself: random generators, samplers, variables, devices, files on its own disk.

| state | set alike on all ranks although it must differ | set apart although it must be the same |
|---|---|---|
| random generator of a rank that has its own seed | missing: RANDOM_STATE_COPIED | |
| random generators of the workers of a loader | missing: WORKERS_SEEDED_ALIKE | |
| indices of a random sampler | missing: SAMPLER_DRAWS_ALIKE | |
| MASTER_PORT | | missing: PORT_OF_PROCESS |

An iterator takes the order of its epoch when it is created: a later set_epoch has no edge to it (EPOCH_SET_TOO_LATE).
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.histories.values import SAME, UNKNOWN, DiffersBy, Traced, TracedKind

if TYPE_CHECKING:
    from ddpdoctor.scripts.histories.executor import Executor

__all__ = [
    "RANDOM_SAMPLERS",
    "RANDOM_STATES",
    "batches_differ",
    "device_chosen",
    "drawn_for_training",
    "file_exists",
    "loaded",
    "opened",
    "random_sampler",
    "random_state_set",
    "sampler_method",
    "saved",
    "seed_workers",
    "socket_value",
    "variable_set",
    "worker_seeded",
]

_RANKS = frozenset((DiffersBy.RANK, DiffersBy.LOCAL_RANK, DiffersBy.NODE))
RANDOM_STATES = ("torch.set_rng_state", "random.setstate", "numpy.random.set_state", "cuda.set_rng_state")
"""Functions that replace the state of a random generator."""
RANDOM_SAMPLERS = tuple(
    f"torch.utils.data.{module}{name}"
    for module in ("", "sampler.")
    for name in ("RandomSampler", "WeightedRandomSampler", "SubsetRandomSampler")
)
"""Samplers that draw indices from the generator of the process."""


def file_exists(path: Traced) -> Traced:
    """Whether a file is there: on its own path, each rank has its own answer."""
    if path.certain and path.origins & _RANKS:
        return Traced(TracedKind.NUMBER, frozenset((DiffersBy.DATA,)), True)
    return UNKNOWN


def saved(ex: Executor, path: Traced, value: Traced, node: ast.AST) -> None:
    """Remember whose parameter names a file contains."""
    if path.symbol is None:
        return
    present = ex.now(value)
    names = _names_of(ex, present)
    if names:
        ex.contents[path.symbol] = (names, ex.module, node)
    else:
        ex.contents.pop(path.symbol, None)


def _names_of(ex: Executor, value: Traced) -> dict[str, bool]:
    """For each entry of a checkpoint that is a state_dict: whether its names have the prefix of the DDP wrapper."""
    if value.kind is TracedKind.PARAMETERS:
        return {"": value.has("of-wrapper")} if value.has("state_dict") else {}
    if value.kind is not TracedKind.DICT:
        return {}
    entries = {k: ex.now(v) for k, v in value.fields.items() if k.startswith("[")}
    return {
        k[1:-1]: v.has("of-wrapper")
        for k, v in entries.items()
        if v.kind is TracedKind.PARAMETERS and v.has("state_dict")
    }


def loaded(ex: Executor, path: Traced) -> Traced:
    """What torch.load returns: the same on all ranks if they read one file."""
    is_common = path.certain and not path.origins
    marks = frozenset(("common-file",)) if is_common else frozenset[str]()
    known = ex.contents.get(path.symbol) if path.symbol is not None else None
    fields: dict[str, Traced] = {}
    if known is not None:
        names, _, _ = known
        fields = {f"[{k}]": _state_of_file(has_prefix) for k, has_prefix in names.items() if k}
        if "" in names:
            return _state_of_file(names[""])
    return Traced(TracedKind.UNKNOWN, certain=False, marks=marks, fields=fields)


def _state_of_file(has_prefix: bool) -> Traced:
    marks = frozenset(("file-of-wrapper",)) if has_prefix else frozenset(("file-of-module",))
    return Traced(TracedKind.UNKNOWN, certain=False, marks=marks)


def random_state_set(ex: Executor, node: ast.AST, value: Traced) -> None:
    """A random generator continues from a saved state."""
    generators = ex.state.generators
    had_own = bool(generators.get("torch"))
    if value.has("common-file") and not value.origins and had_own and not ex.differs_here():
        ex.mistake(MistakeKind.RANDOM_STATE_COPIED, node)


def random_sampler(ex: Executor, node: ast.Call, args: list[Traced], kw: dict[str, Traced]) -> Traced:
    """A sampler that does not know the ranks."""
    generator = kw.get("generator")
    operands = (*args, *kw.values())
    own = any(v.origins or v.has("own-slice") for v in operands)
    unknown = generator is not None and not (generator.certain and generator.kind is TracedKind.GENERATOR)
    marks = frozenset[str]() if own or unknown else frozenset(("draws alike",))
    if generator is not None and not unknown and not own:
        marks |= {"own generator"}
    return ex.new(Traced(TracedKind.OBJECT, certain=False, marks=marks), node)


def drawn_for_training(ex: Executor, node: ast.AST, loader: Traced) -> None:
    """The loop over a loader communicates: its random sampler must not draw the same samples on all ranks."""
    sampler = loader.fields.get("sampler") if loader.kind is TracedKind.LOADER else None
    if sampler is None or not sampler.has("draws alike") or sampler.made is None or loader.has("own-data"):
        return
    is_apart = ex.state.generators.get("torch") and not sampler.has("own generator")
    trains = any(c.operation == "backward of DDP" for c in ex.log)
    if trains and not is_apart:
        ex.mistake_in(MistakeKind.SAMPLER_DRAWS_ALIKE, ex.module_of(sampler), sampler.made)


def batches_differ(ex: Executor, sampler: Traced) -> bool:
    """Whether a sampler of the project gives the ranks different numbers of batches."""
    present = ex.now(sampler)
    if present.kind is not TracedKind.OBJECT or not isinstance(present.constant, tuple):
        return False
    method = ex.method_of(present, "__iter__")
    if method is None:
        return False
    kept, log = ex.state, len(ex.log)
    ex.state = kept.fork()
    result = ex.call_function(method, [], {}, present)
    ex.state = kept
    del ex.log[log:]
    return result.has("uneven")


def seed_workers(ex: Executor, node: ast.AST, function: Traced) -> None:
    """What the workers of a loader with a part for each rank do first."""
    if function.kind is not TracedKind.FUNCTION:
        return
    kept = ex.state
    ex.state = kept.fork()
    ex.contexts.append("worker")
    ex.call_function(function, [replace(SAME, symbol=("worker",))], {}, function.fields.get("self"))
    ex.contexts.remove("worker")
    ex.state = kept


def worker_seeded(ex: Executor, node: ast.AST, seed: Traced) -> None:
    """A worker sets a seed."""
    if "worker" in ex.contexts and seed.certain and not seed.origins:
        ex.mistake(MistakeKind.WORKERS_SEEDED_ALIKE, node)


def opened(ex: Executor, node: ast.AST, loader: Traced) -> None:
    """An iterator over a loader is created: it takes the order of the present epoch."""
    sampler = loader.fields.get("sampler") if loader.kind is TracedKind.LOADER else None
    if sampler is not None and sampler.kind is TracedKind.SAMPLER and ex.turns:
        late = ex.late.get(sampler.ref)
        if late is not None and late[0] == tuple(ex.turns):
            del ex.late[sampler.ref]  # an iterator of this epoch as well
        ex.opened.setdefault(sampler.ref, (tuple(ex.turns), ex.module, node))


def sampler_method(ex: Executor, node: ast.AST, owner: Traced, name: str, args: list[Traced]) -> None:
    """set_epoch: before the iterator of this turn of the loop is created."""
    if name != "set_epoch" or owner.kind is not TracedKind.SAMPLER or not args:
        return
    before = ex.opened.get(owner.ref)
    is_counter = isinstance(args[0].symbol, tuple) and args[0].symbol[:1] == ("index",)
    if before is not None and ex.turns and before[0][: len(ex.turns)] == tuple(ex.turns) and is_counter:
        ex.late[owner.ref] = (tuple(ex.turns), ex.module, node, before[2])
    ex.opened[owner.ref] = ((-1,), ex.module, node)


def variable_set(ex: Executor, key: Traced, value: Traced, node: ast.AST) -> None:
    """A variable of the process's own environment."""
    ex.variables[str(key.constant)] = (value, ex.module, node)
    is_own = value.certain and bool(value.origins & {DiffersBy.RANDOM, DiffersBy.CLOCK})
    if key.constant == "MASTER_PORT" and ex.is_child and is_own and not ex.differs_here():
        ex.mistake(MistakeKind.PORT_OF_PROCESS, node)


def device_chosen(ex: Executor, node: ast.AST, args: list[Traced]) -> None:
    """The GPU of the rank is selected by its number, although the process sees one GPU."""
    known = ex.variables.get("CUDA_VISIBLE_DEVICES")
    if known is None or not args:
        return
    visible, module, where = known
    one = frozenset((DiffersBy.RANK, DiffersBy.LOCAL_RANK))
    if visible.certain and visible.origins & one and args[-1].certain and args[-1].origins & one:
        ex.mistake_in(MistakeKind.ONE_GPU_VISIBLE, module, where, node if module is ex.module else None)


def socket_value(ex: Executor, node: ast.AST, name: str, args: list[Traced]) -> Traced | None:
    """Sockets: the port of one that the system has chosen."""
    if name == "socket.socket":
        return Traced(TracedKind.CONTEXT, certain=True, marks=frozenset(("socket",)))
    if name == "contextlib.closing" and args:
        return args[0]
    if name == "portpicker.pick_unused_port":
        return Traced(TracedKind.NUMBER, frozenset((DiffersBy.RANDOM,)), True, made=node)
    return None
