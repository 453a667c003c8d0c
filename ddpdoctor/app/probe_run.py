"""The probe of one `ddpdoctor check`: of local ranks, or as one rank of the job that the environment describes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ddpdoctor.app import early_probe
from ddpdoctor.app.early_probe import CPU_RANKS, GPU_NODES
from ddpdoctor.app.request import Request, seconds_left
from ddpdoctor.collectors import Missing
from ddpdoctor.collectors.probe import (
    NodeRanks,
    ProbeResult,
    RunningNode,
    RunningProbe,
    Template,
    join,
    launch,
    start,
    without_launchers,
)
from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.findings import Severity
from ddpdoctor.probe.node_notices import NodeNotices
from ddpdoctor.probe.worker_start import COMPUTE, FOLDERS
from ddpdoctor.system.machine import Deadline

if TYPE_CHECKING:
    from ddpdoctor.facts.launch.record import LaunchLine
    from ddpdoctor.facts.record import Facts
    from ddpdoctor.rules import Rule

__all__ = ["Probing", "folders_of", "refusal", "too_many", "variables_of"]

CURRENT = "."
MOST_RANKS = 64
"""Most local ranks that are probed; no machine has more GPUs."""

JOINT_SECONDS = 15.0
"""Seconds that the ranks of nodes that have just joined may take to join the store."""


def refusal(line: tuple[Facts, tuple[Rule, ...]]) -> Gap | None:
    """Why a launch line is not probed: it cannot work. None if it can."""
    from ddpdoctor.engine import judge

    errors = [f.code for f in judge(*line).findings if f.worst is Severity.ERROR]
    if not errors:
        return None
    return Gap("probe", f"the launch line cannot work ({errors[0]}), so no ranks were started", Why.NOT_HERE)


def too_many(line: Facts | None) -> Gap | None:
    """Why the ranks of a line are not probed here: more than a node can run. None if they are probed."""
    nproc = _asked(line)
    if nproc is None or nproc <= MOST_RANKS:
        return None
    return Gap("probe", f"{nproc} ranks on one node are too many to probe (at most {MOST_RANKS})", Why.NOT_HERE)


def variables_of(line: Facts | None) -> dict[str, str]:
    """The variables that a launch command sets for its ranks: its own, and the master that it names."""
    if line is None or line.launch is None or line.environ is None:
        return {}
    variables = dict(line.environ.variables)
    host, port = _store(line.launch.lines[0]) if line.launch.lines else (None, None)
    if host:
        variables["MASTER_ADDR"] = host
        if port:
            variables["MASTER_PORT"] = str(port)
    return variables


def folders_of(line: Facts | None) -> tuple[str, ...]:
    """The folders that Python searches first for modules of a launch line's script, or of a launcher run by `python -m`.

    Empty if the script is not on this machine.
    """
    lines = line.launch.lines if line is not None and line.launch is not None else ()
    script, starter = (lines[0].script, lines[0].starter) if lines else (None, None)
    if script is None or not script.exists:
        return ()
    own = os.path.dirname(os.path.realpath(script.path))
    return (own, CURRENT) if starter is not None and starter.name.startswith("python") else (own,)


def _store(line: LaunchLine) -> tuple[str | None, int | None]:
    """Where the job's store will listen, as far as this machine can check: the master, or one node's own port."""
    from ddpdoctor.facts.launch.programs import ELSEWHERE, REMOTE
    from ddpdoctor.launch.rendezvous import is_loopback

    plan, starter = line.plan, line.starter
    if starter is None or any(layer.launcher in ELSEWHERE or layer.name in REMOTE for layer in line.layers):
        return None, None
    if plan is not None and starter is line.agent:
        if plan.is_multinode:
            return (plan.host, plan.port) if plan.backend == "static" else (None, None)
        is_here = plan.port and not plan.is_rewritten and not plan.is_standalone and is_loopback(plan.host)
        return ("127.0.0.1", plan.port) if is_here else (None, None)
    machines = starter.value("num_machines") or "1"
    port = starter.value("main_process_port") or starter.value("master_port") or ""
    is_alone = machines == "1" and starter.value("num_nodes") in (None, "1") and starter.given("hostfile") is None
    return ("127.0.0.1", int(port)) if is_alone and port.isdecimal() and int(port) < 65536 else (None, None)


class Probing:
    """A probe: started as early as its kind allows, finished once, stopped in any case."""

    def __init__(
        self,
        request: Request,
        join_seconds: float,
        is_alone: bool,
        launch: Facts | None = None,
        folders: tuple[str, ...] = (),
        *,
        is_quick: bool = False,
    ) -> None:
        """`launch` is the line whose ranks are started here, `folders` are where the job searches for modules first.
        `is_quick`: the ranks do not measure what their GPUs compute and copy.
        """
        self._request = request
        self._join_seconds = join_seconds
        self._environ = Environ(variables=dict(os.environ))
        self._nproc = _asked(launch)
        self._more = {FOLDERS: os.pathsep.join(folders)} if folders else {}
        if is_quick:
            self._more[COMPUTE] = "off"
        is_rank = self._environ.rank is not None and (self._environ.world_size or 0) > 1
        self._joins = is_rank and not is_alone and launch is None
        self._running: RunningProbe | RunningNode | None = None
        self._template: Template | None = None
        self.answer: ProbeResult | None = None
        self.is_interrupted = False
        """Whether Ctrl-C ended the probe: what was examined before is still reported."""

    def looks_at_the_machine(self) -> bool:
        """Whether this rank examines the machine: the first rank of each node does."""
        return not self._joins or (self._environ.local_rank or 0) == 0

    def start_early(self) -> None:
        """Start local ranks if their number is known: importing torch takes longer than examining the machine.

        A rank of a job waits until the machine was examined, which binds the master port for a moment to see whether
        it is free; GPUs are counted first, if there are any.
        """
        running = early_probe.take()
        if running is not None:
            self._running = RunningProbe(running)
        elif not self._joins and (self._nproc or not any(map(os.path.exists, GPU_NODES))):
            self._start(self._nproc or CPU_RANKS)

    def import_early(self, nproc: int | None, environ: Mapping[str, str]) -> None:
        """Begin the import of torch for this many ranks, unless that was done or their number is unknown: which ranks of
        the job they are is decided later.
        """
        if self._template is not None or not nproc or nproc > MOST_RANKS or find_spec("torch") is None:
            return
        try:
            kept = environ if self._joins else without_launchers(environ)
            self._template = Template(nproc, {**kept, **self._more})
        except OSError:
            return  # the ranks' supervisors try it again, and report it

    def finish(self, facts: Facts, say: Callable[[str], None], news: NodeNotices | None = None) -> Facts:
        """The facts with those of the probe, or with a gap that has the reason why there are none."""
        try:
            if self._joins:
                say("waiting for the other ranks")
                seconds = self._seconds()
                self._running = join(
                    self._environ_of_ranks(), min(self._join_seconds, seconds), seconds, self._template, news
                )
            else:
                say("probing the local ranks")
            if self._running is None:
                self._start_here(_gpus(facts) or CPU_RANKS)
            assert self._running is not None
            self.answer = self._running.finish(Deadline(self._seconds()))
            return replace(facts, probe=self.answer.probe)
        except Missing as missing:
            return _without_probe(facts, missing.reason, missing.why)
        except KeyboardInterrupt:
            return self._interrupted(facts)

    def finish_with_other_nodes(
        self,
        facts: Facts,
        node: NodeRanks,
        environ: Mapping[str, str],
        say: Callable[[str], None],
        news: NodeNotices | None,
    ) -> Facts:
        """The same for this node's ranks of a job, whose other ranks are started at the same time on the other nodes; `news`
        reports nodes that disappear before their ranks have joined.
        """
        say(f"probing {node.world_size} ranks on {node.nnodes} nodes")
        try:
            seconds = self._seconds()
            self._running = launch(
                node,
                {**environ, **self._more},
                min(JOINT_SECONDS, seconds),
                seconds,
                template=self._template,
                news=news,
            )
            answer = self._running.finish(Deadline(self._seconds()))
            return replace(facts, probe=answer.probe)
        except Missing as missing:
            return _without_probe(facts, missing.reason, missing.why)
        except KeyboardInterrupt:
            return self._interrupted(facts)

    def _interrupted(self, facts: Facts) -> Facts:
        self.is_interrupted = True
        return _without_probe(facts, "the ranks were not probed: interrupted", Why.UNANSWERED)

    def stop(self) -> None:
        """End what still runs."""
        if self._running is not None:
            self._running.stop()
        if self._template is not None:
            self._template.stop()
            self._template = None

    def _start(self, nproc: int) -> None:
        try:
            self._start_here(nproc)
        except Missing:
            return  # `finish` tries again and says why

    def _start_here(self, nproc: int) -> None:
        self._running = start(nproc, seconds=self._seconds(), environ=self._environ_of_ranks())

    def _environ_of_ranks(self) -> dict[str, str]:
        return {**os.environ, **self._more}

    def _seconds(self) -> float:
        return max(seconds_left(self._request), 1.0)


def _without_probe(facts: Facts, reason: str, why: Why) -> Facts:
    return replace(facts, gaps=(*facts.gaps, Gap("probe", reason, why)))


def _asked(launch: Facts | None) -> int | None:
    """The number of ranks that the launch line starts on this node, None if it is unknown."""
    if launch is None or launch.launch is None or not launch.launch.lines:
        return None
    plan = launch.launch.lines[0].plan
    return plan.nproc or None if plan is not None else None


def _gpus(facts: Facts) -> int:
    """The GPUs that CUDA shows."""
    from ddpdoctor.facts.visibility import visible

    if facts.gpu is None:
        return 0
    return visible(facts.environ.variables if facts.environ is not None else {}, facts.gpu).count
