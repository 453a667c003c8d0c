"""Resolves names: `dist.all_reduce`, `DDP`, `cuda.set_device`, under any import name.

The result is one short dotted name per function that torch offers under several names:
`torch.distributed.distributed_c10d.barrier`, `deepspeed.comm.barrier` and `torch.distributed.barrier` are all `dist.barrier`.
"""

from __future__ import annotations

import ast
import builtins

from ddpdoctor.scripts.syntax.index import Binding, Bound, Index, Scope

__all__ = ["Names", "short"]

_EXACT = {
    "torch.nn.parallel.DistributedDataParallel": "DDP",
    "torch.nn.parallel.distributed.DistributedDataParallel": "DDP",
    "torch.distributed.fsdp.FullyShardedDataParallel": "FSDP",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": "FSDP",
    "torch.distributed.fsdp.fully_shard": "fully_shard",
    "torch.distributed._composable.fsdp.fully_shard": "fully_shard",
    "torch.distributed._composable.fsdp.fully_shard.fully_shard": "fully_shard",
    "torch.utils.data.DataLoader": "DataLoader",
    "torch.utils.data.dataloader.DataLoader": "DataLoader",
    "torch.utils.data.DistributedSampler": "DistributedSampler",
    "torch.utils.data.distributed.DistributedSampler": "DistributedSampler",
    "torch.utils.data.IterableDataset": "IterableDataset",
    "torch.utils.data.dataset.IterableDataset": "IterableDataset",
    "torch.utils.data.Dataset": "Dataset",
    "torch.utils.data.dataset.Dataset": "Dataset",
    "torch.nn.modules.module.Module": "nn.Module",
    "torch.nn.Module": "nn.Module",
    "datetime.timedelta": "timedelta",
    "os.environ.get": "os.getenv",
    "torch.distributed.algorithms.join.Join": "Join",
    "torch.distributed.algorithms.Join": "Join",
    "torch.device": "torch.device",
    "accelerate.Accelerator": "Accelerator",
    "accelerate.accelerator.Accelerator": "Accelerator",
    "torch.multiprocessing.spawn.spawn": "mp.spawn",
    "torch.multiprocessing.start_processes": "mp.start_processes",
    "torch.multiprocessing.spawn.start_processes": "mp.start_processes",
}
_PREFIXES = (
    ("torch.distributed.distributed_c10d.", "dist."),
    ("torch.distributed.checkpoint.", "dcp."),
    ("torch.distributed.", "dist."),
    ("deepspeed.comm.comm.", "dist."),
    ("deepspeed.comm.", "dist."),
    ("torch.cuda.", "cuda."),
    ("torch.multiprocessing.", "mp."),
    ("multiprocessing.", "mp."),
    ("torch.nn.", "nn."),
    ("pytorch_lightning.", "lightning."),
    ("lightning.pytorch.", "lightning."),
    ("lightning_fabric.", "lightning.fabric."),
)
_STARS = {
    "torch.distributed": (
        "init_process_group destroy_process_group is_initialized is_available get_rank get_world_size barrier all_reduce "
        "broadcast reduce all_gather gather scatter reduce_scatter all_to_all send recv isend irecv new_group "
        "all_gather_object broadcast_object_list gather_object scatter_object_list all_gather_into_tensor "
        "all_gather_single gather_into_tensor gather_single reduce_scatter_single"
    ),
    "torch.nn.parallel": "DistributedDataParallel",
    "torch.utils.data": "DataLoader DistributedSampler Dataset IterableDataset TensorDataset",
    "torch.utils.data.distributed": "DistributedSampler",
    "torch.multiprocessing": "spawn Process set_start_method get_context start_processes",
    "os": "environ getenv makedirs mkdir",
}
_BUILTINS = frozenset(dir(builtins))


def short(dotted: str) -> str:
    """The short name of a dotted name."""
    exact = _EXACT.get(dotted)
    if exact is not None:
        return exact
    for prefix, brief in _PREFIXES:
        if dotted.startswith(prefix):
            return brief + dotted[len(prefix) :]
    return dotted


class Names:
    """Resolves the names of one indexed file."""

    def __init__(self, file: Index) -> None:
        self._index = file
        self._short: dict[ast.AST, str | None] = {}
        self._known: dict[tuple[Scope, str], str | None] = {}
        self._stars = {name: f"{base}.{name}" for base in file.stars for name in _STARS.get(base, "").split()}

    def of(self, node: ast.AST) -> str | None:
        """The short name of an expression such as `dist.all_reduce`; None for what this file defines and for unknown names."""
        if node not in self._short:
            dotted = self.dotted(node)
            self._short[node] = None if dotted is None else short(dotted)
        return self._short[node]

    def dotted(self, node: ast.AST, depth: int = 0) -> str | None:
        """The full dotted name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or depth > 8:
            return None
        scope = self._index.scope(node)
        base = self._base(node.id, scope, depth)
        return None if base is None else ".".join([base, *reversed(parts)])

    def bindings(self, name: str, scope: Scope) -> tuple[Scope, list[Binding]] | None:
        """The scope that binds a name as seen from `scope`, and its bindings there."""
        candidate: Scope | None = scope
        while candidate is not None:
            is_visible = candidate is scope or not isinstance(candidate.node, ast.ClassDef)
            if is_visible and name in candidate.names and name not in candidate.outer_names:
                return candidate, candidate.names[name]
            candidate = candidate.parent
        return None

    def _base(self, name: str, scope: Scope, depth: int) -> str | None:
        key = (scope, name)
        if key not in self._known:
            self._known[key] = None  # a name that is bound to itself
            self._known[key] = self._looked_up(name, scope, depth)
        return self._known[key]

    def _looked_up(self, name: str, scope: Scope, depth: int) -> str | None:
        bound = self.bindings(name, scope)
        if bound is None:
            return self._stars.get(name) or (name if name in _BUILTINS else None)
        imports = [b for b in bound[1] if b.how is Bound.IMPORT]
        if imports:
            return imports[0].target
        if len(bound[1]) == 1 and bound[1][0].how is Bound.VALUE:
            value = bound[1][0].value
            if isinstance(value, ast.Call) and self._is_partial(value, depth):
                value = value.args[0]
            if isinstance(value, (ast.Name, ast.Attribute)):
                return self.dotted(value, depth + 1)
        return None

    def _is_partial(self, call: ast.Call, depth: int) -> bool:
        """Whether it is a functools.partial that sets no rank and no group: its result is called like the function itself."""
        keywords = {k.arg for k in call.keywords}
        return len(call.args) == 1 and keywords <= {"op"} and self.dotted(call.func, depth + 1) == "functools.partial"
