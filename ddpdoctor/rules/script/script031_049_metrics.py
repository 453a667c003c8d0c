"""SCRIPT031 and SCRIPT049: metrics that are reduced on some ranks only, or not at all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import CausalStage, Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import code, point, replace
from ddpdoctor.rules.script.rank_branches import in_rank_branch, ranks_reaching, truths
from ddpdoctor.rules.script.script_questions import argument, each_rank, names_in, value
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.interpreter.parameters import argument_of
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.nodes import Function, inner
from ddpdoctor.scripts.syntax.vocabulary import COLLECTIVES

_METRICS = re.compile(r"(?i)acc|val|test")
_LOSSES = re.compile(r"(?i)loss|acc|val|test")
LOGS = frozenset(("print", "wandb.log", "logging.info", "mlflow.log_metric"))
LOG_METHODS = frozenset(("add_scalar", "info", "log", "log_metric", "set_postfix", "write", "set_description"))


@cause("SCRIPT031", "metric-keys-differ", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
@with_histories(MistakeKind.KEYS_DIFFER)
def metric_keys_differ(script: Script) -> Iterator[Finding]:
    """Metrics are synchronized with different keys on different ranks.

    ## Why it matters
    Logging with sync_dist, and a collective per key of a dict, communicate. A key that only one rank has makes that
    rank wait, or pairs its value with a different metric of the other ranks.

    ## Fix
    Log the same keys on all ranks at every step, with a neutral value where there is none.

    ## Example
        # before
        if rank == 0:
            metrics["best"] = best
        for key in metrics:
            dist.all_reduce(metrics[key])

        # after
        metrics["best"] = best if rank == 0 else torch.zeros(1)
        for key in metrics:
            dist.all_reduce(metrics[key])
    """
    for module in modules(script):
        if module.frameworks & {"lightning", "pytorch_lightning"}:
            for call in (*module.method_calls.get("log", ()), *module.method_calls.get("log_dict", ())):
                if value(module, argument(call, None, "sync_dist")) is True and in_rank_branch(module, call):
                    yield point(
                        module,
                        call,
                        "sync_dist=True communicates, but only some ranks log here",
                        "the same keys on all ranks",
                        label="these ranks wait for the others: deadlock",
                        edits=_of_rank_zero(module, call),
                    )
        yield from _dicts(module)


def _of_rank_zero(module: Module, call: ast.Call) -> tuple[Edit, ...]:
    """Set rank_zero_only for what only rank 0 logs."""
    reaches = ranks_reaching(module, call)
    flag = next(k for k in call.keywords if k.arg == "sync_dist")
    alone = reaches is not None and reaches[0] and not any(reaches[1:])
    return (replace(module, flag, "rank_zero_only=True"),) if alone else ()


def _dicts(module: Module) -> Iterator[Finding]:
    """A collective per key of a dict, some of whose keys are set in a branch that depends on the rank."""
    for loop in (n for n in module.index.parents if isinstance(n, ast.For)):
        name = _dict_of(loop.iter)
        calls = [n for n in inner(loop) if isinstance(n, ast.Call) and module.names.of(n.func) in COLLECTIVES]
        if not name or not calls:
            continue
        filled = [(name, module.index.function_of(loop)), *_given(module, loop, name)]
        for store in module.index.subscripts:
            where = (ast.unparse(store.value), module.index.function_of(store))
            literal = isinstance(store.ctx, ast.Store) and isinstance(store.slice, ast.Constant)
            if literal and where in filled and _differs_by_rank(module, store) and not _is_everywhere(module, store):
                yield point(
                    module,
                    store,
                    f"{code(module, store)} is set on some ranks only",
                    "the key on every rank",
                    label=f"line {calls[0].lineno} communicates once per key: deadlock",
                )


def _given(module: Module, loop: ast.For, name: str) -> list[tuple[str, Function | None]]:
    """What callers pass for the parameter that a loop iterates over: the source of each argument, and the function around it."""
    function = module.index.function_of(loop)
    arguments: list[tuple[str, Function | None]] = []
    if function is None:
        return arguments
    for call in module.callers.get(function, ()):
        given = argument_of(call, function, name, isinstance(module.index.parents[function], ast.ClassDef))
        if given is not None:
            arguments.append((ast.unparse(given), module.index.function_of(call)))
    return arguments


def _is_everywhere(module: Module, store: ast.Subscript) -> bool:
    """Whether another statement of the function sets the same key on every rank."""
    function, name, key = module.index.function_of(store), ast.unparse(store.value), ast.unparse(store.slice)
    for other in module.index.subscripts:
        same = isinstance(other.ctx, ast.Store) and (ast.unparse(other.value), ast.unparse(other.slice)) == (name, key)
        if same and other is not store and module.index.function_of(other) is function:
            return True
    bound = module.names.bindings(name, module.index.scope(store))
    made = [b.value for b in bound[1] if isinstance(b.value, ast.Dict)] if bound is not None else []
    return any(k is not None and ast.unparse(k) == key for mapping in made for k in mapping.keys)


def _dict_of(node: ast.expr) -> str:
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("sorted", "list") and node.args:
        node = node.args[0]
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("items", "keys", "values")
    ):
        return ast.unparse(node.func.value)
    return node.id if isinstance(node, ast.Name) else ""


def _differs_by_rank(module: Module, node: ast.AST) -> bool:
    """Whether the rank, or its own data, decides whether a node runs."""
    for parent, child in module.index.enclosing(node):
        if parent in module.index.scopes:
            return False
        if isinstance(parent, ast.If) and child is not parent.test:
            values = truths(module, parent.test)
            if Unknown.DATA in values or any(f != values[0] for f in values[1:]):
                return True
    return False


@cause("SCRIPT049", "metric-not-reduced", Severity.NOTE)
def metric_not_reduced(script: Script) -> Iterator[Finding]:
    """A metric of one rank is logged as if it were the global one.

    ## Why it matters
    The curve shows the loss of one part of the data. It is noisier than that of the job, and depends on the world
    size.

    ## Fix
    Call all_reduce on the sum and on the count on all ranks, then log their quotient on rank 0.

    `--diff` does not correct this: only the author knows what the mean is taken over.

    ## Example
        # before
        if rank == 0:
            print("loss", loss.item())

        # after
        total = torch.stack([loss_sum, count])
        dist.all_reduce(total)
        if rank == 0:
            print("loss", (total[0] / total[1]).item())
    """
    for module in modules(script):
        yield from _logged_by_lightning(module)
        if (
            not module.calls("DDP")
            or module.frameworks
            or module.calls(*(COLLECTIVES - {"DDP", "FSDP", "dist.barrier"}))
        ):
            continue
        for call in module.index.calls:
            if not _logs(module, call) or not in_rank_branch(module, call):
                continue
            names = _METRICS if _is_console(call) else _LOSSES
            given = (*call.args, *(k.value for k in call.keywords))
            item = next(
                (n for a in given for n in ast.walk(a) if _is_item(n, names) or _is_own(module, n, names)), None
            ) or _named_by_text(module, given)
            if item is not None:
                yield point(
                    module,
                    item,
                    f"{code(module, item)} is logged as global, but it is the value of one rank",
                    "dist.all_reduce before",
                    label="all_reduce it first",
                )
                break


def _logged_by_lightning(module: Module) -> Iterator[Finding]:
    """`self.log("val_acc", …)` in a validation step on several devices, without sync_dist."""
    if not module.frameworks & {"lightning", "pytorch_lightning"} or not _has_several_devices(module):
        return
    for call in module.method_calls.get("log", ()):
        function = module.index.function_of(call)
        is_step = function is not None and function.name in ("validation_step", "test_step")
        given = argument(call, 1, "value")
        if not is_step or given is None or argument(call, None, "sync_dist", "rank_zero_only") is not None:
            continue
        if isinstance(given, ast.Attribute) or any(k.arg is None for k in call.keywords):
            continue  # a metric object, which Lightning synchronizes
        yield point(
            module,
            call,
            f"{code(module, call, 40)} is logged as global, but it is the value of one rank",
            "sync_dist=True",
            label="add sync_dist=True",
            fix="Pass `sync_dist=True`.",
        )


def _has_several_devices(module: Module) -> bool:
    """Whether a Trainer of this file uses a fixed number of devices larger than one, or several nodes."""
    counts = [argument(c, None, "devices", "num_nodes") for c in module.calls("lightning.Trainer")]
    counts += [argument(c, None, "num_nodes") for c in module.calls("lightning.Trainer")]
    return any(isinstance(v := value(module, n), int) and v > 1 for n in counts if n is not None)


def _named_by_text(module: Module, given: tuple[ast.expr, ...]) -> ast.expr | None:
    """The number beside the word "accuracy" in a text, if it is computed from the batches of this rank."""
    texts = [n.value for a in given for n in ast.walk(a) if isinstance(n, ast.Constant)]
    if not module.calls("DistributedSampler") or not any(isinstance(t, str) and _METRICS.search(t) for t in texts):
        return None
    parts = [v.value for a in given for v in ast.walk(a) if isinstance(v, ast.FormattedValue)]
    return next((p for p in (*given, *parts) if each_rank(module, p)[0] is Unknown.DATA), None)


def _logs(module: Module, call: ast.Call) -> bool:
    name = module.names.of(call.func)
    return name in LOGS or (isinstance(call.func, ast.Attribute) and call.func.attr in LOG_METHODS)


def _is_console(call: ast.Call) -> bool:
    """Whether the metric is printed for somebody who watches one rank, not stored as a curve."""
    last = call.func.attr if isinstance(call.func, ast.Attribute) else "print"
    return last in ("print", "info", "set_postfix", "write", "set_description")


def _is_item(node: ast.AST, pattern: re.Pattern[str]) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "item":
        return False
    return any(pattern.search(name) for name in names_in(node.func.value))


def _is_own(module: Module, node: ast.AST, pattern: re.Pattern[str]) -> bool:
    """Whether a name such as `accuracy` holds the result of this rank's batches."""
    own = isinstance(node, ast.Name) and pattern.search(node.id) and module.wraps
    return bool(own and isinstance(node, ast.Name) and each_rank(module, node)[0] is Unknown.DATA)
