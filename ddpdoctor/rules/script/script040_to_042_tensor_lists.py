"""SCRIPT040 to SCRIPT042: lists of tensors, one per rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import (
    code,
    dist_of,
    imported,
    point,
    replace,
    safe,
    with_keyword,
    without_argument,
)
from ddpdoctor.rules.script.rank_branches import ranks_reaching
from ddpdoctor.rules.script.script_questions import (
    argument,
    each_rank,
    has_more,
    is_literal,
    last_value,
    start_of,
    value,
)
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.simulation.entry_points import rank_contexts
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.nodes import Function
from ddpdoctor.scripts.syntax.vocabulary import GROUP_POSITION

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal

_LISTS = {
    "dist.all_gather": (0, "tensor_list"),
    "dist.all_gather_object": (0, "object_list"),
    "dist.gather_object": (1, "object_gather_list"),
    "dist.scatter_object_list": (1, "scatter_object_input_list"),
    "dist.gather": (1, "gather_list"),
    "dist.scatter": (1, "scatter_list"),
    "dist.reduce_scatter": (1, "input_list"),
    "dist.all_to_all": (1, "input_tensor_list"),
}


@cause(
    "SCRIPT040",
    "gather-list-on-wrong-rank",
    Severity.ERROR,
    signatures=(
        r"must NOT be specified on non-(destination|source) ranks",
        r"must be specified on (destination|source) rank",
    ),
)
@with_histories(MistakeKind.LIST_ON_EVERY_RANK)
def gather_list_on_wrong_rank(script: Script) -> Iterator[Finding]:
    """gather_list or scatter_list is on the wrong rank.

    ## Why it matters
    torch raises `Argument ``gather_list`` must NOT be specified on non-destination ranks` on the other ranks, or
    `must be specified on destination rank` on that one. The remaining ranks wait and fail with `Connection closed by
    peer`.

    ## Fix
    Pass the list on the destination (gather) or the source (scatter) only, and None on the other ranks.

    ## Example
        # before
        outs = [torch.zeros_like(t) for _ in range(world_size)]
        dist.gather(t, gather_list=outs, dst=0)
        # ValueError: Argument ``gather_list`` must NOT be specified on non-destination ranks

        # after
        outs = [torch.zeros_like(t) for _ in range(world_size)] if rank == 0 else None
        dist.gather(t, gather_list=outs, dst=0)
    """
    for module in modules(script):
        for name, root in (("dist.gather", "dst"), ("dist.scatter", "src")):
            for call in module.calls(name):
                position, keyword = _LISTS[name]
                given = argument(call, int(position), str(keyword))
                if has_more(call) or argument(call, 3, "group") is not None:
                    continue
                yield from _wrong(module, call, given, argument(call, 2, root), str(keyword), root)


def _is_of_program(module: Module, call: ast.Call) -> bool:
    """Whether the ranks that reach a call are known: not in a helper that only other files call."""
    waiting, visited = [module.index.function_of(call)], set[Function | None]()
    while waiting:
        function = waiting.pop()
        if function is None or any(s.function is function for s in module.spawns):
            return True
        if function not in visited:
            visited.add(function)
            waiting += [module.index.function_of(c) for c in module.callers.get(function, ())]
    return False


def _wrong(
    module: Module, call: ast.Call, given: ast.expr | None, root: ast.expr | None, keyword: str, word: str
) -> Iterator[Finding]:
    places = rank_contexts(module, module.index.function_of(call))
    reaches = ranks_reaching(module, call)
    if reaches is None or (given is None and not _is_of_program(module, call)):
        return
    roots = each_rank(module, root, places, trusting=True) if root is not None else [0] * len(places)
    if len(set(map(repr, roots))) != 1 or type(roots[0]) is not int:
        return
    lists: list[object] = [None] * len(places) if given is None else each_rank(module, given, places, trusting=True)
    filled = [_is_filled(v) for v in lists]
    if given is not None and _is_cut_up(module, given):
        filled = [True] * len(places)
    for place, is_filled, is_here in zip(places, filled, reaches, strict=True):
        if is_here and is_filled is not None and is_filled is not (place.rank == roots[0]):
            if not is_filled:
                message = f"{keyword} is missing on rank {place.rank}, which is {word}"
            elif all(reaches):
                message = f"{keyword} is passed on every rank, but only {word}={roots[0]} may have it"
            else:
                message = f"{keyword} is passed on rank {place.rank}, but only {word}={roots[0]} may have it"
            misplaced = given if is_filled else None
            edits: tuple[Edit, ...] = _lacking(module, call, given, all(reaches), roots[0])
            if misplaced is not None and not all(reaches):
                edits = without_argument(module, call, misplaced)
            elif misplaced is not None:
                only = f"{code(module, misplaced, 200)} if dist.get_rank() == {roots[0]} else None"
                edits = (replace(module, misplaced, only),)
            yield point(
                module,
                misplaced or call,
                message,
                f"{keyword} on rank {roots[0]} only",
                label=f"ValueError on rank {place.rank}, the others wait",
                fix=f"Pass {keyword} on rank {roots[0]} only, and None on the other ranks.",
                edits=edits,
            )
            return


def _lacking(module: Module, call: ast.Call, given: ast.expr | None, by_all: bool, root: int) -> tuple[Edit, ...]:
    """Add the list that a gather needs on its destination, or swap the two arms of a conditional expression."""
    if isinstance(given, ast.IfExp):
        one, two = code(module, given.body, 200), code(module, given.orelse, 200)
        return (replace(module, given, f"{two} if {code(module, given.test, 200)} else {one}"),)
    tensor = argument(call, 0, "tensor")
    if module.names.of(call.func) != "dist.gather" or given is not None or tensor is None:
        return ()
    dist, name = dist_of(module), code(module, tensor, 200)
    text = f"gather_list=[torch.zeros_like({name}) for _ in range({dist}.get_world_size())]"
    only = f" if {dist}.get_rank() == {root} else None" if by_all else ""
    return (*imported(module, "torch", "import torch"), with_keyword(module, call, f"{text}{only}"))


def _is_cut_up(module: Module, given: ast.expr) -> bool:
    """Whether the value is `tensor.chunk(n)`, also as a list: never empty."""
    made = last_value(module, given)
    if isinstance(made, ast.Call) and module.names.of(made.func) in ("list", "tuple") and len(made.args) == 1:
        made = made.args[0]
    func = made.func if isinstance(made, ast.Call) else None
    return isinstance(func, ast.Attribute) and func.attr in ("chunk", "split", "unbind", "tensor_split")


def _is_filled(values: object) -> bool | None:
    if values is None:
        return False
    return bool(values) if isinstance(values, (list, tuple)) else None


@cause(
    "SCRIPT041",
    "tensor-list-length-literal",
    Severity.ERROR,
    signatures=(r"Incorrect (input|output) list size \d+",),
)
def tensor_list_length_literal(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """A tensor list has a fixed length instead of the world size.

    ## Why it matters
    With another world size torch raises `ProcessGroupGloo::scatter: Incorrect input list size 4. Input list size
    should be 2`. The ranks that are not the root wait.

    ## Fix
    Build the list from `dist.get_world_size()`.

    ## Example
        # before
        parts = [torch.ones(1) for _ in range(4)]
        dist.scatter(out, scatter_list=parts, src=0)
        # ProcessGroupGloo::scatter: Incorrect input list size 4. Input list size should be 2

        # after
        parts = [torch.ones(1) for _ in range(dist.get_world_size())]
        dist.scatter(out, scatter_list=parts, src=0)
    """
    for module in modules(script):
        start = start_of(module, launch)
        for name, (position, keyword) in _LISTS.items():
            for call in module.calls(name):
                given = argument(call, position, keyword)
                if given is None or argument(call, GROUP_POSITION.get(name), "group") is not None:
                    continue
                length = _literal_length(module, given)
                world = _world_of(module, start.world if start is not None else None)
                if length is not None and length > 1 and world != length:
                    limit = f"but the world has {world} ranks" if world else "whatever the world size"
                    yield point(
                        module,
                        given,
                        f"{code(module, given, 40)} has {length} tensors, {limit}",
                        "a list of dist.get_world_size() tensors",
                        label="Incorrect list size: one tensor per rank",
                        severity=None if world else Severity.WARNING,
                        edits=safe(_counted(module, given)),
                    )


def _counted(module: Module, given: ast.expr) -> tuple[Edit, ...]:
    """Build the list for any world size, if all its tensors are built the same way."""
    made = last_value(module, given)
    texts = {ast.unparse(e) for e in made.elts} if isinstance(made, (ast.List, ast.Tuple)) else set()
    turns = made.generators[0].iter if isinstance(made, ast.ListComp) and len(made.generators) == 1 else None
    if isinstance(turns, ast.Call) and len(turns.args) == 1 and module.names.of(turns.func) == "range":
        return (replace(module, turns.args[0], f"{dist_of(module)}.get_world_size()"),)
    if isinstance(made, ast.BinOp):
        return (replace(module, made.right, f"{dist_of(module)}.get_world_size()"),)
    if isinstance(made, ast.List) and texts == {"None"}:
        return (replace(module, made, f"[None] * {dist_of(module)}.get_world_size()"),)
    if not isinstance(made, (ast.List, ast.Tuple)) or len(texts) != 1 or not isinstance(made.elts[0], ast.Call):
        return ()
    return (replace(module, made, f"[{texts.pop()} for _ in range({dist_of(module)}.get_world_size())]"),)


def _world_of(module: Module, started: int | None) -> int | None:
    places = rank_contexts(module)
    fixed = {p.node_rank for p in places} == {0}
    return started or (len(places) if fixed else None)


def _literal_length(module: Module, node: ast.expr) -> int | None:
    """The length that the source fixes: a list of elements, or a comprehension over the range of a number."""
    made = last_value(module, node)
    if isinstance(made, (ast.List, ast.Tuple)) and made.elts and not any(isinstance(e, ast.Starred) for e in made.elts):
        return len(made.elts)
    if isinstance(made, ast.BinOp) and isinstance(made.op, ast.Mult) and isinstance(made.left, ast.List):
        count = _number(module, made.right)
        return None if count is None else len(made.left.elts) * count
    if isinstance(made, ast.ListComp) and len(made.generators) == 1:
        items = made.generators[0].iter
        if isinstance(items, ast.Call) and module.names.of(items.func) == "range" and len(items.args) == 1:
            return _number(module, items.args[0])
    return None


def _number(module: Module, node: ast.expr) -> int | None:
    """An integer that is in the file itself."""
    number = value(module, node) if is_literal(module, node) else None
    return number if type(number) is int else None


@cause("SCRIPT042", "gather-list-aliased", Severity.ERROR)
def gather_list_aliased(script: Script) -> Iterator[Finding]:
    """all_gather gets one tensor several times.

    ## Why it matters
    `[t] * world_size` holds one tensor many times, so that every entry shows what was received last. There is no
    error.

    ## Fix
    Create one tensor per rank: `[torch.zeros_like(t) for _ in range(world_size)]`.

    ## Example
        # before
        outs = [torch.zeros_like(t)] * world_size
        dist.all_gather(outs, t)

        # after
        outs = [torch.zeros_like(t) for _ in range(world_size)]
        dist.all_gather(outs, t)
    """
    for module in modules(script):
        for name in ("dist.all_gather", "dist.gather"):
            for call in module.calls(name):
                position, keyword = _LISTS[name]
                given = argument(call, int(position), str(keyword))
                made = last_value(module, given) if given is not None else None
                made = made.body if isinstance(made, ast.IfExp) else made
                if isinstance(made, ast.ListComp) and _is_one(module, made):
                    loop = made.generators[0]
                    text = f"[{_copy(module, made.elt)} for {code(module, loop.target)} in {code(module, loop.iter)}]"
                    yield _one_tensor(module, made, text)
                if not isinstance(made, ast.BinOp) or not isinstance(made.op, ast.Mult):
                    continue
                sides = [made.left, made.right]
                one = next((s for s in sides if isinstance(s, ast.List) and len(s.elts) == 1), None)
                if one is not None and not isinstance(one.elts[0], ast.Constant):
                    count = sides[1 - sides.index(one)]
                    text = f"[{_copy(module, one.elts[0])} for _ in range({code(module, count)})]"
                    yield _one_tensor(module, made, text)


def _is_one(module: Module, made: ast.ListComp) -> bool:
    """Whether it is `[t for _ in range(n)]`: the element is a name that the comprehension does not bind."""
    bound = {n.id for g in made.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
    return isinstance(made.elt, ast.Name) and made.elt.id not in bound and len(made.generators) == 1


def _one_tensor(module: Module, made: ast.expr, text: str) -> Finding:
    return point(
        module,
        made,
        f"{code(module, made)} repeats one tensor",
        text,
        label="every entry gets the same value",
        fix=f"Write `{text}`.",
        edits=safe((replace(module, made, text),)),
    )


def _copy(module: Module, node: ast.expr) -> str:
    return code(module, node, 200) if isinstance(node, ast.Call) else f"torch.zeros_like({code(module, node, 200)})"


@gather_list_aliased.look
def aliased_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """One tensor several times in an output list."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.ALIASED,
        lambda o, who: f"the output list of {o.values['operation']}() has one tensor {o.values['count']} times",
        label="all entries share the memory of one tensor",
        expected="a tensor for each rank",
    )
