"""SCRIPT581 to SCRIPT583: what is done to a model after DDP has wrapped it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import code, moved, point, safe
from ddpdoctor.rules.script.script_questions import argument, has_more, is_test
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal


@cause("SCRIPT581", "no-sync-around-last-micro-batch", Severity.ERROR)
@with_histories(MistakeKind.TAIL_NOT_SYNCHRONIZED)
def no_sync_around_last_micro_batch(script: Script) -> Iterator[Finding]:
    """All backward passes run under no_sync, also the last one before the optimizer steps.

    ## Why it matters
    DDP averages gradients in the first backward pass outside no_sync. Without one each rank steps with its own
    gradients, and the models drift apart without any error.

    ## Fix
    Run the last micro batch of each step outside no_sync.

    ## Example
        # before
        for micro in batches:
            with ddp.no_sync():
                ddp(micro).sum().backward()
        optimizer.step()

        # after
        for number, micro in enumerate(batches):
            last = number == len(batches) - 1
            with contextlib.nullcontext() if last else ddp.no_sync():
                ddp(micro).sum().backward()
        optimizer.step()

    ## Source
    PyTorch documentation of DistributedDataParallel.no_sync.
    """
    for module in modules(script):
        passes = module.method_calls.get("backward", ())
        if not passes or not module.method_calls.get("step") or module.frameworks or is_test(module):
            continue
        opened = [_no_sync(module, call) for call in passes]
        contexts = [c for c in opened if c is not None]
        if contexts and len(contexts) == len(opened):
            yield point(
                module,
                contexts[0],
                f"every backward pass runs under {code(module, contexts[0], 40)}: gradients are never averaged",
                "the last micro batch outside no_sync",
                label="the last backward pass is inside as well",
            )


def _no_sync(module: Module, call: ast.Call) -> ast.Call | None:
    """`ddp.no_sync()` that is always around a backward pass, None if there is none or a condition decides."""
    for parent, _ in module.index.enclosing(call):
        if isinstance(parent, (ast.If, ast.IfExp)) or parent in module.index.scopes:
            return None
        for item in parent.items if isinstance(parent, ast.With) else ():
            made = item.context_expr
            if isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr == "no_sync":
                return None if _is_chosen(module, parent) else made
    return None


def _is_chosen(module: Module, node: ast.AST) -> bool:
    return any(isinstance(p, (ast.If, ast.Try)) for p, _ in module.index.enclosing(node) if not _is_guard(p))


def _is_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


@cause("SCRIPT582", "requires-grad-changed-after-ddp", Severity.ERROR)
@with_histories(MistakeKind.CHANGED_AFTER_WRAP, MistakeKind.UNFROZEN_AFTER_WRAP)
def requires_grad_changed_after_ddp(script: Script) -> Iterator[Finding]:
    """Parameters are frozen or unfrozen after DDP has wrapped the model.

    ## Why it matters
    DDP decides once, when it is created, which gradients it waits for. A frozen parameter ends in `Expected to have
    finished reduction in the prior iteration`; one that is unfrozen later is never averaged.

    ## Fix
    Set requires_grad before DDP is created, or create DDP again afterwards.

    ## Example
        # before
        ddp = DDP(model)
        for p in ddp.module.backbone.parameters():
            p.requires_grad = False
        # RuntimeError: Expected to have finished reduction in the prior iteration ...

        # after
        for p in model.backbone.parameters():
            p.requires_grad = False
        ddp = DDP(model)

    ## Source
    PyTorch documentation of DistributedDataParallel ("you should never try to change your model's parameters").
    """
    for module in modules(script):
        if is_test(module):
            continue
        wrappers = {ast.unparse(t): c for c in module.calls("DDP") for t in _targets(module, c)}
        relaxed = {"find_unused_parameters", "static_graph"}
        if any(has_more(c) or {k.arg for k in c.keywords} & relaxed for c in wrappers.values()):
            continue
        for at, source in _changes(module):
            made = next((c for name, c in wrappers.items() if source == name or source.startswith(f"{name}.")), None)
            if made is None or not _follows(module, made, at):
                continue
            yield point(
                module,
                at,
                f"requires_grad is changed after DDP() has wrapped the model (line {made.lineno})",
                "before DDP()",
                label="DDP has already chosen the gradients to average",
            )


def _targets(module: Module, call: ast.Call) -> list[ast.expr]:
    parent = module.index.parents.get(call)
    return parent.targets if isinstance(parent, ast.Assign) else []


def _changes(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """Statements that set requires_grad, with the source of the module whose parameters they change."""
    for (base, name), bindings in module.index.attributes.items():
        for binding in bindings if name == "requires_grad" else ():
            yield binding.at, _owner(module, binding.at, base)
    for call in module.method_calls.get("requires_grad_", ()):
        changed = call.func.value if isinstance(call.func, ast.Attribute) else None
        if changed is not None:
            text = ast.unparse(changed)
            yield call, _owner(module, call, text) if isinstance(changed, ast.Name) else text


def _owner(module: Module, node: ast.AST, name: str) -> str:
    """`model.backbone` for a `p` from `for p in model.backbone.parameters():`; the name itself without such a loop."""
    for parent, _ in module.index.enclosing(node):
        if isinstance(parent, ast.For) and name in {n.id for n in ast.walk(parent.target) if isinstance(n, ast.Name)}:
            func = parent.iter.func if isinstance(parent.iter, ast.Call) else None
            is_parameters = isinstance(func, ast.Attribute) and func.attr in ("parameters", "named_parameters")
            return ast.unparse(func.value) if isinstance(func, ast.Attribute) and is_parameters else ""
    return name


def _follows(module: Module, made: ast.Call, at: ast.AST) -> bool:
    """Whether a statement runs once after a call of the same function: not in the training loop, not under a condition."""
    if module.index.function_of(made) is not module.index.function_of(at) or at.lineno < made.lineno:  # type: ignore[attr-defined]
        return False
    around = {p for p, _ in module.index.enclosing(made)}
    between = [p for p, _ in module.index.enclosing(at) if p not in around and p not in module.index.scopes]
    loops = [p for p in between if isinstance(p, (ast.For, ast.While))]
    over_parameters = [p for p in loops if isinstance(p, ast.For) and "parameters()" in ast.unparse(p.iter)]
    is_plain = all(isinstance(p, (ast.For, ast.With, ast.expr, ast.Expr, ast.stmt)) for p in between)
    rewrapped = [c for c in module.calls("DDP") if c.lineno > at.lineno]  # type: ignore[attr-defined]
    is_conditional = any(isinstance(p, (ast.If, ast.Try, ast.IfExp)) for p in between)
    return is_plain and not rewrapped and len(loops) == len(over_parameters) and not is_conditional


@cause("SCRIPT583", "syncbn-after-ddp", Severity.WARNING)
@with_histories(MistakeKind.SYNCBN_AFTER_WRAP)
def syncbn_after_ddp(script: Script) -> Iterator[Finding]:
    """convert_sync_batchnorm gets a model that DDP has already wrapped.

    ## Why it matters
    DDP registers the modules that it finds when it is created. The layers that replace them later are not the ones
    that it knows, and the documentation requires the other order.

    ## Fix
    Convert first, then wrap: `DDP(nn.SyncBatchNorm.convert_sync_batchnorm(model))`.

    ## Example
        # before
        model = DDP(model, device_ids=[local_rank])
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)

        # after
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        model = DDP(model, device_ids=[local_rank])

    ## Source
    PyTorch documentation of SyncBatchNorm.convert_sync_batchnorm.
    """
    for module in modules(script):
        for call in module.calls("nn.SyncBatchNorm.convert_sync_batchnorm"):
            given = argument(call, 0, "module")
            wrapped = _wrapped_before(module, call, given) if given is not None else None
            if given is None or wrapped is None or is_test(module):
                continue
            yield point(
                module,
                call,
                f"{code(module, given, 40)} is already wrapped by DDP (line {wrapped.lineno})",
                "convert_sync_batchnorm before DDP",
                label="convert first, then wrap",
                edits=safe(_swapped(module, wrapped, call)),
            )


def _wrapped_before(module: Module, call: ast.Call, given: ast.expr) -> ast.Call | None:
    """The DDP call whose result is converted: it is the last assignment before, in the same block."""
    block = module.index.parents.get(module.index.statement(call))
    for made in reversed(module.calls("DDP")):
        is_before = made.lineno < call.lineno and module.index.parents.get(module.index.statement(made)) is block
        if is_before and ast.unparse(given) in [ast.unparse(t) for t in _targets(module, made)]:
            return made
    return None


def _swapped(module: Module, wrapped: ast.Call, call: ast.Call) -> tuple[Edit, ...]:
    """Move the conversion before the wrapper, if both assign the same name."""
    one, two = module.index.statement(wrapped), module.index.statement(call)
    is_plain = isinstance(one, ast.Assign) and isinstance(two, ast.Assign) and two.value is call
    if not is_plain or ast.unparse(one.targets[0]) != ast.unparse(two.targets[0]):  # type: ignore[attr-defined]
        return ()
    first = argument(wrapped, 0, "module")
    same = first is not None and ast.unparse(first) == ast.unparse(call.args[0] if call.args else two)
    return moved(module, two, one) if same else ()


@no_sync_around_last_micro_batch.look
def not_synchronized(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A step with gradients that no backward pass has synchronized."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.UNSYNCHRONIZED,
        lambda o, who: "an optimizer step follows a backward pass that synchronizes no gradient",
        label="this backward pass does not synchronize",
        expected="the last backward pass before a step outside of no_sync()",
    )


@requires_grad_changed_after_ddp.look
def frozen_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """requires_grad was changed after DDP was constructed."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.FROZEN_AFTER_WRAP,
        lambda o, who: "requires_grad is changed after DDP has wrapped the model",
        label="DDP still waits for the gradient of this parameter",
        expected="requires_grad set before DDP is constructed",
    )


@requires_grad_changed_after_ddp.look
def unregistered_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Trained parameters that DDP does not know."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.UNREGISTERED,
        lambda o, who: f"DDP does not synchronize parameters that were added or unfrozen after it: {o.values['names']}",
        label="DDP knows only the parameters that are trainable here",
        expected="the change before DDP is constructed",
    )
