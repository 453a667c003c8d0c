"""SCRIPT594 and SCRIPT595: trackers and run folders that every rank creates for itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import with_histories
from ddpdoctor.rules.script.pointing import after, code, dist_of, point
from ddpdoctor.rules.script.rank_branches import in_rank_branch
from ddpdoctor.rules.script.script_questions import has_more, is_distributed, is_test, names_in
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.interpreter.loops import is_synchronized
from ddpdoctor.scripts.simulation.joint_paths import program_simulations
from ddpdoctor.scripts.syntax.index import Bound
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal

_TRACKERS = ("wandb.init", "mlflow.start_run", "neptune.init_run", "clearml.Task.init")
_CHOSEN = {"mode", "group", "disabled", "id", "name", "resume", "job_type"}
_CLOCKS = (
    *("time.strftime", "time.time", "time.ctime", "time.asctime", "time.time_ns", "uuid.uuid4", "uuid.uuid1"),
    *(
        "datetime.datetime.now",
        "datetime.now",
        "datetime.datetime.today",
        "datetime.datetime.utcnow",
        "datetime.date.today",
    ),
)


@cause("SCRIPT594", "tracker-on-every-rank", Severity.WARNING)
def tracker_on_every_rank(script: Script) -> Iterator[Finding]:
    """Every rank starts a run of the experiment tracker.

    ## Why it matters
    A job with 8 ranks appears as 8 runs, each with the metrics of one rank, and logs 8 times as much.

    ## Fix
    Start the run on rank 0 only: `if dist.get_rank() == 0:`.

    With wandb, `group=` joins the runs of all ranks on purpose.

    ## Example
        # before
        wandb.init(project="gpt")

        # after
        if dist.get_rank() == 0:
            wandb.init(project="gpt")
    """
    for module in modules(script):
        if not is_distributed(module) or module.frameworks or is_test(module) or not module.is_program:
            continue
        for call in module.calls(*_TRACKERS):
            chosen = {k.arg for k in call.keywords} & _CHOSEN
            if chosen or has_more(call) or in_rank_branch(module, call) or _is_optional(module, call):
                continue
            if module.spawns and not _is_spawned(module, call):
                continue
            yield point(
                module,
                call,
                f"every rank calls {code(module, call.func)}(): one run per rank",
                "rank 0 only",
                label="one run per rank",
            )


def _is_optional(module: Module, node: ast.AST) -> bool:
    """Whether any condition decides about a call, or the function around it is never called in this file."""
    for parent, child in module.index.enclosing(node):
        is_branch = isinstance(parent, (ast.If, ast.IfExp, ast.Try)) and child is not getattr(parent, "test", None)
        if is_branch and "__name__" not in ast.unparse(getattr(parent, "test", parent)):
            return True
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and not _is_spawned(module, node):
            callers = module.callers.get(parent, [])
            return not callers or any(_is_optional(module, c) or in_rank_branch(module, c) for c in callers)
    return False


def _is_spawned(module: Module, node: ast.AST) -> bool:
    function = module.index.function_of(node)
    return any(s.function is function for s in module.spawns)


@cause("SCRIPT595", "run-folder-differs-between-ranks", Severity.WARNING)
@with_histories(MistakeKind.FOLDER_DIFFERS)
def run_folder_differs_between_ranks(script: Script) -> Iterator[Finding]:
    """Each rank names the run folder from its own clock or random number.

    ## Why it matters
    Ranks that pass a second boundary differently write into different folders. A checkpoint lacks the shards of one
    rank, which is noticed when it is loaded.

    ## Fix
    Make the name on rank 0, and broadcast it with broadcast_object_list.

    ## Example
        # before
        folder = time.strftime("runs/%H%M%S")
        os.makedirs(folder, exist_ok=True)

        # after
        box = [time.strftime("runs/%H%M%S")]
        dist.broadcast_object_list(box, src=0)
        os.makedirs(box[0], exist_ok=True)
    """
    for module in modules(script):
        if not is_distributed(module) or module.frameworks or is_test(module) or not module.is_program:
            continue
        for made, name in _named_by_clock(module):
            use = _written_by_all(module, name)
            if use is not None:
                yield point(
                    module,
                    made,
                    f"{name.id} is named from the clock of each rank, and all ranks write there (line {use.lineno})",
                    "one name, broadcast by rank 0",
                    label="ranks may write into different folders",
                    edits=_broadcast(module, made, name),
                )


def _named_by_clock(module: Module) -> Iterator[tuple[ast.Assign, ast.Name]]:
    """Assignments whose value contains the clock or a random name, and no rank."""
    for node in module.index.parents:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if not isinstance(node, ast.Assign) or not isinstance(target, ast.Name):
            continue
        called = [module.names.of(n.func) for n in ast.walk(node.value) if isinstance(n, ast.Call)]
        is_text = any(isinstance(n, (ast.JoinedStr, ast.Constant)) for n in ast.walk(node.value))
        if (
            any(name in _CLOCKS for name in called)
            and is_text
            and not any("rank" in n.lower() for n in names_in(node.value))
        ):
            yield node, target


def _written_by_all(module: Module, name: ast.Name) -> ast.Call | None:
    """A call on all ranks that creates a folder or file with this name, unless the name was broadcast before."""
    runs = [r for r in program_simulations(module) if len(r.traces) > 1]
    bound = module.names.bindings(name.id, module.index.scope(name))
    if bound is None or any(b.how is not Bound.VALUE for b in bound[1]) or len(bound[1]) != 1:
        return None
    for run in runs:
        for event in run.traces[1].events:
            if event.name not in ("os.makedirs", "os.mkdir", "torch.save") or event.frame.module is not module:
                continue
            path = event.argument(1 if event.name == "torch.save" else 0, "name", "path", "f")
            used = (
                [n for n in ast.walk(path) if isinstance(n, ast.Name) and n.id == name.id] if path is not None else []
            )
            is_own = used and module.names.bindings(name.id, module.index.scope(used[0])) == bound
            function = module.index.function_of(used[0]) if used else None
            if is_own and not is_synchronized(module, function or module.tree, used[0]):
                return event.call
    return None


def _broadcast(module: Module, made: ast.Assign, name: ast.Name) -> tuple[Edit, ...]:
    """Broadcast the name right after it is made, if the process group already exists."""
    function = module.index.function_of(made)
    inits = [c for c in module.calls("dist.init_process_group") if module.index.function_of(c) is function]
    if not any(c.lineno < made.lineno for c in inits):
        return ()
    dist = dist_of(module)
    indent = " " * made.col_offset
    lines = (f"shared = [{name.id}]", f"{dist}.broadcast_object_list(shared, src=0)", f"{name.id} = shared[0]")
    return (after(module, made, f"\n{indent}".join(lines)),)


@run_folder_differs_between_ranks.look
def folder_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Each rank makes a folder of its own."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.FOLDERS_DIFFER,
        lambda o, who: "every rank creates its own run folder",
        label="the name differs between ranks",
        expected="a name that rank 0 chooses and broadcasts",
    )


@tracker_on_every_rank.look
def tracker_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """All ranks start a run."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.TRACKERS,
        lambda o, who: f"every rank calls {o.values['what']}(): one run per rank",
        label="one run per rank",
        expected="rank 0 only",
    )
