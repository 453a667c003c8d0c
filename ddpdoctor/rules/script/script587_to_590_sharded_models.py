"""SCRIPT587 to SCRIPT590: optimizers, clipping, scaling and checkpoints of sharded models."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import code, moved, point, replace, safe
from ddpdoctor.rules.script.rank_branches import in_rank_branch
from ddpdoctor.rules.script.script_questions import argument, has_more, is_test, names_in
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.syntax.index import Bound
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal

_CHOICES = (ast.If, ast.IfExp, ast.Try)


@cause("SCRIPT587", "optimizer-holds-old-parameters", Severity.ERROR)
@with_histories(MistakeKind.OLD_PARAMETERS)
def optimizer_holds_old_parameters(script: Script) -> Iterator[Finding]:
    """The optimizer is created before the parameters that it should update.

    ## Why it matters
    FSDP and fully_shard replace the parameters, and so does building the model again. The optimizer updates tensors
    that no forward pass uses: the loss stays where it is, without any error.

    ## Fix
    Create the optimizer after the model has been built, sharded and wrapped.

    ## Example
        # before
        optimizer = torch.optim.AdamW(model.parameters())
        model = FSDP(model)

        # after
        model = FSDP(model)
        optimizer = torch.optim.AdamW(model.parameters())

    ## Source
    PyTorch documentation of FullyShardedDataParallel ("the optimizer must be initialized after the module has been
    wrapped") and of fully_shard.
    """
    for module in modules(script):
        if is_test(module) or module.frameworks:
            continue
        for made, model in _optimizers(module):
            later = _replaced(module, made, model)
            if later is None:
                continue
            one, two = module.index.statement(made), module.index.statement(later)
            yield point(
                module,
                made,
                f"the optimizer is created before line {later.lineno} replaces the parameters of {model}",
                f"after line {later.lineno}",
                label="it updates the old parameters",
                fix=f"Move it after line {later.lineno}.",
                edits=safe(moved(module, one, two, follows=True) if not _is_used(module, one, two) else ()),
            )


def _optimizers(module: Module) -> Iterator[tuple[ast.Call, str]]:
    """The optimizers that are created from `model.parameters()`, with the source of the model."""
    for name, calls in module.call_index.by_short_name.items():
        if not name.startswith("torch.optim.") or "lr_scheduler" in name:
            continue
        for call in calls:
            given = argument(call, 0, "params")
            is_plain = isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and not given.args
            if is_plain and given.func.attr == "parameters" and isinstance(given.func.value, ast.Name):  # type: ignore[union-attr]
                yield call, given.func.value.id  # type: ignore[union-attr]


def _replaced(module: Module, made: ast.Call, model: str) -> ast.Call | None:
    """The call after an optimizer, in the same block, that replaces the parameters of its model."""
    block = module.index.parents.get(module.index.statement(made))
    for call in module.calls("FSDP", "fully_shard"):
        given = argument(call, 0, "module")
        is_same = given is not None and ast.unparse(given) == model
        if is_same and call.lineno > made.lineno and module.index.parents.get(module.index.statement(call)) is block:
            return call
    bound = module.names.bindings(model, module.index.scope(made))
    for binding in bound[1] if bound is not None else ():
        value = binding.value
        is_later = binding.how is Bound.VALUE and binding.line > made.lineno and isinstance(value, ast.Call)
        if not is_later or not isinstance(value, ast.Call) or module.index.parents.get(binding.at) is not block:
            continue
        is_wrapper = module.names.of(value.func) == "DDP" and value.args and isinstance(value.args[0], ast.Call)
        inner = value.args[0] if is_wrapper else None
        if isinstance(inner, ast.Call) and model not in names_in(inner) and _is_built(module, inner):
            return value
    return None


def _is_built(module: Module, call: ast.Call) -> bool:
    """Whether a call builds a model of this file: one of its classes or functions."""
    return module.target(call) is not None or module.class_of_value(call) is not None


def _is_used(module: Module, one: ast.stmt, two: ast.stmt) -> bool:
    """Whether what a statement assigns is used before another one."""
    names = {n.id for n in ast.walk(one) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    between = (
        n for n in module.index.parents if isinstance(n, ast.Name) and one.lineno < n.lineno <= (two.end_lineno or 0)
    )
    return any(n.id in names for n in between)


@cause("SCRIPT588", "clip-grad-norm-of-shards", Severity.ERROR)
@with_histories(MistakeKind.CLIPPED_SHARD)
def clip_grad_norm_of_shards(script: Script) -> Iterator[Finding]:
    """clip_grad_norm_ of torch.nn.utils gets the shards of an FSDP model.

    ## Why it matters
    Each rank computes the norm of its own shard and clips with its own factor. Gradients are clipped too little, and
    their direction changes with the number of ranks.

    ## Fix
    Call the method of the wrapper: `model.clip_grad_norm_(max_norm)`.

    fully_shard (FSDP2) needs no change: its parameters are DTensors.

    ## Example
        # before
        torch.nn.utils.clip_grad_norm_(fsdp.parameters(), 1.0)

        # after
        fsdp.clip_grad_norm_(1.0)

    ## Source
    PyTorch documentation of FullyShardedDataParallel.clip_grad_norm_.
    """
    for module in modules(script):
        sharded = module.call_index.sharded
        if not sharded or is_test(module) or "NO_SHARD" in module.text or module.frameworks:
            continue
        for call in module.calls("nn.utils.clip_grad_norm_", "nn.utils.clip_grad.clip_grad_norm_"):
            given = argument(call, 0, "parameters")
            func = given.func if isinstance(given, ast.Call) else None
            model = ast.unparse(func.value) if isinstance(func, ast.Attribute) and func.attr == "parameters" else ""
            if model not in sharded or _asks_for_kind(module, call):
                continue
            yield point(
                module,
                call,
                f"{code(module, call.func, 50)}() clips each shard of {model} by itself",
                f"{model}.clip_grad_norm_(…)",
                label="each rank clips with its own factor",
                fix=f"Call `{model}.clip_grad_norm_(max_norm)`.",
                edits=safe(_as_method(module, call, model)),
            )


def _asks_for_kind(module: Module, node: ast.AST) -> bool:
    """Whether a condition around a call checks what kind of wrapper or strategy is used."""
    return any(isinstance(p, ast.If) and child is not p.test for p, child in module.index.enclosing(node)) and any(
        isinstance(p, ast.If) and names_in(p.test) & {"isinstance", "fsdp", "strategy", "hasattr", "use_fsdp", "FSDP"}
        for p, _ in module.index.enclosing(node)
    )


def _as_method(module: Module, call: ast.Call, model: str) -> tuple[Edit, ...]:
    limit = argument(call, 1, "max_norm")
    norm = argument(call, 2, "norm_type")
    is_plain = limit is not None and len(call.args) + len(call.keywords) == 2 + (norm is not None)
    if limit is None or not is_plain:
        return ()
    kind = f", {code(module, norm, 100)}" if norm is not None else ""
    return (replace(module, call, f"{model}.clip_grad_norm_({code(module, limit, 100)}{kind})"),)


@cause("SCRIPT589", "grad-scaler-with-fsdp", Severity.WARNING)
def grad_scaler_with_fsdp(script: Script) -> Iterator[Finding]:
    """A plain GradScaler scales the gradients of an FSDP model.

    ## Why it matters
    Each rank looks for inf and NaN in its own shard only. One rank skips the step that the others make, and the
    scales of the ranks differ from then on.

    ## Fix
    Use `torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler()`, or bfloat16 without a scaler.

    ## Example
        # before
        model = FSDP(model)
        scaler = torch.cuda.amp.GradScaler()

        # after
        model = FSDP(model)
        scaler = ShardedGradScaler()

    ## Source
    torch/distributed/fsdp/sharded_grad_scaler.py.
    """
    for module in modules(script):
        made = [c for c in module.calls("FSDP") if not _is_optional(module, c)]
        if (
            not made
            or module.calls("DDP")
            or "ShardedGradScaler" in module.text
            or is_test(module)
            or module.frameworks
        ):
            continue
        for call in module.calls("cuda.amp.GradScaler", "torch.amp.GradScaler", "torch.GradScaler"):
            if not _is_optional(module, call) and argument(call, None, "enabled") is None and not has_more(call):
                yield point(
                    module,
                    call,
                    "GradScaler with FSDP: each rank checks only its own shard for inf",
                    "ShardedGradScaler()",
                    label="use ShardedGradScaler",
                )


def _is_optional(module: Module, node: ast.AST) -> bool:
    guards = (
        p
        for p, child in module.index.enclosing(node)
        if isinstance(p, _CHOICES) and child is not getattr(p, "test", None)
    )
    return any("__name__" not in ast.unparse(getattr(p, "test", p)) for p in guards)


@cause("SCRIPT590", "shards-saved-by-one-rank", Severity.ERROR)
def shards_saved_by_one_rank(script: Script) -> Iterator[Finding]:
    """One rank saves the state_dict of a model that fully_shard has divided.

    ## Why it matters
    The state_dict holds DTensors with the shards of that rank. The file contains one part of the model, which is
    noticed when it is loaded.

    ## Fix
    Gather it on all ranks with `get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))` first.

    Or save all shards with torch.distributed.checkpoint, on all ranks.

    ## Example
        # before
        fully_shard(model)
        if rank == 0:
            torch.save(model.state_dict(), "model.pt")

        # after
        fully_shard(model)
        state = {k: v.full_tensor() for k, v in model.state_dict().items()}
        if rank == 0:
            torch.save(state, "model.pt")

    ## Source
    PyTorch tutorial "Getting Started with Fully Sharded Data Parallel (FSDP2)".
    """
    for module in modules(script):
        divided = {ast.unparse(c.args[0]) for c in module.calls("fully_shard") if c.args}
        if not divided or is_test(module) or "full_tensor" in module.text or "full_state_dict" in module.text:
            continue
        for call in module.calls("torch.save"):
            state = argument(call, 0, "obj")
            states = [
                n
                for n in (ast.walk(state) if state is not None else ())
                if isinstance(n, ast.Call) and getattr(n.func, "attr", "") == "state_dict"
            ]
            own = [s for s in states if isinstance(s.func, ast.Attribute) and ast.unparse(s.func.value) in divided]
            if own and in_rank_branch(module, call):
                yield point(
                    module,
                    own[0],
                    f"{code(module, own[0], 50)} holds only the shards of the rank that saves it",
                    "a full state_dict, gathered on all ranks",
                    label="one part of the model",
                )


@optimizer_holds_old_parameters.look
def idle_optimizer(rehearsal: Rehearsal) -> Iterator[Finding]:
    """No parameter of an optimizer has a gradient."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.IDLE_OPTIMIZER,
        lambda o, who: "no parameter of the optimizer has a gradient after a backward pass",
        label="these are not the parameters that the model uses",
        expected="an optimizer that is created after the model is sharded",
    )


@clip_grad_norm_of_shards.look
def clipped_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """clip_grad_norm_ of torch.nn.utils on shards."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.CLIPPED_SHARDS,
        lambda o, who: "clip_grad_norm_ sees only the shard of each rank",
        label="the norm of this shard, not of the model",
        expected="model.clip_grad_norm_(max_norm)",
    )
