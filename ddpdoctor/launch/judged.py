"""Whether ddpdoctor can judge what a launch line starts, and a description of it."""

from __future__ import annotations

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import ELSEWHERE, REMOTE, UNJUDGED, LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import UNKNOWN, plain
from ddpdoctor.wording import counted

__all__ = ["described", "why_not_judged"]


def why_not_judged(line: LaunchLine) -> str | None:
    """Why a line cannot be judged; None if its launcher, its script or a mistake in its words is known."""
    if line.starter is not None or line.script is not None or any(each.typos for each in line.layers):
        return None
    last = line.program
    if last is None:
        return "it contains no command"
    if last.launcher is LauncherKind.PYTHON:
        return None if last.reading.script is not None else f"{last.name} is given no script"
    if last.launcher is LauncherKind.SHELL:
        script = _shell_script(last)
        return f"{last.name} is given no command" if script is None else _unread(script)
    if last.launcher is LauncherKind.SBATCH:
        return "the batch script is not read: ddpdoctor lint FILE judges what it starts"
    if last.name == "accelerate":
        return f"`{' '.join(plain(word.text) for word in last.own[:2])}` starts no ranks"
    if last.launcher is not LauncherKind.OTHER:
        return f"{last.name} is given no command that ddpdoctor knows"
    if last.name in UNJUDGED:
        return f"{last.name} ({UNJUDGED[last.name]}) is not judged by ddpdoctor"
    if UNKNOWN in last.program.text:
        return f"{last.program.raw or plain(last.program.text)} can be resolved only by the shell"
    if last.name.endswith(".sh"):
        return _unread(plain(last.program.text))
    return f"{last.name} is not a launcher that ddpdoctor knows"


def _unread(script: str) -> str:
    return f"{script} is not read: ddpdoctor lint {script} judges what it starts"


def _shell_script(layer: Layer) -> str | None:
    """The script that a shell runs."""
    return next((plain(word.text) for word in layer.own[1:] if not word.text.startswith(("-", "+"))), None)


def described(launch: Launch) -> str:
    """What the lines of one job start: `torchrun: 2 nodes x 4 ranks, train.py`."""
    line = launch.lines[0] if launch.lines else None
    layer = None if line is None else line.starter or line.program
    if line is None or layer is None:
        return "no command"
    name = layer.launcher.value if layer is line.starter else layer.name
    where = " in a container" if any(each.launcher in ELSEWHERE for each in line.layers) else ""
    where = " on another host" if any(each.name in REMOTE for each in line.layers) else where
    pieces = [*_size(launch, line), *_script(layer)]
    return f"{name}{where}: {', '.join(pieces)}" if pieces else f"{name}{where}"


def _size(launch: Launch, line: LaunchLine) -> list[str]:
    """`2 nodes x 4 ranks`, if the lines show it."""
    plan = line.plan
    nodes = len(launch.nodes) if len(launch.nodes) > 1 else None
    ranks = None
    if plan is not None:
        nodes = plan.nnodes[1] if plan.nnodes is not None else nodes
        ranks = plan.nproc
    elif line.starter is not None and line.starter.launcher is LauncherKind.ACCELERATE:
        nodes, ranks = nodes or _number(line, "num_machines"), _number(line, "num_processes")
        text = [] if nodes is None else [counted(nodes, "node")]
        return text + ([] if ranks is None else [counted(ranks, "rank")])
    elif line.starter is not None:
        nodes, ranks = nodes or _number(line, "num_nodes"), _number(line, "num_gpus")
    if ranks is None:
        return [] if nodes is None else [counted(nodes, "node")]
    return [f"{counted(nodes or 1, 'node')} x {counted(ranks, 'rank')}"]


def _number(line: LaunchLine, option: str) -> int | None:
    value = line.starter.value(option) if line.starter is not None else None
    value = value or (line.config or {}).get(option)
    return int(value) if value is not None and value.isdecimal() and len(value) < 7 else None


def _script(layer: Layer) -> list[str]:
    script = layer.reading.script
    if script is None:
        return []
    return [f"module {plain(script.text)}" if layer.given("module") is not None else plain(script.text)]
