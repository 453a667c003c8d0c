"""SCRIPT017, SCRIPT018, and SCRIPT020: the process group from init to destroy."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import CausalStage, Edit, Finding, Severity
from ddpdoctor.late_pattern import pattern
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import after, code, dist_of, moved, point, under
from ddpdoctor.rules.script.script066_067_started_processes import start_method
from ddpdoctor.rules.script.script_questions import backends, in_try, is_test, last_value
from ddpdoctor.scripts.interpreter.conditions import conditions
from ddpdoctor.scripts.simulation.joint_paths import is_default_group_collective, program_simulations
from ddpdoctor.scripts.simulation.trace import Event, Simulation
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log, LogLine, Traceback
    from ddpdoctor.facts.rehearsal import Rehearsal

INIT = "dist.init_process_group"
DESTROY = "dist.destroy_process_group"
_FRAMEWORK = {
    "Accelerator": "Accelerator()",
    "deepspeed.init_distributed": "deepspeed.init_distributed",
    "deepspeed.initialize": "deepspeed.initialize",
}
_CLEANS = pattern(r"(?i)clean|teardown|tear_down|destroy|shutdown|finali[sz]e|close|end_dist|exit")


def _first_tracks(module: Module) -> Iterator[tuple[Simulation, list[Event]]]:
    for run in program_simulations(module):
        yield run, run.traces[0].events


def _shown(module: Module, event: Event) -> ast.Call | None:
    """The call in this file that leads to an event."""
    here = [c for c in event.chain if module.index.parents.get(c) is not None]
    return here[-1] if here else None


@cause(
    "SCRIPT017",
    "init-twice",
    Severity.ERROR,
    signatures=(r"initialize the default process group twice",),
)
def init_twice(script: Script) -> Iterator[Finding]:
    """The default process group is initialized twice.

    ## Why it matters
    It fails with `ValueError: trying to initialize the default process group twice!`. A framework or a helper has
    already initialized it.

    ## Fix
    Keep one of the two calls, or guard this one with `if not dist.is_initialized():`.

    ## Example
        # before
        accelerator = Accelerator()
        dist.init_process_group("nccl")
        # ValueError: trying to initialize the default process group twice!

        # after
        accelerator = Accelerator()
        if not dist.is_initialized():
            dist.init_process_group("nccl")
    """
    for module in modules(script):
        reported: set[ast.AST] = set()
        for _, events in _first_tracks(module):
            before: Event | None = None
            for event in events:
                if event.name == DESTROY:
                    before = None
                elif event.name == INIT and before is not None:
                    at = _second_time(module, event, before)
                    if at is not None and at not in reported and not in_try(module, at):
                        reported.add(at)
                        yield _second(module, at, before)
                elif event.name == INIT or event.name in _FRAMEWORK:
                    before = before or event


def _second_time(module: Module, event: Event, first: Event) -> ast.Call | None:
    """The call that leads to an event for the second time: if both come from one line, the call of its function."""
    if event.call is not first.call:
        return _shown(module, event)
    here = [c for c in event.chain if c not in first.chain and module.index.parents.get(c) is not None]
    return here[-1] if here else _shown(module, event)


def _second(module: Module, at: ast.Call, first: Event) -> Finding:
    by = _FRAMEWORK.get(first.name, "init_process_group")
    return point(
        module,
        at,
        f"process group is initialized twice (first: {by} in line {first.call.lineno})",
        "one initialization",
        label="ValueError: already initialized",
        edits=under(module, module.index.statement(at), f"if not {dist_of(module)}.is_initialized():"),
    )


@cause(
    "SCRIPT018",
    "process-group-not-initialized",
    Severity.ERROR,
    stage=CausalStage.DEATH,
    signatures=(
        r"Default process group (?:has not been|is not) initialized",
        r"(?:model|tensor model|pipeline[_ ]model|data|expert|context)[_ ]parallel group is not initialized",
    ),
)
def process_group_not_initialized(script: Script) -> Iterator[Finding]:
    """A distributed call runs before init_process_group.

    ## Why it matters
    It fails with `ValueError: Default process group has not been initialized, please make sure to call
    init_process_group`. A sampler, a wrapper, or get_rank() runs before init, or after destroy.

    ## Fix
    Call it after init_process_group and before destroy_process_group.

    Code that also runs without a process group checks `dist.is_available() and dist.is_initialized()` first.

    ## Example
        # before
        sampler = DistributedSampler(dataset)
        # ValueError: Default process group has not been initialized, ...
        dist.init_process_group("nccl")

        # after
        dist.init_process_group("nccl")
        sampler = DistributedSampler(dataset)
    """
    for module in modules(script):
        reported: set[ast.AST] = set()
        for _, events in _first_tracks(module):
            for event, reason in _outside(events):
                at = _shown(module, event)
                if at is not None and at not in reported and not in_try(module, at) and not _asks_first(module, event):
                    reported.add(at)
                    yield point(
                        module,
                        at,
                        f"{code(module, at.func)}() needs the process group, which {reason}",
                        "after init_process_group",
                        label="process group has not been initialized",
                        edits=_in_time(module, at, events),
                    )


def _in_time(module: Module, at: ast.Call, events: list[Event]) -> tuple[Edit, ...]:
    """Move init_process_group before the call, or destroy_process_group after it, in the same block."""
    calls = [e.call for e in events if e.name in (INIT, DESTROY) and e.call in module.index.parents]
    statement = module.index.statement(at)
    for call in calls:
        other = module.index.statement(call)
        is_init = module.names.of(call.func) == INIT
        names = {n.id for n in ast.walk(call) if isinstance(n, ast.Name)}
        between = [s for s in module.index.parents if isinstance(s, ast.Assign) and at.lineno <= s.lineno < call.lineno]
        if not isinstance(other, ast.Expr) or is_init is (call.lineno < at.lineno):
            continue
        if not any(n.id in names for s in between for t in s.targets for n in ast.walk(t) if isinstance(n, ast.Name)):
            return moved(module, other, statement, follows=not is_init)
    return ()


def _outside(events: list[Event]) -> Iterator[tuple[Event, str]]:
    """Events that need the process group and are before its init or after its destroy."""
    inits = [at for at, e in enumerate(events) if e.name == INIT or e.name in _FRAMEWORK]
    if not inits:
        return
    for event in events[: inits[0]]:
        if _needs_group(event):
            yield event, f"is initialized only in line {events[inits[0]].call.lineno}"
    ends = [at for at, e in enumerate(events) if e.name == DESTROY and e.argument(0, "group") is None]
    if ends and ends[-1] > inits[-1]:
        for event in events[ends[-1] + 1 :]:
            if _needs_group(event):
                yield event, f"was destroyed in line {events[ends[-1]].call.lineno}"


def _asks_first(module: Module, event: Event) -> bool:
    """Whether a condition around a call, or an exit before it, checks whether the process group exists."""
    inner = conditions(event.frame.module, event.call, event.frame.module.index.statement(event.call))
    tests = [getattr(t.node, "test", t.node) for t in event.tests] + [test for test, _ in inner]
    if any(_asks(event.frame.module, test) or _asks(module, test) for test in tests):
        return True
    return any(_left_unless(owner, call) for owner in {module, event.frame.module} for call in event.chain)


def _left_unless(module: Module, call: ast.Call) -> bool:
    """Whether the function around a call returns before it if there is no process group."""
    function = module.index.function_of(call) if call in module.index.parents else None
    earlier = [s for s in function.body if s.lineno < call.lineno] if function is not None else []
    return any(isinstance(s, ast.If) and _asks(module, s.test) for s in earlier)


def _asks(module: Module, test: ast.AST, depth: int = 0) -> bool:
    """Whether an expression checks the process group, directly or through a name or a function of this project."""
    for node in ast.walk(test):
        if isinstance(node, ast.Call) and module.names.of(node.func) in ("dist.is_initialized", "dist.is_available"):
            return True
        target = module.target(node) if isinstance(node, ast.Call) and depth < 3 else None
        if target is not None and _asks(target.module, target.function, depth + 1):
            return True
        held = last_value(module, node) if isinstance(node, ast.Name) and depth < 3 else None
        if held is not None and held is not node and _asks(module, held, depth + 1):
            return True
    return False


def _needs_group(event: Event) -> bool:
    if event.name == "DistributedSampler":
        return event.argument(1, "num_replicas") is None or event.argument(2, "rank") is None
    if event.name in ("dist.get_rank", "dist.get_world_size"):
        return not event.call.args and not event.call.keywords
    return is_default_group_collective(event) and event.name.startswith(("dist.", "DDP")) and "mesh" not in event.name


@cause(
    "SCRIPT020",
    "process-group-not-destroyed",
    Severity.WARNING,
    signatures=(r"terminate called without an active exception",),
)
def process_group_not_destroyed(script: Script) -> Iterator[Finding]:
    """The script never calls destroy_process_group.

    ## Why it matters
    After a good training a rank sometimes ends with `terminate called without an active exception` (exit code -6),
    and torchrun reports FAILED. NCCL warns at every exit: `process group has NOT been destroyed before it is being
    destructed`.

    ## Fix
    Call `dist.destroy_process_group()` at the end of the program.

    ## Example
        # before
        def main():
            dist.init_process_group("gloo")
            train()
        # terminate called without an active exception

        # after
        def main():
            dist.init_process_group("gloo")
            train()
            dist.destroy_process_group()
    """
    for module in modules(script):
        if "destroy_process_group" in module.text or module.frameworks or is_test(module) or _may_clean(module):
            continue
        for run, events in _first_tracks(module):
            event = next((e for e in events if e.name == INIT), None)
            at = _shown(module, event) if event is not None else None
            if at is not None:
                yield point(
                    module,
                    at,
                    "init_process_group() without destroy_process_group() at the end of the program",
                    "dist.destroy_process_group()",
                    label="a good run may exit with -6",
                    severity=None if _is_gloo(module) and not _is_forked(module, run) else Severity.NOTE,
                    edits=_destroyed(module, run),
                )
                break


def _is_gloo(module: Module) -> bool:
    """Whether the backend is the one with which good runs were seen to end with an error."""
    used = backends(module)
    return bool(used) and all("gloo" in name for name in used or ())


def _is_forked(module: Module, run: Simulation) -> bool:
    """Whether the process is forked: it ends without the destructors that fail."""
    return any(s.function is run.root and start_method(module, s) == "fork" for s in module.spawns)


def _may_clean(module: Module) -> bool:
    """Whether an imported function has a name that suggests that it cleans up."""
    return any(
        _CLEANS.search(getattr(call.func, "attr", getattr(call.func, "id", "")))
        for call in module.index.calls
        if module.target(call) is None and not (module.names.of(call.func) or "").startswith(("os.", "sys.", "exit"))
    )


def _destroyed(module: Module, run: Simulation) -> tuple[Edit, ...]:
    """Add the call at the end of the function that joins the group."""
    body = getattr(run.root, "body", [])
    if isinstance(run.root, ast.Module):
        first = next((e.chain[0] for e in run.traces[0].events if e.name == INIT), None)
        block = module.index.parents.get(module.index.statement(first)) if first is not None else None
        body = getattr(block, "body", [])
    if not body or isinstance(body[-1], ast.Return):
        return ()
    return (after(module, body[-1], f"{dist_of(module)}.destroy_process_group()"),)


ABORTED = (r"terminate called without an active exception",)


@process_group_not_destroyed.look
def not_destroyed(log: Log) -> Iterator[Finding]:
    """C++ prints this after any error as well: it is about the end of the script only if no error came before."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import signed

    for finding in signed(process_group_not_destroyed, log):
        if not all(_is_after_an_error(log, line) for line in matching_lines(log, ABORTED)):
            yield finding


def _is_after_an_error(log: Log, line: LogLine) -> bool:
    from ddpdoctor.rules.log.signatures import explained

    errors: list[LogLine | Traceback] = [*explained(log, "cause", "umbrella", "consequence"), *log.tracebacks]
    return any(
        error.source == line.source and error.number < line.number and (error.who.rank in (None, line.who.rank))
        for error in errors
    )


@process_group_not_initialized.look
def group_missing(log: Log) -> Iterator[Finding]:
    """The process group is missing for anything but batch norm."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.signatures import finding_of
    from ddpdoctor.rules.log.world_sizes import NO_GROUP, is_of_batch_norm

    lines = [line for line in matching_lines(log, NO_GROUP) if not is_of_batch_norm(log, line)]
    if lines:
        yield finding_of(log, lines, "A distributed call runs before init_process_group", blames_speaker=True)


@init_twice.look
def second_init(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A second init_process_group."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.SECOND_INIT,
        lambda o, who: f"init_process_group is called a second time ({who})",
        label="the default group already exists",
        expected="one call",
    )


@process_group_not_destroyed.look
def not_destroyed_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """The script ends with its group."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.NO_DESTROY,
        lambda o, who: "the script ends without destroy_process_group()",
        label="call dist.destroy_process_group() at the end",
        expected="destroy_process_group()",
    )
