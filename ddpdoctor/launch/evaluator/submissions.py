"""What a job file starts as one fact, with places in the file: for rules that compare it with what the scheduler gives."""

from __future__ import annotations

import functools
import posixpath
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ddpdoctor.facts.launch.record import LaunchLine, StartedScript
from ddpdoctor.facts.launch.words import UNKNOWN, Mark
from ddpdoctor.facts.refused import Refused
from ddpdoctor.facts.shell_text import ShellText
from ddpdoctor.facts.submission import ClusterService, Grant, Launcher, OtherProgram, Part, Step, Submission, Task
from ddpdoctor.launch.evaluator.cluster import SUBMIT_HOST, Allocation
from ddpdoctor.launch.evaluator.imagined_run import ImaginedRun, Launched, Starter
from ddpdoctor.launch.evaluator.jobs import ImaginedJob
from ddpdoctor.launch.evaluator.ray_clusters import gpu_demands, ray_starts, ray_submits
from ddpdoctor.launch.evaluator.shell_text import fixed_port, span_of
from ddpdoctor.launch.evaluator.values import ARRAY, NODE, TASK, Origin

__all__ = ["submission_of"]

_WAITS = re.compile(r"(?:^|[\s;&])(?:wait|sleep|tail|fg|while|until|inotifywait|squeue)\b")
"""What keeps a script running after a background statement."""
_STAYS = re.compile(r"(?:^|[\s;&])(?:sleep|tail +-[fF]|while|until|inotifywait|squeue)\b")
"""The same for one that another shell has started: `wait` does not know it."""
_SHOWN = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
"""Variables at whose place a finding may point."""


def submission_of(
    file: str,
    text: str,
    run: ImaginedRun,
    jobs: Sequence[ImaginedJob],
    lines: Iterable[LaunchLine] = (),
    services: tuple[ClusterService, ...] = (),
    shell: ShellText | None = None,
    script: Callable[[str], StartedScript | None] = lambda path: None,
    refused: tuple[Refused, ...] = (),
) -> Submission:
    """A job file with everything that it starts.

    Args:
        lines: the launch lines of its text, which know the training scripts next to it.
        shell: its text, if it is a shell file.
        script: finds the training script at an absolute path of the cluster, None where there is none here.
        refused: settings that their readers refuse.
    """
    places = _Places(file, text)
    known = [line for line in lines if line.script is not None and line.script.exists]
    scripts = {text: line.script for line in known if line.script is not None for text in _script_words(line)}
    sources: dict[Origin, int] = {}
    found = functools.lru_cache(maxsize=None)(script)
    steps = []
    for job in jobs:
        first = job.launched[0]
        tasks = tuple(
            _task(member, line, places, scripts, found)
            for member, line in zip(job.launched, job.launch.lines, strict=True)
        )
        source = sources.setdefault(first.origin, len(sources))
        steps.append(Step(tasks, job.job, job.is_certain, first.is_background, source))
    return Submission(
        file,
        tuple(steps),
        _grant(run.allocation, places),
        _is_awaited(text, run),
        services,
        ray_starts=ray_starts(run.programs, places.mark),
        ray_submits=ray_submits(run.programs, places.mark),
        demands=gpu_demands(run, places.mark),
        programs=tuple(dict.fromkeys(_other_programs(run, places))),
        is_submitting=run.submits,
        refused=refused,
        shell=shell,
    )


def _other_programs(run: ImaginedRun, places: _Places) -> Iterator[OtherProgram]:
    for each in run.programs:
        starter = each.place.starter
        if each.is_certain and starter is not None:
            at = next((starter.places[flag] for flag in _LISTS if flag in starter.places), starter.at)
            yield OtherProgram(each.argv[0].text, places.mark(at), starter.name)


_LISTS = ("-H", "--hosts", "--host", "-host", "-hosts")


class _Places:
    """Marks of spans of the file."""

    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._rows = (0, *(found.end() for found in re.finditer("\n", text)))

    def mark(self, origin: Origin) -> Mark:
        """Line and column of a span; of one in another file, the beginning."""
        if origin.file != self._file:
            return Mark(1, 1)
        row = bisect_right(self._rows, origin.start) - 1
        return Mark(row + 1, origin.start - self._rows[row] + 1)

    def marks(self, origins: Mapping[str, Origin]) -> dict[str, Mark]:
        return {name: self.mark(origin) for name, origin in origins.items()}


def _script_words(line: LaunchLine) -> tuple[str, ...]:
    """The words by which a line names its script."""
    return tuple(layer.reading.script.text for layer in line.layers if layer.reading.script is not None)


def _task(
    member: Launched,
    line: LaunchLine,
    places: _Places,
    scripts: Mapping[str, StartedScript],
    found: Callable[[str], StartedScript | None],
) -> Task:
    place, script = member.place, member.layer.reading.script
    own = None if script is None else scripts.get(script.text)
    if own is None and script is not None and UNKNOWN not in script.text and script.text.endswith(".py"):
        path = posixpath.join(member.folder or "", script.text)
        own = found(path) if posixpath.isabs(path) else None
    return Task(
        line=line,
        layer=member.layer,
        host=place.host,
        node=place.node,
        number=place.task,
        local=place.local,
        gpus=place.gpus,
        via=place.via,
        launcher=None if place.starter is None else _launcher(place.starter, places),
        withheld={name: (places.mark(each.at), each.by) for name, each in place.withheld.items()},
        missed=tuple(sorted(place.missed)),
        ranks=member.ranks,
        slots=None if member.pool is None else dict(member.pool),
        active=None if member.active is None else dict(member.active),
        varying=tuple(at for at, value in enumerate(member.argv) if ARRAY in value.varies),
        of_process=tuple(at for at, value in enumerate(member.argv) if {TASK, NODE} & value.varies),
        trainer=dict(member.trainer),
        script=own,
        set_at={name: places.mark(v.origins[0]) for name in _SHOWN if (v := member.environ.get(name)) and v.origins},
        span=span_of(member.origin),
        fixed_port=fixed_port(member, line.plan),
    )


def _launcher(starter: Starter, places: _Places) -> Launcher:
    at = places.mark(starter.at)
    options = places.marks(starter.places)
    return Launcher(starter.name, at, starter.hosts, starter.tasks, options, starter.slots, starter.refused)


def _grant(allocation: Allocation, places: _Places) -> Grant:
    is_known = bool(allocation.scheduler) and allocation.nodes_are_known
    parts = tuple(Part(each.hosts, each.gpus_per_node) for each in allocation.components)
    return Grant(
        scheduler=allocation.scheduler,
        nodes=len(allocation.hosts) if is_known else None,
        tasks=allocation.tasks,
        tasks_per_node=allocation.tasks_per_node,
        gpus_per_node=allocation.gpus_per_node,
        gpus_per_task=allocation.gpus_per_task,
        is_array=allocation.is_array,
        takes_whole_nodes=allocation.takes_whole_nodes,
        batch_host=allocation.batch_host,
        submit_host=SUBMIT_HOST if allocation.scheduler else "",
        parts=parts,
        places=places.marks(allocation.places),
    )


def _is_awaited(text: str, run: ImaginedRun) -> bool:
    """Whether the script continues after the last statement that it starts in the background."""
    last = run.launched[-1] if run.launched else None
    if last is None or not last.is_background or last.statement.end <= 0 or run.submits:
        return True
    follows = text[last.statement.end :]
    return (_STAYS if last.is_left else _WAITS).search(follows) is not None
