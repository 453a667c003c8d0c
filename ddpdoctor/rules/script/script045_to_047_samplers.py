"""SCRIPT045 to SCRIPT047: samplers without set_epoch, with shuffle, or over a dataset without a length."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import before, code, point, safe, without_argument
from ddpdoctor.rules.script.script044_048_data_loading import epochs, is_evaluation
from ddpdoctor.rules.script.script_questions import argument, each_rank, has_more, last_value, spread, value
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.interpreter.frames import CallResult
from ddpdoctor.scripts.syntax.index import Bound
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal


@cause("SCRIPT045", "sampler-epoch-not-set", Severity.WARNING)
@with_histories(MistakeKind.EPOCH_SET_TOO_LATE)
def sampler_epoch_not_set(script: Script) -> Iterator[Finding]:
    """The sampler uses the same order in every epoch.

    ## Why it matters
    DistributedSampler shuffles with seed + epoch, and the epoch stays 0 until set_epoch is called. Every epoch has
    the same order, which slows convergence without any error.

    ## Fix
    Call `sampler.set_epoch(epoch)` at the start of each epoch.

    ## Example
        # before
        for epoch in range(epochs):
            for batch in loader:
                train(ddp, batch)

        # after
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for batch in loader:
                train(ddp, batch)
    """
    for module in modules(script):
        if "set_epoch" in module.text or module.frameworks:
            continue
        for call in module.calls("DistributedSampler"):
            shuffle = argument(call, 3, "shuffle")
            if (
                has_more(call)
                or (shuffle is not None and value(module, shuffle) is not True)
                or is_evaluation(module, call)
            ):
                continue
            loop = epochs(module)
            name = _sampler_name(module, call)
            if loop is not None:
                edits = _epoch_set(module, loop, name)
                yield point(
                    module,
                    call,
                    "DistributedSampler without set_epoch(): every epoch has the same order",
                    f"{name}.set_epoch(epoch)",
                    label=f"the epoch stays 0 (loop in line {loop.lineno})",
                    fix=f"Call `{name}.set_epoch(epoch)` at the start of each epoch (line {loop.lineno}).",
                    edits=safe(edits) if _is_there(module, call, loop) else edits,
                )


def _sampler_name(module: Module, call: ast.Call) -> str:
    statement = module.index.statement(call)
    if isinstance(statement, ast.Assign) and statement.value is call:
        return ast.unparse(statement.targets[0])
    loader = module.index.parents.get(module.index.parents[call])
    if not isinstance(loader, ast.Call) or module.names.of(loader.func) != "DataLoader":
        return "sampler"
    makers = [loader] if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.Return) and statement.value is loader and (function := module.index.function_of(call)):
        makers = module.callers.get(function, [])
    kept = [p.targets[0] for m in makers if isinstance(p := module.index.parents[m], ast.Assign)]
    return f"{ast.unparse(kept[0])}.sampler" if len(makers) == len(kept) == 1 else "sampler"


def _is_there(module: Module, call: ast.Call, loop: ast.For | ast.While) -> bool:
    """Whether a name holds this sampler, and nothing else, in every run of the loop: made once, in the block of the loop."""
    statement, index = module.index.statement(call), module.index
    target = statement.targets[0] if isinstance(statement, ast.Assign) and statement.value is call else None
    if not isinstance(target, ast.Name) or index.parents.get(statement) is not index.parents.get(loop):
        return False
    bound = module.names.bindings(target.id, index.scope(target))
    return bound is not None and len(bound[1]) == 1 and statement.lineno < loop.lineno


def _epoch_set(module: Module, loop: ast.For | ast.While, name: str) -> tuple[Edit, ...]:
    counter = (
        loop.target if isinstance(loop, ast.For) else next(n for n in ast.walk(loop.test) if isinstance(n, ast.Name))
    )
    if not isinstance(counter, ast.Name) or (name == "sampler" and "sampler =" not in module.text):
        return ()
    function = module.index.function_of(loop)
    root = name.partition(".")[0]
    local = root in {n.id for n in ast.walk(function or module.tree) if isinstance(n, ast.Name)}
    known = root == "self" or local
    return (before(module, loop.body[0], f"{name}.set_epoch({counter.id})"),) if known else ()


@cause(
    "SCRIPT046",
    "shuffle-with-sampler",
    Severity.ERROR,
    signatures=(r"sampler option is mutually exclusive with shuffle",),
)
def shuffle_with_sampler(script: Script) -> Iterator[Finding]:
    """A DataLoader has both shuffle and a sampler.

    ## Why it matters
    Creating the loader fails with `ValueError: sampler option is mutually exclusive with shuffle`.

    ## Fix
    Remove `shuffle=True`: DistributedSampler shuffles by itself.

    ## Example
        # before
        loader = DataLoader(dataset, shuffle=True, sampler=DistributedSampler(dataset))
        # ValueError: sampler option is mutually exclusive with shuffle

        # after
        loader = DataLoader(dataset, sampler=DistributedSampler(dataset))
    """
    for module in modules(script):
        for call in module.calls("DataLoader"):
            options = spread(module, call)
            shuffle = argument(call, 2, "shuffle") or options.get("shuffle")
            sampler = argument(call, 3, "sampler") or options.get("sampler")
            if shuffle is None or sampler is None or value(module, shuffle) is not True:
                continue
            samplers = each_rank(module, sampler)
            if all(isinstance(m, CallResult) and m.name == "DistributedSampler" for m in samplers) or _is_sampler(
                module, sampler
            ):
                yield point(
                    module,
                    call,
                    "DataLoader has both shuffle=True and a sampler",
                    "no shuffle",
                    label="ValueError: mutually exclusive",
                    edits=safe(without_argument(module, call, shuffle) if not options else ()),
                )


def _is_sampler(module: Module, node: ast.expr) -> bool:
    call = node
    if isinstance(node, ast.Name):
        bound = module.names.bindings(node.id, module.index.scope(node))
        if bound is None or len(bound[1]) != 1 or bound[1][0].how is not Bound.VALUE or bound[1][0].value is None:
            return False
        call = bound[1][0].value
    name = module.names.of(call.func) if isinstance(call, ast.Call) else None
    return name is not None and name.startswith("torch.utils.data.") and name.endswith("Sampler")


@cause(
    "SCRIPT047",
    "sampler-on-iterable-dataset",
    Severity.ERROR,
)
def sampler_on_iterable_dataset(script: Script) -> Iterator[Finding]:
    """A DistributedSampler gets an IterableDataset.

    ## Why it matters
    It fails with `TypeError: object of type '…' has no len()`, because an IterableDataset has no length and no
    indices. Without the sampler every rank reads all of the data.

    ## Fix
    Divide inside the dataset: `itertools.islice(items, rank, None, world_size)`.

    With several workers per loader, divide by rank and by worker. `--diff` does not correct this: only the author
    knows how the items are read.

    ## Example
        # before
        class Stream(IterableDataset):
            def __iter__(self):
                yield from self.items

        sampler = DistributedSampler(Stream())
        # TypeError: object of type 'Stream' has no len()

        # after
        class Stream(IterableDataset):
            def __iter__(self):
                yield from itertools.islice(self.items, dist.get_rank(), None, dist.get_world_size())
    """
    for module in modules(script):
        for call in module.calls("DistributedSampler"):
            dataset = argument(call, 0, "dataset")
            owner = module.class_of_value(dataset) if dataset is not None else None
            if dataset is not None and _is_stream(module, dataset):
                yield _unsized(module, call, code(module, dataset))
            if (
                owner is None
                or not module.is_a(owner, "IterableDataset")
                or module.method(owner, "__len__") is not None
            ):
                continue
            yield _unsized(module, call, owner.name)


def _unsized(module: Module, call: ast.Call, name: str) -> Finding:
    return point(
        module,
        call,
        f"DistributedSampler gets {name}, an IterableDataset without len()",
        "islice(items, rank, None, world_size) in __iter__",
        label="TypeError: no len()",
        fix="Remove the sampler and divide in the dataset: `itertools.islice(items, rank, None, world_size)`.",
    )


def _is_stream(module: Module, node: ast.expr) -> bool:
    """Whether a dataset is the result of `load_dataset(…, streaming=True)`."""
    made = last_value(module, node)
    name = module.names.of(made.func) if isinstance(made, ast.Call) else None
    flag = argument(made, None, "streaming") if isinstance(made, ast.Call) else None
    return name == "datasets.load_dataset" and value(module, flag) is True


@sampler_epoch_not_set.look
def epoch_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Two epochs with one epoch number."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.EPOCH_NOT_SET,
        lambda o, who: "the second epoch has the order of the first: set_epoch was not called",
        label="call sampler.set_epoch(epoch) before this loop",
        expected="sampler.set_epoch(epoch)",
    )
