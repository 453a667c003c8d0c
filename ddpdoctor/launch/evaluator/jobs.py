"""The jobs that a job file starts, for rules that compare nodes and ranks; and its processes as a table."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddpdoctor.facts.job import Job, Process
from ddpdoctor.facts.launch.layer import starts_ranks
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import UNKNOWN, Mark
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.evaluator.imagined_run import ImaginedRun, Launched
from ddpdoctor.launch.evaluator.values import Origin
from ddpdoctor.launch.jobs import job_of_launch
from ddpdoctor.launch.line import line_of
from ddpdoctor.launch.lookup import NO_FILES, FileLookup
from ddpdoctor.launch.rendezvous import plan_of
from ddpdoctor.light_dataclass import dataclass

__all__ = ["ImaginedJob", "jobs_of_run", "processes_of_job", "rank_of"]

_RANK = (
    "RANK",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "FLUX_TASK_RANK",
    "HOROVOD_RANK",
    "JSM_NAMESPACE_RANK",
)
_LOCAL = (
    *("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "FLUX_TASK_LOCAL_ID"),
    *("HOROVOD_LOCAL_RANK", "PMI_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_RANK"),
)
_WORLD = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "FLUX_JOB_SIZE", "HOROVOD_SIZE")


@dataclass(frozen=True, slots=True)
class ImaginedJob:
    """What one statement of a job file, or one loop of background statements, starts on all hosts.

    `launch` has one line per launcher, each with its node, so that rules compare them; `launched` are the same in order.
    `rows` are the indices at which the rows of the file begin.
    """

    launch: Launch
    job: Job
    launched: tuple[Launched, ...]
    is_certain: bool
    rows: tuple[int, ...] = (0,)

    def place(self, origin: Origin) -> tuple[int, int]:
        """Line and column in the file, from 1."""
        row = bisect_right(self.rows, origin.start) - 1
        return row + 1, origin.start - self.rows[row] + 1


def jobs_of_run(
    run: ImaginedRun, launch: Launch, file: str, text: str, version: Version, files: FileLookup = NO_FILES
) -> tuple[ImaginedJob, ...]:
    """The jobs of a run, in the order of the file."""
    rows = (0, *(found.end() for found in re.finditer("\n", text)))
    jobs = []
    for members in _groups(run.launched, version):
        lines = tuple(
            _line(member, node, file, rows, version, files, is_one_of_many=len(members) > 1)
            for node, member in enumerate(members)
        )
        of_job = replace(launch, lines=lines)
        job = job_of_launch(of_job)
        if not job.agents:
            job = replace(job, processes=tuple(_ranks(members)) or tuple(_ranks_of_deepspeed(members)))
        is_certain = all(member.is_certain for member in members)
        jobs.append(ImaginedJob(of_job, job, tuple(members), is_certain, rows))
    return tuple(jobs)


def _groups(launched: Sequence[Launched], version: Version) -> Iterator[list[Launched]]:
    """What belongs to one job: one statement on all hosts, or statements of one script that run at the same time."""
    groups: dict[tuple[object, ...], list[Launched]] = {}
    for each in launched:
        is_alone = not each.is_background
        key = (each.group,) if is_alone else ("background", each.origin, _script(each))
        groups.setdefault(key, []).append(each)
    singles = [members[0] for key, members in groups.items() if key[0] == "background" and len(members) == 1]
    together = _statement_per_node(singles, version)
    if together:
        chosen = {id(each) for each in together}
        yield together
        yield from (members for members in groups.values() if id(members[0]) not in chosen)
    else:
        yield from groups.values()


def _statement_per_node(launched: Sequence[Launched], version: Version) -> list[Launched] | None:
    """One torchrun of the same script per host, each in a statement of its own, as many as each of them waits for."""
    hosts = {each.place.host for each in launched}
    if len(launched) < 2 or len(hosts) < len(launched) or len({_script(each) for each in launched}) > 1:
        return None
    counts = set()
    for each in launched:
        of_torch = each.layer.launcher in (LauncherKind.TORCHRUN, LauncherKind.LEGACY)
        environ = {name: value.text for name, value in each.environ.items()}
        plan = plan_of(each.layer, environ, version) if of_torch and not each.layer.is_garbled else None
        counts.add(None if plan is None else plan.nnodes)
    return list(launched) if counts == {(len(launched), len(launched))} else None


def _script(each: Launched) -> str:
    script = each.layer.reading.script
    return "" if script is None else script.text


def _line(
    member: Launched,
    node: int,
    file: str,
    rows: Sequence[int],
    version: Version,
    files: FileLookup,
    *,
    is_one_of_many: bool,
) -> LaunchLine:
    """A launcher on one host as a launch line whose words point into the file."""
    source = " ".join(word.raw for word in member.words)
    environ = {name: value.text for name, value in member.environ.items()}
    line = line_of(
        source,
        member.words,
        environ,
        version,
        member.folder,
        node=node if is_one_of_many else None,
        file=file,
        is_background=member.is_background,
        files=files,
    )
    host = member.place.host if member.place.hostname is None else None
    slots = None if member.active is None else dict(member.active)
    marks = tuple(_marks(member, file, rows))
    hostfile = line.hostfile if member.hostfile is None else member.hostfile
    return replace(line, host=host, marks=marks, pod=member.pod, slots=slots, hostfile=hostfile)


def _marks(member: Launched, file: str, rows: Sequence[int]) -> Iterator[Mark]:
    """Where each word was written; a word of unknown origin is placed at its command."""
    for word, value in zip(member.words, member.argv, strict=True):
        origin = next((o for o in value.origins if o.file == file), member.origin)
        row = bisect_right(rows, origin.start) - 1
        yield Mark(row + 1, origin.start - rows[row] + 1, word.start)


def _ranks(members: Sequence[Launched]) -> Iterator[Process]:
    """Processes that srun or mpirun starts without torchrun: each is a rank, by the variables that it reads."""
    for member in members:
        if starts_ranks(member.layer.launcher):
            continue
        yield Process(
            node=member.place.node,
            host=member.place.host,
            rank=_number(member, _RANK),
            local_rank=_number(member, _LOCAL),
            world_size=_number(member, _WORLD),
            argv=tuple(value.text for value in member.argv),
            environ={name: value.text for name, value in member.environ.items()},
            cwd=member.folder,
            started_by=member.place.via[-1] if member.place.via else "shell",
            evidence=f"launch.lines[{member.place.task}]",
        )


def _ranks_of_deepspeed(members: Sequence[Launched]) -> Iterator[Process]:
    """The ranks that the runner of deepspeed starts, host by host."""
    world = sum(member.ranks or 0 for member in members)
    first = 0
    for member in members:
        for local in range(member.ranks or 0):
            script = member.layer.reading.script
            yield Process(
                node=member.place.node,
                host=member.place.host,
                rank=first + local,
                local_rank=local,
                world_size=world,
                argv=() if script is None else (script.text, *(word.text for word in member.layer.reading.arguments)),
                environ={name: value.text for name, value in member.environ.items()},
                cwd=member.folder,
                started_by="deepspeed",
                evidence=f"launch.lines[{member.place.task}]",
            )
        first += member.ranks or 0


def _number(member: Launched, names: Sequence[str]) -> int | None:
    """What the variables of torch say, else those of the launcher that started the process."""
    is_of_mpi = not {"srun"} & set(member.place.via[-1:])
    ordered = sorted(names, key=lambda name: name.startswith("SLURM") and is_of_mpi)
    text = next((member.environ[name].text for name in ordered if name in member.environ), "")
    return int(text) if re.fullmatch(r"\d{1,6}", text) else None


def rank_of(member: Launched) -> int | None:
    """The rank of a process, by the variables of torch or of the launcher that started it."""
    return _number(member, _RANK)


def processes_of_job(job: ImaginedJob) -> tuple[Process, ...]:
    """The ranks of a job; where a launcher's number of ranks is unknown, one entry for the launcher."""
    if job.job.processes:
        return job.job.processes
    return tuple(
        Process(
            node=member.place.node,
            host=member.place.host,
            argv=tuple(value.text.replace(UNKNOWN, "?") for value in member.argv),
            environ={name: value.text for name, value in member.environ.items()},
            cwd=member.folder,
            started_by=member.layer.launcher.value,
        )
        for member in job.launched
    )
