"""The probe as a collector: ranks on this machine only, this node's ranks of a job, or this process as one rank."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ddpdoctor.collectors import Missing
from ddpdoctor.facts.codec import FactsError, decode
from ddpdoctor.facts.gaps import Why
from ddpdoctor.facts.probe import Probe
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.probe.node_notices import NodeNotices
from ddpdoctor.probe.worker_start import TEMPLATE, begin, run_probe
from ddpdoctor.system.machine import Deadline
from ddpdoctor.system.process import LateError, kill, output_within
from ddpdoctor.system.timeouts import in_threads

__all__ = [
    "NodeRanks",
    "ProbeResult",
    "RunningNode",
    "RunningProbe",
    "Template",
    "join",
    "launch",
    "start",
    "without_launchers",
]

OTHER_LAUNCHERS = ("TORCHELASTIC_", "PET_", "ROLE_", "GROUP_", "SLURM_", "OMPI_", "PMI_", "PMIX_")
"""Prefixes of the variables that would make a rank look like one of another launcher."""

ENDING_SECONDS = 2.0
"""How long the probe may take after its own timeout to report its result."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe. `is_first`: from the lowest live rank of its node; `is_head`: from rank 0."""

    probe: Probe
    is_first: bool = True
    is_head: bool = True


@dataclass(frozen=True, slots=True)
class NodeRanks:
    """This node's part of a job: `nproc` ranks from `first_rank` on, of `world_size` that join the store at the master's port.

    The supervisor of rank 0 hosts the store. Nodes may have different numbers of ranks. `run` separates jobs at the same
    port: all nodes of a job need the same value.
    """

    nproc: int
    world_size: int
    master_addr: str
    master_port: int
    first_rank: int = 0
    node_rank: int = 0
    nnodes: int = 1
    run: str = "ddpdoctor"

    def environs(self, environ: Mapping[str, str]) -> list[dict[str, str]]:
        """The variables of each rank of this node: `environ` without those of other launchers, plus the rank's own."""
        kept = without_launchers(environ) | {
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.nproc),
            "GROUP_RANK": str(self.node_rank),
            "GROUP_WORLD_SIZE": str(self.nnodes),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
            "DDPDOCTOR_RUN": self.run,
        }
        return [kept | {"RANK": str(self.first_rank + local), "LOCAL_RANK": str(local)} for local in range(self.nproc)]


def without_launchers(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables, without those that would make a rank look like one of another launcher."""
    return {name: value for name, value in environ.items() if not name.startswith(OTHER_LAUNCHERS)}


class Template:
    """A process that imports torch for the ranks of this node before their rank numbers are known.

    `stop` ends it and all its workers, whether a supervisor uses them or not.
    """

    def __init__(self, ranks: int, environ: Mapping[str, str]) -> None:
        """Start it.

        Raises:
            OSError: no process can be started.
        """
        self._process, self._pipes = begin(TEMPLATE, ranks, environ)
        self.ranks = ranks

    def worker(self, index: int) -> tuple[str, tuple[int, ...]]:
        """The supervisor's `--worker` argument for one rank, and the descriptors of its pipes."""
        fds = self._pipes[index]
        return ",".join(map(str, (*fds, self._process.pid))), fds

    def close(self) -> None:
        """Close the pipes: from now on, a worker ends when its supervisor is gone."""
        for fds in self._pipes:
            for fd in fds:
                os.close(fd)
        self._pipes = []

    def stop(self) -> None:
        """End it and all its workers."""
        self.close()
        kill(self._process)


class RunningProbe:
    """A running probe. `finish` waits for it, `stop` ends it; one of them must be called."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def finish(self, deadline: Deadline) -> ProbeResult:
        """The result of the probe.

        Raises:
            Missing: it timed out, or ended without a result.
        """
        try:
            out, err = output_within(self.process, deadline.left + ENDING_SECONDS)
        except LateError:
            raise Missing("the probe timed out") from None
        finally:
            self.stop()
        try:
            answer: dict[str, Any] = json.loads(out)
            probe = decode(Probe, answer.pop("probe"))
            return ProbeResult(probe, bool(answer.get("is_first", True)), bool(answer.get("is_head", True)))
        except (json.JSONDecodeError, UnicodeDecodeError, FactsError, KeyError):
            lines = err.decode("utf-8", "replace").strip().splitlines()
            last = lines[-1] if lines else f"exit code {self.process.returncode}"
            raise Missing(f"the probe failed to run: {last}") from None

    def stop(self) -> None:
        """End it and everything that it started."""
        if self.process.poll() is None:
            kill(self.process)


def start(
    nproc: int, backend: str = "auto", seconds: float = 60.0, environ: Mapping[str, str] | None = None
) -> RunningProbe:
    """Start `nproc` ranks on this machine; they import torch while the caller does something else.

    `environ` is their environment, by default that of this process.

    Raises:
        Missing: torch is not installed, or no process can be started.
    """
    words = ["--nproc", str(nproc), "--backend", backend, "--timeout", f"{seconds:.1f}"]
    return _run("ddpdoctor.probe.local", words, environ)


def join(
    environ: Mapping[str, str],
    join_seconds: float,
    seconds: float,
    template: Template | None = None,
    news: NodeNotices | None = None,
) -> RunningProbe:
    """Join a job as the rank that `environ` names. `template` has imported torch for it already; `news` reports nodes that
    disappeared before they joined.

    Raises:
        Missing: torch is not installed, or no process can be started.
    """
    words = ["--hand-over", "--job", str(os.getppid()), *_times(join_seconds, seconds)]
    return _supervisors(words, [environ], template, news)[0]


class RunningNode:
    """The running ranks of this node. `finish` waits for them, `stop` ends them; one of them must be called."""

    def __init__(self, ranks: Sequence[RunningProbe]) -> None:
        self.ranks = ranks

    def finish(self, deadline: Deadline) -> ProbeResult:
        """The result of the lowest live rank of this node.

        Raises:
            Missing: no rank reported in time.
        """
        answers: list[ProbeResult] = []
        failures: list[Missing] = []

        def hear(rank: RunningProbe) -> None:
            try:
                answers.append(rank.finish(deadline))
            except Missing as missing:
                failures.append(missing)
            except (OSError, ValueError):
                return  # Ctrl-C: the rank was stopped and its pipes closed in the meantime

        in_threads(functools.partial(hear, rank) for rank in self.ranks)
        first = next((a for a in answers if a.is_first), None) or next(iter(answers), None)
        if first is None:
            raise failures[0]
        return first

    def stop(self) -> None:
        """End them and everything that they started."""
        for rank in self.ranks:
            rank.stop()


def launch(
    node: NodeRanks,
    environ: Mapping[str, str],
    join_seconds: float,
    seconds: float,
    backend: str = "auto",
    template: Template | None = None,
    news: NodeNotices | None = None,
) -> RunningNode:
    """Start this node's ranks of a job; on every node with its own `node`, at about the same time.

    `template` has imported torch for them, if it is for the same number; `news` reports nodes that disappeared. A node that
    does not join within `join_seconds` is reported by its ranks; the probe ends within `seconds`.

    Raises:
        Missing: torch is not installed, or no process can be started.
    """
    words = [*_times(join_seconds, seconds), "--hand-over", "--backend", backend]
    return RunningNode(_supervisors(words, node.environs(environ), template, news))


def _supervisors(
    words: Sequence[str], environs: Sequence[Mapping[str, str]], template: Template | None, news: NodeNotices | None
) -> list[RunningProbe]:
    """One supervisor per rank, with the template's workers or its own."""
    given = () if news is None else (news.fd,)
    words = [*words, *(f"--news={fd}" for fd in given)]
    if template is None or template.ranks != len(environs):
        return [_run("ddpdoctor.probe", words, environ, given) for environ in environs]
    supervisors = []
    for index, environ in enumerate(environs):
        worker, fds = template.worker(index)
        supervisors.append(_run("ddpdoctor.probe", [*words, "--worker", worker], environ, (*fds, *given)))
    template.close()
    return supervisors


def _times(join_seconds: float, seconds: float) -> list[str]:
    return ["--join-timeout", f"{join_seconds:.1f}", "--timeout", f"{seconds:.1f}"]


def _run(module: str, words: Sequence[str], environ: Mapping[str, str] | None, fds: Sequence[int] = ()) -> RunningProbe:
    if importlib.util.find_spec("torch") is None:
        raise Missing(f"torch is not installed for {sys.executable}", Why.NOT_HERE)
    try:
        process = run_probe(module, words, environ, fds)
    except OSError as error:
        raise Missing(f"the probe could not be started: {error.strerror}") from None
    return RunningProbe(process)
