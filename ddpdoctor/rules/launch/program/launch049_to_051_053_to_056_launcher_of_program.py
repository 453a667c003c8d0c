"""LAUNCH049 to 051, 053 to 056: scripts that do not fit the launcher that starts them."""

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
from ddpdoctor.rules.launch.pointing import agents, base_name, point, remove, shown
from ddpdoctor.rules.launch.scheduler.granted import SCHEDULED

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

__all__ = ["plain_python"]

FORGOTTEN = "Export MASTER_ADDR (the host of rank 0) and MASTER_PORT (a free port there), the same for every rank."
RANK = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
NO_MODULE = r"torchrun|torch\.(distributed\.)?(elastic\.)?(torchrun|run|launch|launcher|distributed_run)"
"""Wrong module names of torchrun. A line with a real one has a layer of a launcher instead."""


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
    torch prints `FutureWarning: The module torch.distributed.launch is deprecated and will be removed in future. Use
    torchrun.` It still works, and adds --local-rank to the arguments of the script.

    ## Fix
    Use torchrun, and read LOCAL_RANK in the script.

    ## Example
        FutureWarning: The module torch.distributed.launch is deprecated and will be removed in future. Use torchrun.

        # before
        python -m torch.distributed.launch --use-env --nproc-per-node=2 train.py

        # after
        torchrun --nproc-per-node=2 train.py
    """
    for line, layer, _ in _legacy(launch):
        script = line.script
        needs = script is not None and bool(script.local_rank) and "LOCAL_RANK" not in script.reads
        needs = needs and layer.given("use_env") is None
        word = next((w for w in layer.own if w.text == "torch.distributed.launch"), layer.program)
        edits = None if needs or layer.given("no_python") is not None else _as_torchrun(line, layer)
        text = "torch.distributed.launch is deprecated"
        yield point(launch, line, word, text, "torchrun", edits, label="use torchrun")


@cause(
    "LAUNCH050",
    "local-rank-dash-unrecognized",
    Severity.ERROR,
    signatures=(r"unrecognized arguments:\s+(?:--|[–—])local[-_]rank=\d+",),
)
def local_rank_dash_unrecognized(launch: Launch) -> Iterator[Finding]:
    """The launcher adds --local-rank to the arguments of the script, which only accepts --local_rank.

    ## Why it matters
    Since torch 2.0 torch.distributed.launch writes the option with a dash. Older scripts fail on every rank with
    `unrecognized arguments: --local-rank=0` and exit code 2.

    ## Fix
    Declare both spellings in the script.

    Or read LOCAL_RANK from the environment and start the script with torchrun.

    ## Example
        error: unrecognized arguments: --local-rank=0

        # before
        python -m torch.distributed.launch --nproc-per-node=2 train.py

        # after
        torchrun --nproc-per-node=2 train.py

    ## Source
    Confirmed in https://github.com/huggingface/pytorch-image-models/issues/1728 and
    https://github.com/OFA-Sys/Chinese-CLIP/issues/74 (torchrun), and
    https://github.com/XPixelGroup/BasicSR/issues/626 (both spellings).
    """
    for line, layer, _ in _legacy(launch):
        script = line.script
        if script is None or layer.given("use_env") is not None or not script.local_rank:
            continue
        passed = "--local-rank" if launch.version >= (2, 0) else "--local_rank"
        if passed in script.local_rank or (script.ignores_unknown and "LOCAL_RANK" in script.reads):
            continue
        edits = _as_torchrun(line, layer) if "LOCAL_RANK" in script.reads else None
        word = layer.reading.script
        text, label = f"{base_name(script.path)} does not accept {passed}", f"the launcher adds {passed}"
        yield point(launch, line, word, text, "a script that declares both", edits, label=label)


@cause(
    "LAUNCH051",
    "local-rank-argument-not-passed",
    Severity.ERROR,
    signatures=(r"arguments are required: --local[-_]rank", r"KeyError: 'LOCAL_RANK'"),
)
def local_rank_argument_not_passed(launch: Launch) -> Iterator[Finding]:
    """The script expects a --local_rank argument, which torchrun never passes.

    ## Why it matters
    torchrun sets LOCAL_RANK and adds no argument. With a default of -1 or 0 all ranks run on the CPU or on GPU 0
    without an error; if the option is required, every rank fails with `the following arguments are required:
    --local_rank`.

    ## Fix
    Read `int(os.environ["LOCAL_RANK"])` in the script.

    ## Example
        error: the following arguments are required: --local_rank

        # before
        parser.add_argument("--local_rank", type=int, required=True)

        # after
        local_rank = int(os.environ["LOCAL_RANK"])
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
        text = f"{base_name(script.path):.20} reads {script.local_rank[0]}, which torchrun never passes"
        word, expected = layer.reading.script, 'int(os.environ["LOCAL_RANK"]) in the script'
        yield point(launch, line, word, text, expected, edits, label="read LOCAL_RANK in the script")


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
    It fails with `ValueError: When using the '--no-python' flag, you must also set the '--use-env' flag.`

    ## Fix
    Use `torchrun --no-python`.

    ## Example
        ValueError: When using the '--no-python' flag, you must also set the '--use-env' flag.

        # before
        python -m torch.distributed.launch --no-python --nproc-per-node=2 ./run.sh

        # after
        torchrun --no-python --nproc-per-node=2 ./run.sh
    """
    for line, layer, _ in _legacy(launch):
        flag = layer.given("no_python")
        if flag is not None and layer.given("use_env") is None:
            text, edits = f"{shown(flag.word)} without --use-env", _as_torchrun(line, layer)
            yield point(launch, line, flag.word, text, "torchrun", edits, label="use torchrun")


@cause(
    "LAUNCH054",
    "launched-without-launcher",
    Severity.ERROR,
    yields_to=("LAUNCH051",),
    signatures=(
        r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_RANK) expected, but not set",
        r"KeyError: '(RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'",
        r"_get_env_or_raise\([\"'](RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)[\"']\)|raise _env_error\(",
        r"Missing required environment variables: \[?'?(?:RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR)",
    ),
)
def launched_without_launcher(launch: Launch) -> Iterator[Finding]:
    """A script that reads its rank from the environment is started without a launcher.

    ## Why it matters
    Only a launcher sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The script fails with `Error initializing
    torch.distributed using env:// rendezvous: environment variable RANK expected, but not set`.

    ## Fix
    Start it with torchrun.

    ## Example
        ValueError: environment variable RANK expected, but not set

        # before
        python train.py

        # after
        torchrun --nproc-per-node=2 train.py
    """
    for line, layer, script in plain_python(launch):
        if not script.initialises or line.task_starter is not None or _takes_ranks_of_scheduler(line, script):
            continue
        absent = [name for name in RANK if name not in line.environ.variables]
        name = base_name(script.path)
        if absent and not {"RANK", "WORLD_SIZE"} & {*absent}:  # a rank started by hand, with variables missing
            names = " and ".join(absent)
            text, label = f"{name} needs {names}", "not set on this line"
            yield point(launch, line, layer.program, text, names, label=label, fix=FORGOTTEN)
            continue
        if not absent:
            continue
        count = "gpu" if script.nccl else "2"
        edits = [SpanEdit(layer.program.start, layer.own[-1].end, f"torchrun --nproc-per-node={count}")]
        text = f"{name} needs RANK, which python does not set"
        yield point(launch, line, layer.program, text, "torchrun", edits, label="use torchrun")


def _takes_ranks_of_scheduler(line: LaunchLine, script: StartedScript) -> bool:
    """Whether a script in a batch job sets RANK itself, or reads variables of its scheduler."""
    names = (*script.reads, *script.sets)
    return line.batch is not None and ("RANK" in script.sets or any(SCHEDULED.match(name) for name in names))


def plain_python(launch: Launch) -> Iterator[tuple[LaunchLine, Layer, StartedScript]]:
    """Python that no launcher starts."""
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
    """A launcher is passed to Python as a script or a module.

    ## Why it matters
    torchrun is a program on PATH: Python fails with `can't open file '…/torchrun': [Errno 2] No such file or
    directory`, or `No module named torchrun`. Its module is torch.distributed.run; torch.distributed.torchrun and
    similar names do not exist.

    ## Fix
    Remove `python`, or use `python -m torch.distributed.run`.

    ## Example
        can't open file '/home/me/torchrun': [Errno 2] No such file or directory

        # before
        python torchrun --nproc-per-node=2 train.py

        # after
        python -m torch.distributed.run --nproc-per-node=2 train.py
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
            name = correct = modules["torchrun"]
            text = f"python cannot run {script.text} as a module"
        elif module is None and script.text in modules:
            name = modules[script.text]
            correct = f"-m {name}"
            text = f"python cannot run {script.text} as a script"
        else:
            continue
        edit = SpanEdit(script.start, script.end, escape(correct, script.context))
        yield point(launch, line, script, text, f"-m {name}", [edit], label=f"use -m {name}")


@cause("LAUNCH056", "launcher-and-spawn", Severity.ERROR)
def launcher_and_spawn(launch: Launch) -> Iterator[Finding]:
    """A script that spawns its own ranks is started by a launcher.

    ## Why it matters
    The launcher starts N processes, each of which starts N more with the same ranks. Some train, some fail with
    `Connection refused` or `The client socket has timed out`, some hang.

    ## Fix
    Start it with plain python, or remove mp.spawn.

    ## Example
        error[LAUNCH056]: torchrun starts train.py, which spawns its own ranks

        # before
        torchrun --nproc-per-node=2 train.py

        # after
        python train.py
    """
    for line, layer, _ in agents(launch):
        if line.script is None or not line.script.spawns or line.program is not layer or layer.given("no_python"):
            continue
        edits = [SpanEdit(layer.program.start, layer.own[-1].end, escape("python", layer.program.context))]
        text = f"{layer.name} starts {base_name(line.script.path)}, which spawns its own ranks"
        yield point(launch, line, layer.program, text, "python", edits, label="use python")


ADDED = re.compile(r"unrecognized arguments: +(?:--|[–—])(?P<option>local[-_]rank)(?:=\d+)?(?P<others>(?: +.+)?)")


LAUNCHERS = {
    "local_rank": (
        "torch.distributed.launch before torch 2.0 adds --local_rank, which the script does not accept",
        "Declare both --local-rank and --local_rank in the script, or read LOCAL_RANK and start it with torchrun or --use_env.",
    ),
    "local-rank": (
        "torch.distributed.launch since torch 2.0 adds --local-rank, which the script does not accept",
        None,
    ),
}


OTHERS = "; it also rejects {others}: a second command or an option of the launcher is written after the script"


TWO = re.compile(r"--local[-_]rank\b")


TWICE = "; it was passed twice, so one launcher starts another"


@local_rank_dash_unrecognized.look
def local_rank_refused(log: Log) -> Iterator[Finding]:
    """The refused spelling shows which launcher added it; the script may accept the other one, or none."""
    from ddpdoctor.rules.log.signatures import retitled, signed

    for finding in signed(local_rank_dash_unrecognized, log):
        added = ADDED.search(finding.quote)
        if added is None:
            yield finding
            continue
        title, fix = LAUNCHERS[added["option"]]
        others = added["others"].strip()
        title += TWICE if TWO.match(others) else OTHERS.format(others=others) if others else ""
        yield replace(retitled(finding, title), fix=fix or finding.fix)


NOT_PASSED = (r"arguments are required: --local[-_]rank",)


@launched_without_launcher.look
def no_launcher(log: Log) -> Iterator[Finding]:
    """The variables of torch are not set, and no scheduler started the script."""
    from ddpdoctor.logs.matching import matching_lines
    from ddpdoctor.logs.started_by import is_under_scheduler
    from ddpdoctor.rules.log.signatures import finding_of
    from ddpdoctor.rules.log.world_sizes import CUT_NOT_SET, NO_KEY, NOT_SET

    lines = matching_lines(log, NOT_SET + NO_KEY) or matching_lines(log, CUT_NOT_SET)
    if lines and not is_under_scheduler(log):
        title = "The script was started without a launcher, so RANK is not set"
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
        title = "The script expects a local rank that its launcher does not pass"
        yield finding_of(log, lines, title, blames_speaker=False)
