"""LAUNCH560, LAUNCH561: a `ray start` that keeps the batch script waiting, and Ray clusters smaller than the job."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch.words import Mark
from ddpdoctor.facts.submission import RayStart, Submission, Task
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.submitted import at_mark, count_of

__all__: list[str] = []


@cause("LAUNCH560", "ray-start-blocks-script", Severity.ERROR)
def ray_start_blocks_script(submission: Submission) -> Iterator[Finding]:
    """`ray start --block` runs in the foreground, so the script never reaches the commands after it.

    ## Why it matters
    With --block the command returns only when Ray ends. No worker and no trainer starts, and the job ends with its time
    limit.

    ## Fix
    Put `&` at the end of the command.

    ## Example
        error[LAUNCH560]: ray start --block in the foreground: the commands after it never run

        # before
        srun --nodes=1 --ntasks=1 -w "$head" ray start --head --port=6379 --block
        srun --nodes=1 --ntasks=1 -w "$node" ray start --address="$head:6379" --block &

        # after
        srun --nodes=1 --ntasks=1 -w "$head" ray start --head --port=6379 --block &
        srun --nodes=1 --ntasks=1 -w "$node" ray start --address="$head:6379" --block &

    ## Source
    `ray start --help` of Ray 2.40: --block.
    """
    for each in submission.ray_starts:
        is_step = each.starter in ("srun", "") and "--block" in each.places and each.is_alone
        if not is_step or each.is_background or not each.is_certain:
            continue
        later = [task.launcher.at for task in submission.tasks if task.launcher is not None]
        later += [one.at for one in submission.ray_starts] + [task.line.marks[0] for task in _plain(submission)]
        if any(_is_after(mark, each.at) for mark in later):
            text = "ray start --block in the foreground: the commands after it never run"
            yield at_mark(submission, each.at, text, seen="--block", expected="&", label="add & at its end")
            return


def _plain(submission: Submission) -> Iterator[Task]:
    """What the script starts itself."""
    return (task for task in submission.tasks if task.launcher is None and task.line.marks)


def _is_after(mark: Mark, other: Mark) -> bool:
    return (mark.line, mark.column) > (other.line, other.column)


@cause("LAUNCH561", "ray-cluster-too-small", Severity.ERROR)
def ray_cluster_too_small(submission: Submission) -> Iterator[Finding]:
    """The job asks for more GPUs than the Ray cluster that the same file starts has.

    ## Why it matters
    Ray waits for resources that never join: `No available node types can fulfill resource request`, or
    `The current node has ... GPUs, but the placement group requires ...`. Nothing fails until a timeout.

    ## Fix
    Start Ray on every node, or ask for fewer GPUs.

    ## Example
        error[LAUNCH561]: 32 GPUs are asked for, but the Ray cluster has 24

        # before
        for ((i = 1; i < nodes - 1; i++)); do    # leaves out the last node

        # after
        for ((i = 1; i < nodes; i++)); do

    ## Source
    vllm/executor/ray_utils.py (`_wait_until_pg_ready`); ray-project/ray, "Placement groups".
    """
    told = set()
    for demand in submission.demands:
        for gpus, at in (*_started(submission), *_of_objects(submission, demand.host)):
            if demand.gpus <= gpus or demand.at in told:
                continue
            told.add(demand.at)
            text = f"{demand.gpus} GPUs are asked for, but the Ray cluster has {gpus}"
            label = f"asks for {demand.gpus} GPUs"
            mark = at or demand.at
            if at is not None:
                label = f"{count_of(gpus, 'GPU')} in all"
            fix = f"Start as many nodes as `{demand.text}` needs, or ask for {gpus} GPUs."
            yield at_mark(
                submission, mark, text, seen=f"{gpus} GPUs", expected=f"{demand.gpus} GPUs", label=label, fix=fix
            )


def _started(submission: Submission) -> Iterator[tuple[int, Mark | None]]:
    """The GPUs of the cluster whose nodes the file starts one by one; nothing where one of them is not known."""
    hosts: dict[str, RayStart] = {each.host: each for each in submission.ray_starts}
    sizes = [each.gpus if each.told is None else each.told for each in hosts.values()]
    is_whole = submission.shell is not None and submission.shell.is_complete
    is_known = all(each.is_certain for each in submission.ray_starts) and is_whole and None not in sizes
    if is_known and any(each.is_head for each in submission.ray_starts):
        yield sum(size or 0 for size in sizes), None


def _of_objects(submission: Submission, host: str) -> Iterator[tuple[int, Mark | None]]:
    """The GPUs of the cluster of an operator in which the program runs."""
    names = {group.cluster for group in submission.ray_groups if group.cluster}
    own = max((name for name in names if host.startswith(name)), key=len, default=None)
    groups = [group for group in submission.ray_groups if group.cluster == own and own is not None]
    if groups and all(group.pods is not None for group in groups):
        sizes = [(group.gpus if group.told is None else group.told) * (group.pods or 0) for group in groups]
        yield sum(sizes), groups[sizes.index(max(sizes))].at
