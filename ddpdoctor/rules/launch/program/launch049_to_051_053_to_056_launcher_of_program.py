"""LAUNCH049 to 051, 053 to 056: the launcher and the script expect different things of each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine, StartedScript
from ddpdoctor.facts.launch.words import SpanEdit, escape
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import agents, point, remove, shown

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

__all__ = ["plain_python"]

FORGOTTEN = (
    "Export MASTER_ADDR (the host of rank 0) and MASTER_PORT (one free port there) with the same values for every rank."
)
RANK = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
NO_MODULE = r"torchrun|torch\.(distributed\.)?(elastic\.)?(torchrun|run|launch|launcher|distributed_run)"
"""Where people look for the module behind torchrun. The layers of a line have read the real ones as launchers."""


def _legacy(launch: Launch) -> Iterator[tuple[LaunchLine, Layer, Plan]]:
    yield from ((x, layer, plan) for x, layer, plan in agents(launch) if layer.launcher is LauncherKind.LEGACY)


def _as_torchrun(line: LaunchLine, layer: Layer) -> list[SpanEdit]:
    """`python -m torch.distributed.launch` becomes torchrun, without --use-env."""
    module = next((w for w in layer.own if w.text == "torch.distributed.launch"), layer.own[-1])
    start = layer.program
    edits = [SpanEdit(start.start, module.end, escape("torchrun", start.context))]
    use_env = [g.word for g in layer.reading.given if g.dest == "use_env"]
    return [*edits, *remove(line, *use_env)]


@cause(
    "LAUNCH049",
    "legacy-launch-module",
    Severity.WARNING,
    signatures=(r"The module torch\.distributed\.launch is deprecated",),
)
def legacy_launch_module(launch: Launch) -> Iterator[Finding]:
    """The job is started with torch.distributed.launch, which is deprecated.

    ## Why it matters
    `FutureWarning: The module torch.distributed.launch is deprecated and will be removed in future. Use torchrun.` It works,
    and still adds --local-rank to the script's arguments.

    ## Fix
    Use torchrun, and let the script read LOCAL_RANK from the environment.
    """
    for line, layer, _ in _legacy(launch):
        script = line.script
        needs = script is not None and bool(script.local_rank) and "LOCAL_RANK" not in script.reads
        needs = needs and layer.given("use_env") is None
        word = next((w for w in layer.own if w.text == "torch.distributed.launch"), layer.program)
        edits = None if needs or layer.given("no_python") is not None else _as_torchrun(line, layer)
        yield point(launch, line, word, "torch.distributed.launch is deprecated: expected torchrun", "torchrun", edits)


@cause(
    "LAUNCH050",
    "local-rank-dash-unrecognized",
    Severity.ERROR,
    signatures=(r"unrecognized arguments:\s+(?:--|[–—])local[-_]rank=\d+",),
)
def local_rank_dash_unrecognized(launch: Launch) -> Iterator[Finding]:
    """The launcher adds --local-rank to the script's arguments, but the script knows --local_rank only.

    ## Why it matters
    Since torch 2.0 torch.distributed.launch writes the option with a dash. Scripts from before end on every rank with
    `unrecognized arguments: --local-rank=0` and exit code 2.

    ## Fix
    Let the script declare both spellings, or read LOCAL_RANK and start it with torchrun.
    """
    for line, layer, _ in _legacy(launch):
        script = line.script
        if script is None or layer.given("use_env") is not None or not script.local_rank:
            continue
        passed = "--local-rank" if launch.version >= (2, 0) else "--local_rank"
        if passed in script.local_rank:
            continue
        edits = _as_torchrun(line, layer) if "LOCAL_RANK" in script.reads else None
        word = layer.reading.script
        text = f"the launcher adds {passed} and {script.path} declares {script.local_rank[0]} only: expected both"
        yield point(launch, line, word, text, "a script that declares both", edits)


@cause(
    "LAUNCH051",
    "local-rank-argument-not-passed",
    Severity.ERROR,
    signatures=(r"arguments are required: --local[-_]rank", r"KeyError: 'LOCAL_RANK'"),
)
def local_rank_argument_not_passed(launch: Launch) -> Iterator[Finding]:
    """The script expects a --local_rank argument, which torchrun never passes.

    ## Why it matters
    torchrun sets LOCAL_RANK and adds nothing to the arguments. With a default of -1 or 0 all ranks run on the CPU or on GPU 0
    without an error; where the option is required, every rank ends with `the following arguments are required: --local_rank`.

    ## Fix
    Read int(os.environ["LOCAL_RANK"]) in the script.
    """
    for line, layer, _ in agents(launch):
        script = line.script
        if script is None or not script.local_rank or "LOCAL_RANK" in script.reads or script.frameworks:
            continue
        adds = layer.launcher is LauncherKind.LEGACY and layer.given("use_env") is None
        given = any(w.text.partition("=")[0] in script.local_rank for w in layer.reading.arguments)
        if adds or given or not (script.local_rank_required or script.local_rank_used):
            continue
        edits = None
        if layer.program.text.rpartition("/")[2] == "torchrun" and _takes_dash(script, launch):
            edits = [SpanEdit(layer.program.start, layer.program.end, "python -m torch.distributed.launch")]
        text = f"{script.path} takes its local rank from {script.local_rank[0]}, which torchrun never passes: expected LOCAL_RANK"
        yield point(launch, line, layer.reading.script, text, 'int(os.environ["LOCAL_RANK"]) in the script', edits)


def _takes_dash(script: StartedScript, launch: Launch) -> bool:
    return ("--local-rank" if launch.version >= (2, 0) else "--local_rank") in script.local_rank


@cause(
    "LAUNCH053",
    "no-python-without-use-env",
    Severity.ERROR,
    signatures=(r"you must also set the '--use-env' flag",),
)
def no_python_without_use_env(launch: Launch) -> Iterator[Finding]:
    """torch.distributed.launch is given --no-python without --use-env.

    ## Why it matters
    `ValueError: When using the '--no-python' flag, you must also set the '--use-env' flag.`

    ## Fix
    Use torchrun --no-python.
    """
    for line, layer, _ in _legacy(launch):
        flag = layer.given("no_python")
        if flag is not None and layer.given("use_env") is None:
            text = f"{shown(flag.word)} needs --use-env in torch.distributed.launch: expected torchrun"
            yield point(launch, line, flag.word, text, "torchrun", _as_torchrun(line, layer))


@cause(
    "LAUNCH054",
    "launched-without-launcher",
    Severity.ERROR,
    yields_to=("LAUNCH051",),
    signatures=(
        r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_RANK) expected, but not set",
        r"KeyError: '(RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'",
        r"_get_env_or_raise\([\"'](RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)[\"']\)|raise _env_error\(",
    ),
)
def launched_without_launcher(launch: Launch) -> Iterator[Finding]:
    """A script that joins its process group through the environment is started without a launcher.

    ## Why it matters
    `Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set`. Nothing but
    a launcher sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    ## Fix
    Start it with torchrun.
    """
    for line, layer, script in plain_python(launch):
        if not script.initialises or line.task_starter is not None or line.batch is not None:
            continue
        absent = [name for name in RANK if name not in line.environ.variables]
        if absent and not {"RANK", "WORLD_SIZE"} & {*absent}:  # it is a rank already, of which something was forgotten
            text = (
                f"{script.path} needs {' and '.join(absent)}, which nobody sets: expected the same value for every rank"
            )
            yield point(launch, line, layer.program, text, " and ".join(absent), fix=FORGOTTEN)
            continue
        if not absent:
            continue
        count = "gpu" if script.nccl else "2"
        edits = [SpanEdit(layer.program.start, layer.own[-1].end, f"torchrun --nproc-per-node={count}")]
        text = f"{script.path} needs RANK and WORLD_SIZE, which python does not set: expected torchrun"
        yield point(launch, line, layer.program, text, "torchrun", edits)


def plain_python(launch: Launch) -> Iterator[tuple[LaunchLine, Layer, StartedScript]]:
    """Python started by nobody who sets ranks."""
    for line in launch.lines:
        layer, script = line.program, line.script
        if layer is None or script is None or layer.launcher is not LauncherKind.PYTHON or line.starter is not None:
            continue
        yield line, layer, script


@cause(
    "LAUNCH055",
    "launcher-run-as-script",
    Severity.ERROR,
    signatures=(r"can't open file '[^']*/(torchrun|accelerate|deepspeed)'", r"No module named torchrun"),
)
def launcher_run_as_script(launch: Launch) -> Iterator[Finding]:
    """A launcher is given to Python as a script or a module.

    ## Why it matters
    `can't open file '…/torchrun': [Errno 2] No such file or directory`, or `No module named torchrun`: it is a program on PATH.
    The module behind it is torch.distributed.run; torch.distributed.torchrun and its likes do not exist.

    ## Fix
    Start it without python, or as python -m torch.distributed.run.
    """
    modules = {
        "torchrun": "torch.distributed.run",
        "accelerate": "accelerate.commands.accelerate_cli",
        "deepspeed": "deepspeed.launcher.runner",
    }
    for line in launch.lines:
        layer = line.program
        if layer is None or layer.launcher is not LauncherKind.PYTHON or layer.reading.script is None:
            continue
        script = layer.reading.script
        module = layer.given("module")
        if module is not None and re.fullmatch(NO_MODULE, script.text):
            name = right = modules["torchrun"]
            text = f"python cannot run {script.text} as a module: expected -m {name}"
        elif module is None and script.text in modules:
            name = modules[script.text]
            right = f"-m {name}"
            text = f"{script.text} is a program, python takes it for a script: expected -m {name}"
        else:
            continue
        edit = SpanEdit(script.start, script.end, escape(right, script.context))
        yield point(launch, line, script, text, f"-m {name}", [edit])


@cause("LAUNCH056", "launcher-and-spawn", Severity.ERROR)
def launcher_and_spawn(launch: Launch) -> Iterator[Finding]:
    """A script that spawns its own ranks is started by a launcher.

    ## Why it matters
    The launcher starts N processes and each of them N more, which fight for the same ranks: some train, some get `Connection
    refused` or `The client socket has timed out`, some hang.

    ## Fix
    Start it with plain python, or take mp.spawn out.
    """
    for line, layer, plan in agents(launch):
        if line.script is None or not line.script.spawns or line.program is not layer or layer.given("no_python"):
            continue
        edits = [SpanEdit(layer.program.start, layer.own[-1].end, escape("python", layer.program.context))]
        times = plan.nproc or "several"
        text = f"{line.script.path} spawns its own ranks, and {layer.name} starts it {times} times: expected one"
        yield point(launch, line, layer.program, text, "python", edits)


ADDED = re.compile(r"unrecognized arguments: +(?:--|[–—])(?P<option>local[-_]rank)(?:=\d+)?(?P<others>(?: +.+)?)")


LAUNCHERS = {
    "local_rank": (
        "torch.distributed.launch before torch 2.0 adds --local_rank, which the script rejects",
        "Let the script declare both spellings of the option (--local-rank and --local_rank), or read LOCAL_RANK and start it "
        "with torchrun, or with --use_env.",
    ),
    "local-rank": (
        "torch.distributed.launch since torch 2.0 adds --local-rank, which the script rejects",
        None,
    ),
}


OTHERS = "; it also rejects {others}, which belongs before the script name or to another command"


TWO = re.compile(r"--local[-_]rank\b")


TWICE = "; the option appears twice: one launcher starts another"


@local_rank_dash_unrecognized.look
def local_rank_refused(log: Log) -> Iterator[Finding]:
    """The rejected spelling shows which launcher added it; the script may accept the other one or neither."""
    from ddpdoctor.rules.log.signatures import retitled, signed

    for found in signed(local_rank_dash_unrecognized, log):
        match = ADDED.search(found.quote)
        if match is None:
            yield found
            continue
        title, fix = LAUNCHERS[match["option"]]
        others = match["others"].strip()
        title += TWICE if TWO.match(others) else OTHERS.format(others=others) if others else ""
        yield replace(retitled(found, title), fix=fix or found.fix)


NOT_PASSED = (r"arguments are required: --local[-_]rank",)


@launched_without_launcher.look
def no_launcher(log: Log) -> Iterator[Finding]:
    """torch's variables are not set, and the log shows no scheduler."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.logs.started_by import is_under_scheduler
    from ddpdoctor.rules.log.signatures import finding_of
    from ddpdoctor.rules.log.world_sizes import CUT_NOT_SET, NO_KEY, NOT_SET

    lines = matching_lines(log, NOT_SET + NO_KEY) or matching_lines(log, CUT_NOT_SET)
    if lines and not is_under_scheduler(log):
        title = "A script that reads env:// was started without a launcher"
        yield finding_of(log, lines, title, blames_speaker=False)


@local_rank_argument_not_passed.look
def local_rank_not_passed(log: Log) -> Iterator[Finding]:
    """LOCAL_RANK, or the argument, is missing, and mp.spawn is not the reason."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.logs.started_by import is_spawned
    from ddpdoctor.rules.log.signatures import finding_of
    from ddpdoctor.rules.log.world_sizes import NO_LOCAL_RANK

    lines = [line for line in matching_lines(log, NO_LOCAL_RANK + NOT_PASSED) if not is_spawned(log, line)]
    if lines:
        title = "The script expects its local rank in a way that its launcher does not use"
        yield finding_of(log, lines, title, blames_speaker=False)
