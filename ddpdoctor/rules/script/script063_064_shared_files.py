"""SCRIPT063 and SCRIPT064: files and folders that several ranks create, change, or download."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import after, before, code, dist_of, point, replace, safe, with_keyword
from ddpdoctor.rules.script.rank_branches import in_rank_branch, runs_one_rank_first
from ddpdoctor.rules.script.script059_to_061_checkpoints import PER_RANK, by_all, names_a_rank, one_path
from ddpdoctor.rules.script.script_questions import (
    argument,
    each_rank,
    has_more,
    in_try,
    is_distributed,
    last_value,
    names_in,
    value,
)
from ddpdoctor.scripts.interpreter.abstract_values import Unknown
from ddpdoctor.scripts.simulation.joint_paths import is_default_group_collective, program_simulations
from ddpdoctor.scripts.simulation.trace import Event, RankTrace
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log
    from ddpdoctor.facts.rehearsal import Rehearsal


@cause("SCRIPT063", "shared-file-race", Severity.ERROR, signatures=(r"FileExistsError: \[Errno 17\]",))
def shared_file_race(script: Script) -> Iterator[Finding]:
    """One rank changes a file while the others read it.

    ## Why it matters
    A random rank fails with `FileExistsError`, reads a half-written cache, or does not find a file. The next run
    works, because the file exists by then.

    ## Fix
    Let rank 0 do it, followed by a barrier, or use `os.makedirs(path, exist_ok=True)`.

    Write a shared file to a temporary name, then rename it.

    ## Example
        # before
        if not os.path.exists("out"):
            os.makedirs("out")
        # rank 1: FileExistsError: [Errno 17] File exists: 'out'

        # after
        os.makedirs("out", exist_ok=True)
    """
    for module in modules(script):
        yield from _folders_of_rank_zero(module)
        for name in ("os.makedirs", "os.mkdir", "shutil.rmtree", "pathlib.Path.mkdir"):
            for _, events in by_all(module, name):
                call = events[0].call
                relaxed = argument(call, 2 if name == "os.makedirs" else 1, "exist_ok", "ignore_errors")
                if relaxed is not None or in_try(module, call) or in_rank_branch(module, call) or has_more(call):
                    continue
                if runs_one_rank_first(module, call) or _is_there(module, call):
                    continue
                if (
                    _one_folder(module, call)
                    if name == "pathlib.Path.mkdir"
                    else one_path(module, events, 0, "name", "path")
                ):
                    edits = _relaxed(module, call, name)
                    is_removal = name == "shutil.rmtree"
                    yield point(
                        module,
                        call,
                        f"every rank calls {code(module, call, 40)} on the same path",
                        "exist_ok=True",
                        label="the second rank fails, even after exists()",
                        edits=edits if is_removal else safe(edits),
                    )


def _folders_of_rank_zero(module: Module) -> Iterator[Finding]:
    """A folder that some ranks create and others write into, without a collective of all ranks in between."""
    reported: set[ast.AST] = set()
    for run in program_simulations(module) if is_distributed(module) else ():
        for made, earlier in _steps(run.traces[0], "os.makedirs"):
            folder = made.read(made.argument(0, "name"))
            if not run.divergent(made.tests) or not isinstance(folder, str) or not folder:
                continue
            for trace in run.traces[1:]:
                for written, passed in _steps(trace, "torch.save"):
                    path = written.read(written.argument(1, "f"))
                    is_inside = isinstance(path, str) and path.startswith(folder.rstrip("/") + "/")
                    if not is_inside or passed > earlier or written.call in reported or _is_elsewhere(module, written):
                        continue
                    if any(e.name == "os.makedirs" for e in trace.events):
                        continue
                    reported.add(written.call)
                    yield point(
                        module,
                        written.call,
                        f"rank {trace.context.rank} writes into {folder}, which rank 0 creates (line {made.call.lineno})",
                        "a barrier in between",
                        label="the folder may not exist yet",
                        fix="Call `dist.barrier()` on all ranks after it is created.",
                    )


def _steps(trace: RankTrace, name: str) -> Iterator[tuple[Event, int]]:
    """The events of this name, each with the number of collectives of all ranks before it."""
    passed = 0
    for event in trace.events:
        if event.name == name:
            yield event, passed
        elif is_default_group_collective(event) and event.name not in ("forward", "backward"):
            passed += 1


def _is_elsewhere(module: Module, event: Event) -> bool:
    """Whether an event is in another file."""
    return event.call not in module.index.parents


def _is_there(module: Module, call: ast.Call) -> bool:
    """Whether another line creates the same folder with exist_ok=True, so that this line finds it."""
    makers = (*module.calls("os.makedirs"), *module.method_calls.get("mkdir", ()))
    relaxed = [m for m in makers if value(module, argument(m, 2, "exist_ok")) is True]
    return _asks_first(module, call) and _folder(module, call) in {_folder(module, m) for m in relaxed}


def _asks_first(module: Module, call: ast.Call) -> bool:
    """Whether a condition around a call checks whether the folder exists."""
    tests = (p.test for p, child in module.index.enclosing(call) if isinstance(p, ast.If) and child in p.body)
    return any(names_in(test) & {"exists", "isdir", "is_dir"} for test in tests)


def _folder(module: Module, call: ast.Call) -> str:
    """The path of a call that creates a folder, as it is written, without `Path(...)` around it."""
    is_function = module.names.of(call.func) is not None
    path = argument(call, 0, "name", "path") if is_function else getattr(call.func, "value", None)
    made = last_value(module, path) if path is not None else None
    if isinstance(made, ast.Call) and module.names.of(made.func) == "pathlib.Path" and len(made.args) == 1:
        made = made.args[0]
    return ast.unparse(made) if made is not None else ""


def _one_folder(module: Module, call: ast.Call) -> bool:
    """Whether a Path is the same on all ranks."""
    base = call.func.value if isinstance(call.func, ast.Attribute) else call
    made = last_value(module, base)
    paths = each_rank(module, made, trusting=True) if made is not None else [Unknown.VARIES]
    return made is not None and Unknown.VARIES not in paths and not names_in(made) & PER_RANK


def _relaxed(module: Module, call: ast.Call, name: str) -> tuple[Edit, ...]:
    """The same call, which does not fail if another rank was first."""
    if name == "shutil.rmtree":
        return (with_keyword(module, call, "ignore_errors=True"),)
    if name == "os.mkdir":
        path = code(module, call.args[0], 200) if len(call.args) == 1 else ""
        return (replace(module, call, f"os.makedirs({path}, exist_ok=True)"),) if path else ()
    return (with_keyword(module, call, "exist_ok=True"),)


@cause(
    "SCRIPT064",
    "download-race",
    Severity.ERROR,
    signatures=(
        r"module 'transformers_modules\.[^']*' has no attribute",
        r"unable to open file[^\n]{0,300}(safetensors|model)",
    ),
)
def download_race(script: Script) -> Iterator[Finding]:
    """All ranks download into one cache at the same time.

    ## Why it matters
    On a fresh machine the ranks overwrite each other's files: `File not found or corrupted`, `unable to open file`,
    or a module without its attribute. The second run works, because the files exist.

    ## Fix
    Download before the job, or on rank 0 of each node first, followed by a barrier.

    ## Example
        # before
        data = torchvision.datasets.MNIST("data", download=True)
        # RuntimeError: File not found or corrupted.

        # after
        if local_rank == 0:
            torchvision.datasets.MNIST("data", download=True)
        dist.barrier()
        data = torchvision.datasets.MNIST("data")
    """
    for module in modules(script):
        if not is_distributed(module) or module.frameworks:
            continue
        for call in module.index.calls:
            name = module.names.of(call.func) or ""
            loads = "torchvision.datasets" in name and value(module, argument(call, None, "download")) is True
            if not loads and name not in _DOWNLOADS:
                continue
            folder = argument(call, 0 if loads else 1, "root", "filename", "dst", "out", "output")
            if folder is not None and names_a_rank(module, folder):
                continue
            if in_rank_branch(module, call) or _at_spawn_parent(module, call) or runs_one_rank_first(module, call):
                continue
            yield point(
                module,
                call,
                "every rank downloads into the same folder at the same time",
                "download=(local_rank == 0), with a barrier",
                label="the files may get corrupted",
                severity=Severity.WARNING,
                edits=_one_first(module, call),
            )


def _one_first(module: Module, call: ast.Call) -> tuple[Edit, ...]:
    """Let rank 0 go first, between two barriers, if the process group already exists."""
    function, statement = module.index.function_of(call), module.index.statement(call)
    inits = [c for c in module.calls("dist.init_process_group") if module.index.function_of(c) is function]
    if not any(c.lineno < call.lineno for c in inits):
        return ()
    dist, pad = dist_of(module), " " * (statement.col_offset + 4)
    return (
        before(module, statement, f"if {dist}.get_rank() != 0:\n{pad}{dist}.barrier()"),
        after(module, statement, f"if {dist}.get_rank() == 0:\n{pad}{dist}.barrier()"),
    )


_DOWNLOADS = ("urllib.request.urlretrieve", "torch.hub.download_url_to_file", "wget.download", "gdown.download")


def _at_spawn_parent(module: Module, call: ast.Call) -> bool:
    """Whether only the parent runs a call, before it spawns."""
    function = module.index.function_of(call)
    return any(module.index.function_of(s.call) is function and call.lineno < s.call.lineno for s in module.spawns)


@shared_file_race.look
def changed_by_another(log: Log) -> Iterator[Finding]:
    """A rank creates what another rank has created, or removes what another rank has removed."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.rules.log.headlines import names_of
    from ddpdoctor.rules.log.missing_files import MISSING_FILE, is_removed
    from ddpdoctor.rules.log.signatures import finding_of

    lines = matching_lines(log, (r"FileExistsError: \[Errno 17\]",))
    if lines:
        yield finding_of(log, lines, "One rank changes a file while the others read it", blames_speaker=True)
        return
    removals = [traceback for traceback in log.tracebacks if is_removed(traceback)]
    ranks = sorted({traceback.who.rank for traceback in removals if traceback.who.rank is not None})
    for traceback in removals[:1]:
        path = MISSING_FILE.search(traceback.message)
        place = traceback.place
        yield Finding(
            f"{names_of(ranks, [])} removes {path['path'] if path else 'a folder'}, which another rank has already removed",
            (
                Evidence(
                    log.place(traceback.source, traceback.number),
                    traceback.message[:200],
                    "one rank removes the folder",
                ),
            ),
            where=Where(
                rank=ranks[0] if len(ranks) == 1 else None,
                file=None if place is None else place.file,
                line=None if place is None else place.line,
            ),
            ranks=tuple(ranks),
            label="remove it on one rank only",
        )


@shared_file_race.look
def written_by_all(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Several ranks write one file."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.FILE_RACE,
        lambda o, who: f"{who} write {o.values['path'].rpartition('/')[2]} at the same time",
        label="all ranks write this file",
        expected="rank 0 only, or a file per rank",
    )


@shared_file_race.look
def folder_race_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A rank writes into a folder that another one makes."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.FOLDER_RACE,
        lambda o, who: f"{who} writes into a folder that rank {o.values['maker']} makes, without a barrier",
        label="the folder may not exist yet",
        expected="a barrier after the folder is made",
    )


@shared_file_race.look
def removed_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """A rank removes a file that another one may still read."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.REMOVED_EARLY,
        lambda o, who: f"{who} removes a file that rank {o.values['reader']} reads, without a barrier",
        label="the other rank may still read it",
        expected="a barrier before the file is removed",
    )
