"""HOST007: more threads than CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.host import Host, count_cpus, local_ranks
from ddpdoctor.facts.job import Job
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.reading import Given
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import Word, is_known
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.launch.container import container_of
from ddpdoctor.launch.ranks_here import ranks_here
from ddpdoctor.launch.task_counts import number, option
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import point, shown

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu


@cause("HOST007", "cpu-oversubscribed", Severity.WARNING)
def cpu_oversubscribed(
    host: Host, environ: Environ, gpu: Gpu | None = None, job: Job | None = None
) -> Iterator[Finding]:
    """The ranks of this node and their OpenMP threads outnumber the CPUs that they may use.

    ## Why it matters
    Threads compete for the cores: some ranks become slow, the others wait for them in every collective, and finally
    one times out. No message reports it.

    ## Fix
    Request more CPUs (--cpus-per-task in Slurm, resources.requests.cpu in Kubernetes), or set OMP_NUM_THREADS to the
    CPUs per rank divided by 1 + num_workers.

    ## Example

        8 ranks with 8 OpenMP threads each have only 32 CPUs

        # before
        export OMP_NUM_THREADS=8
        torchrun --nproc-per-node 8 train.py
        # after
        export OMP_NUM_THREADS=4
        torchrun --nproc-per-node 8 train.py
    """
    ranks, threads = local_ranks(environ, gpu, job) or 1, environ.integer("OMP_NUM_THREADS") or 1
    cpus = host.need(host.cpus_allowed, "cpus_allowed")
    is_of_line = job is not None and job.ranks_per_node is not None
    if not is_of_line and environ.local_rank is not None and cpus < (host.cpus_online or cpus):
        ranks = 1  # this is one rank, bound to CPUs of its own
    if threads < 1 or ranks * threads <= cpus:
        return
    yield Finding(
        f"{_ranks_with_threads(ranks, threads)} only {cpus} CPU{'s' * (cpus > 1)}",
        (
            Evidence("host.cpus_allowed", str(cpus), f"at least {ranks * threads}"),
            Evidence("environ.variables.OMP_NUM_THREADS", environ.get("OMP_NUM_THREADS") or "not set"),
        ),
        fix_command=f"export OMP_NUM_THREADS={cpus // ranks}" if threads > 1 and cpus >= ranks else None,
    )


def _ranks_with_threads(ranks: int, threads: int) -> str:
    """The subject and the verb of the headline."""
    with_threads = f" with {threads} OpenMP threads" if threads > 1 else ""
    return f"{ranks} ranks{with_threads and f'{with_threads} each'} have" if ranks > 1 else f"1 rank{with_threads} has"


_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


@cpu_oversubscribed.look
def crowded(launch: Launch) -> Iterator[Finding]:
    """More ranks and OpenMP threads than CPUs."""
    for line in launch.lines:
        limit = next(_limits(line), None)
        if limit is None:
            continue
        cpus, ranks, word, source = limit
        threads = _threads(line)
        if ranks is None or cpus < 1 or ranks * threads <= cpus:
            continue
        text = f"{_ranks_with_threads(ranks, threads)} only {cpus} CPU{'s' * (cpus > 1)} ({source})"
        label = f"at least {ranks * threads} CPUs are needed"
        expected, severity = f"at least {ranks * threads} CPUs", Severity.WARNING
        finding = point(launch, line, word, text, expected, label=label, severity=severity)
        place = None if line.pod is None else line.pod.cpus_at
        yield (
            finding
            if place is None
            else Finding(
                text,
                finding.evidence,
                label=label,
                where=Where(file=line.file, line=place.line, column=place.column),
                severity=Severity.WARNING,
            )
        )


def _limits(line: LaunchLine) -> Iterator[tuple[int, int | None, Word | None, str]]:
    """CPUs, the ranks that share them, and the word that sets them: the setting that is closest to the ranks wins."""
    ranks = ranks_here(line)
    if line.pod is not None:
        if line.pod.cpus is not None:
            yield line.pod.cpus, ranks, None, "the container's limit"
        return
    for word, source in _pinned(line):
        yield count_cpus(word.text.rpartition("=")[2]), ranks, word, source
    container = container_of(line)
    if container is not None:
        if container.cpu_set is not None and _LIST.fullmatch(container.cpu_set.value or ""):
            yield (
                count_cpus(container.cpu_set.value or ""),
                ranks,
                container.cpu_set.value_word,
                shown(container.cpu_set.value_word),
            )
        if container.cpus is not None and re.fullmatch(r"\d+(\.\d+)?", container.cpus.value or ""):
            yield int(float(container.cpus.value or "0")), ranks, container.cpus.value_word, shown(container.cpus.word)
        return
    srun = line.layer(LauncherKind.SRUN)
    if srun is None or line.layer(LauncherKind.CONTAINER) is not None:
        return
    for options in (srun, line.batch):
        given: Given | None = option(options, ("-c", "--cpus-per-task"))
        if given is not None and is_known(given.value) and (cpus := number(given)) is not None:
            own = ranks if line.starter is not None else 1
            yield cpus, own, given.value_word if given.value_word in line.argv else None, f"--cpus-per-task={cpus}"
            return


def _pinned(line: LaunchLine) -> Iterator[tuple[Word, str]]:
    """The CPU lists of taskset and numactl."""
    for layer in reversed(line.layers):
        if layer.name == "taskset" and any(w.text.startswith(("-c", "--cpu-list", "-ac")) for w in layer.own):
            listed = next((w for w in layer.own[1:] if _LIST.fullmatch(w.text)), None)
            if listed is not None:
                yield listed, f"taskset -c {listed.text}"
        given = option(layer, ("-C", "--physcpubind")) if layer.name == "numactl" else None
        if given is not None and _LIST.fullmatch(given.value or ""):
            yield given.value_word, f"numactl {shown(given.word)}"


def _threads(line: LaunchLine) -> int:
    text = line.environ.variables.get("OMP_NUM_THREADS", "")
    return int(text) if re.fullmatch(r"[1-9]\d{0,3}", text) else 1
