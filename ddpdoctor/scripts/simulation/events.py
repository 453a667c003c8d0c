"""Events: the calls that a simulation records, by their names."""

from __future__ import annotations

import ast
import re

from ddpdoctor.scripts.interpreter.parameters import argument_of
from ddpdoctor.scripts.syntax.index import Bound
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.node_cache import cached_per_node
from ddpdoctor.scripts.syntax.nodes import inner
from ddpdoctor.scripts.syntax.vocabulary import COLLECTIVES, METHODS, P2P

__all__ = ["COMPARED", "EXITS", "WATCHED", "calls_in", "name_of"]

COMPARED = COLLECTIVES | frozenset(METHODS) | {"backward", "forward", "state_dict"}
"""Names of the calls that all ranks must make together: collectives, and the passes of a wrapped model."""

WATCHED = (
    COMPARED
    | P2P
    | {
        "dist.init_process_group",
        "dist.destroy_process_group",
        "dist.get_rank",
        "dist.get_world_size",
        "cuda.set_device",
        "torch.accelerator.set_device_index",
        "DistributedSampler",
        "torch.save",
        "torch.load",
        "open",
        "os.makedirs",
        "os.mkdir",
        "shutil.rmtree",
        "pathlib.Path.mkdir",
        "Accelerator",
        "deepspeed.init_distributed",
        "deepspeed.initialize",
        "mp.spawn",
        "mp.Process",
    }
)
"""Short names of the calls that a simulation records."""

EXITS = frozenset(("sys.exit", "os._exit", "exit", "quit"))


_SHARDING = re.compile(r"fsdp_plugin|deepspeed_plugin|FullyShardedDataParallelPlugin|automatic_checkpoint_naming")
"""With one of these, all ranks must call save_state and load_state of accelerate together."""


@cached_per_node
def calls_in(module: Module, node: ast.AST) -> list[ast.Call]:
    """The calls in a statement or expression in the order in which they end, without the bodies of lambdas."""
    calls = [n for n in inner(node) if isinstance(n, ast.Call)]
    return sorted(calls, key=lambda c: (c.end_lineno or 0, c.end_col_offset or 0))


@cached_per_node
def name_of(module: Module, call: ast.Call) -> str | None:
    """The name under which a simulation records a call, None for one that it does not record."""
    name = module.names.of(call.func)
    if name is not None:
        return name if name in WATCHED or "torchvision.datasets" in name else None
    if not isinstance(call.func, ast.Attribute):
        return "forward" if _is_wrapped(module, call.func) else None
    attr = call.func.attr
    if attr == "mkdir" and _is_path(module, call.func.value):
        return "pathlib.Path.mkdir"
    if attr == "backward":
        return "backward" if module.wraps and not _is_unwrapped(call.func.value) else None
    if attr == "state_dict" and ast.unparse(call.func.value) in module.call_index.sharded:
        return "state_dict"
    kind = METHODS.get(attr)
    if kind is not None and _fits(module, call.func.value, kind):
        return attr
    return "forward" if _is_wrapped(module, call.func) else None


def _is_unwrapped(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "module"


def _is_path(module: Module, base: ast.expr) -> bool:
    """`Path("a")`, `Path("a") / "b"`, or a name of one."""
    if isinstance(base, ast.BinOp):
        return _is_path(module, base.left)
    if isinstance(base, ast.Name):
        bound = module.names.bindings(base.id, module.index.scope(base))
        made = bound[1][0].value if bound is not None and len(bound[1]) == 1 else None
        return isinstance(made, ast.Call) and _is_path(module, made)
    return isinstance(base, ast.Call) and module.names.of(base.func) == "pathlib.Path"


def _constructor(module: Module, base: ast.expr) -> str | None:
    """The short name of the call whose result is the only value of a name."""
    made = module.made_of(base)
    return module.names.of(made.func) if made is not None else None


def _is_wrapped(module: Module, func: ast.expr) -> bool:
    return bool(module.wrapped) and ast.unparse(func) in module.wrapped and not _may_be_unwrapped(module, func)


def _may_be_unwrapped(module: Module, func: ast.expr) -> bool:
    """Whether it is a parameter for which some caller passes `ddp.module`."""
    bound = module.names.bindings(func.id, module.index.scope(func)) if isinstance(func, ast.Name) else None
    function = bound[0].function if bound is not None and bound[1][0].how is Bound.PARAMETER else None
    if function is None or not isinstance(func, ast.Name):
        return False
    is_method = isinstance(module.index.parents.get(function), ast.ClassDef)
    given = (argument_of(call, function, func.id, is_method) for call in module.callers.get(function, ()))
    return any(argument is not None and _is_unwrapped(argument) for argument in given)


def _fits(module: Module, base: ast.expr, kind: str) -> bool:
    """Whether an object is of the kind whose method is a collective (see METHODS)."""
    text = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
    if kind == "sharding accelerator" and not _SHARDING.search(module.text):
        return False  # then each process writes and reads its own files
    if kind.endswith("accelerator"):
        return "accelerator" in text.lower() or _constructor(module, base) == "Accelerator"
    if kind.endswith("trainer"):
        return _is_trainer(module, base, kind)
    if kind in ("lightning", "fabric"):
        uses_lightning = bool(module.frameworks & {"lightning", "pytorch_lightning", "lightning_fabric"})
        return uses_lightning and (text == "fabric" or (text == "self" and kind == "lightning"))
    if kind == "strategy":
        return text == "strategy" and bool(module.frameworks & {"lightning", "pytorch_lightning"})
    if kind == "engine":
        is_engine = "engine" in text.lower() and "deepspeed" in module.text
        return is_engine or (text == "trainer" and bool(module.frameworks & {"lightning", "pytorch_lightning"}))
    return True


_TRAINERS = {
    "transformers trainer": re.compile(r"^(transformers|trl)\.(\w+\.)*\w*Trainer$"),
    "lightning trainer": re.compile(r"^lightning\.(\w+\.)*Trainer$"),
    "trainer": re.compile(r"^(transformers|trl|lightning)\.(\w+\.)*\w*Trainer$"),
}


def _is_trainer(module: Module, base: ast.expr, kind: str) -> bool:
    """Whether a name holds a Trainer of its framework, or of a class of this file that is derived from one."""
    made = module.made_of(base) if module.frameworks else None
    counts = ("devices", "num_devices", "gpus")
    if made is not None and any(k.arg in counts and getattr(k.value, "value", None) == 1 for k in made.keywords):
        return False  # a Trainer for one process, such as after the training
    own = module.class_of_value(base) if module.frameworks else None
    names = [module.names.of(b) for b in own.bases] if own is not None else [_constructor(module, base)]
    return any(name is not None and _TRAINERS[kind].match(name) for name in names)
