"""LAUNCH510: torchrun's --nnodes compared with the nodes on which Slurm or Kubernetes starts it."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.job_file import FileLaunch, JobFile
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.pod import Operator
from ddpdoctor.facts.launch.programs import REMOTE, LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.launch.task_counts import NODES, number, option
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.job_file.places import where
from ddpdoctor.rules.launch.pointing import agents, point, revalue
from ddpdoctor.rules.launch.scheduler.granted import allocated_nodes

__all__ = ["is_one_of_several"]

_COPIES = (Operator.JOBSET, Operator.JOB, Operator.STATEFULSET)


@cause("LAUNCH510", "nnodes-not-allocated", Severity.ERROR, explains=("LAUNCH038",), repairs=("node-count",))
def nnodes_not_allocated(launch: Launch, job_file: JobFile | None = None) -> Iterator[Finding]:
    """--nnodes is not the number of nodes on which the scheduler starts the launcher.

    ## Why it matters
    If it is too large, every torchrun waits for missing nodes: 10 minutes with c10d, 15 with static. If it is too
    small, some nodes train and the others wait, or disturb them with ranks that already exist.

    ## Fix
    Use the number of the scheduler: `--nnodes=$SLURM_NNODES`.

    In a manifest, use the number of pods.

    ## Example
        error[LAUNCH510]: --nnodes=2, but srun starts 4 nodes

        # before
        srun --nodes=4 --ntasks-per-node=1 torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py

        # after
        srun --nodes=4 --ntasks-per-node=1 torchrun --nnodes=4 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
    """
    if job_file is not None:
        yield from _fewer_launchers(job_file)
    for line, layer, plan in agents(launch):
        given = layer.given("nnodes")
        count, source = _started(line)
        if given is None or plan.nnodes is None or count is None or plan.is_standalone:
            continue
        low, high = plan.nnodes
        if low <= count <= high or (count > high == 1):
            continue
        unit = f"{'node' if line.pod is None else 'pod'}{'s' * (count != 1)}"
        text = f"--nnodes={plan.settings['nnodes'].value}, but {source} starts {count} {unit}"
        meant = "$SLURM_NNODES" if line.pod is None and count > 1 else str(count)
        edits = [revalue(given, meant)]
        yield point(launch, line, given.value_word, text, str(count), edits, label=f"use {meant}")


def _started(line: LaunchLine) -> tuple[int | None, str]:
    """On how many nodes or pods the scheduler starts this line."""
    if line.pod is not None:
        several = line.pod.operator in _COPIES and (line.pod.pods or 0) > 1
        return (line.pod.pods, f"the {line.pod.operator.value}") if several else (None, "")
    srun = line.layer(LauncherKind.SRUN)
    if srun is None or is_one_of_several(line, srun):
        return None, ""
    return allocated_nodes(line), "srun"


def is_one_of_several(line: LaunchLine, srun: Layer) -> bool:
    """One srun per node: it names the node, runs beside other sruns, or sets the rank of its node."""
    names = option(srun, ("-w", "--nodelist", "-r", "--relative", "-F", "--nodefile")) is not None
    alone = number(option(srun, NODES)) == 1 or number(option(srun, ("-n", "--ntasks"))) == 1
    rank = None if line.agent is None else line.agent.given("node_rank")
    return names or line.is_background or (alone and rank is not None and "SLURM_" not in rank.value_word.raw)


def _fewer_launchers(job_file: JobFile) -> Iterator[Finding]:
    """ssh or pdsh starts launchers on fewer hosts than each of them waits for, and nothing else of the file starts one."""
    jobs: dict[tuple[object, ...], list[FileLaunch]] = {}
    for each in job_file.launches:
        plan = each.line.plan
        if plan is not None and plan.is_multinode:
            jobs.setdefault((plan.nnodes, plan.host, plan.port), []).append(each)
    for members in jobs.values():
        first = members[0]
        plan = first.line.plan
        hosts = {each.host for each in members}
        is_known = all(each.is_certain and UNKNOWN not in each.host for each in members) and job_file.is_complete
        is_remote = any(name in REMOTE for each in members for name in each.via)
        if plan is None or plan.nnodes is None or not is_known or not is_remote or len(hosts) < 2:
            continue
        if len(members) == len(hosts) < plan.nnodes[0]:
            yield Finding(
                f"--nnodes={plan.nnodes[0]}, but the file starts {len(hosts)} nodes",
                (Evidence("job_file.launches", str(plan.nnodes[0]), str(len(hosts))),),
                where=where(job_file, first.span.start),
                label=f"{len(hosts)} nodes are started",
            )
