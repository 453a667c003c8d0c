"""LAUNCH534, LAUNCH535: the ends of background steps, and nodes that are started one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.job_file import FileLaunch, JobFile
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.findings import Edit, Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.job_file.places import edit, row_of, where

_ENDS_AT_ONCE = (
    *("echo", "printf", "date", "export", "set", "unset", "exit", "cd", "true", ":", "test", "[", "shift", "trap"),
    *(
        "let",
        "declare",
        "local",
        "mkdir",
        "rm",
        "cp",
        "mv",
        "touch",
        "chmod",
        "ls",
        "cat",
        "hostname",
        "return",
        "ulimit",
    ),
)
"""Commands that do not keep the script running."""


@cause("LAUNCH534", "background-steps-not-waited-for", Severity.ERROR)
def background_steps_not_waited_for(job_file: JobFile) -> Iterator[Finding]:
    """A batch script ends while the training that it started in the background still runs.

    ## Why it matters
    A batch job ends with its script, and Slurm kills all steps that still run: `slurmstepd: error: *** STEP … CANCELLED`,
    exit code 0 of the job.

    ## Fix
    Put `wait` at the end of the script.

    ## Example
        error[LAUNCH534]: the script ends without waiting for its background steps

        # before
        srun --nodes=1 --ntasks=1 torchrun --nproc-per-node=4 train.py &

        # after
        srun --nodes=1 --ntasks=1 torchrun --nproc-per-node=4 train.py &
        wait
    """
    last = max((each.order for each in job_file.launches if each.is_background), default=None)
    if last is None or not job_file.is_batch or not job_file.is_complete:
        return
    launch = next(each for each in job_file.launches if each.is_background and each.order == last)
    if not all(
        each.words[0].rpartition("/")[2] in _ENDS_AT_ONCE or each.is_background for each in job_file.commands[last:]
    ):
        return
    if not launch.is_certain:
        return
    text = job_file.text
    end = len(text)
    yield Finding(
        "the script ends without waiting for its background steps",
        (Evidence("job_file.commands", "no wait", "wait after the last background step"),),
        where=where(job_file, launch.span.start),
        label="add wait after the last one",
        edits=(edit(job_file, end, end, "wait\n" if text.endswith("\n") else "\nwait\n"),),
    )


@cause("LAUNCH535", "nodes-started-one-after-another", Severity.ERROR, explains=("LAUNCH061", "LAUNCH036"))
def nodes_started_one_after_another(job_file: JobFile) -> Iterator[Finding]:
    """A script starts the launcher of the next node only after the launcher of the first has ended.

    ## Why it matters
    The first launcher waits for the other nodes, which are started after it: it fails after 10 minutes with c10d, or 15
    with static, with `RendezvousTimeoutError` or `DistStoreError`.

    ## Fix
    Put `&` after the command in the loop, and `wait` after the loop.

    ## Example
        error[LAUNCH535]: node 0 waits for 2 nodes, but the next one is started after it ends

        # before
        for i in 0 1; do
          ssh node$i "torchrun --nnodes=2 --node-rank=$i --master-addr=node0 --nproc-per-node=8 /data/train.py"
        done

        # after
        for i in 0 1; do
          ssh node$i "torchrun --nnodes=2 --node-rank=$i --master-addr=node0 --nproc-per-node=8 /data/train.py" &
        done
        wait
    """
    found = next(_sequences(job_file), None)
    if found is None:
        return
    first, nodes = found
    yield Finding(
        f"the first node waits for {nodes} nodes, but the next one is started after it ends",
        (Evidence("job_file.launches", "in the foreground", "in the background, with wait"),),
        where=where(job_file, first.span.start),
        label="put & after it",
        edits=tuple(_in_background(job_file, first)),
    )


def _sequences(job_file: JobFile) -> Iterator[tuple[FileLaunch, int]]:
    """Launchers of one node each, of several nodes, started by the same text one after the other."""
    groups: dict[int, list[FileLaunch]] = {}
    for each in job_file.launches:
        groups.setdefault(each.group, []).append(each)
    alone = [members[0] for members in groups.values() if len(members) == 1]
    for at, first in enumerate(alone):
        plan = first.line.plan
        if plan is None or plan.nnodes is None or plan.nnodes[0] < 2 or first.is_background or not first.is_certain:
            continue
        for other in alone[at + 1 :]:
            if (
                other.span == first.span
                and other.line.plan is not None
                and other.is_certain
                and _are_nodes(first, other)
            ):
                yield first, plan.nnodes[0]


def _are_nodes(first: FileLaunch, other: FileLaunch) -> bool:
    """Whether two launchers are different nodes of one job."""
    one, two = first.line.plan, other.line.plan
    assert one is not None
    assert two is not None
    is_ranked = None not in (one.node_rank, two.node_rank) and one.node_rank != two.node_rank
    return (one.nnodes, one.host, one.port) == (two.nnodes, two.host, two.port) and (
        is_ranked or (first.host != other.host and bool(first.via))
    )


def _in_background(job_file: JobFile, launch: FileLaunch) -> Iterator[Edit]:
    """`&` at the end of the command, and `wait` below the loop."""
    text = job_file.text
    row = row_of(job_file, max(launch.span.start, launch.span.end - 1))
    rest = text[launch.span.end : row.end].rstrip("\n")
    done = text.find("\ndone", launch.span.end)
    if rest.strip() or done < 0 or launch.line.layer(LauncherKind.CONTAINER) is not None:
        return
    yield edit(job_file, launch.span.end, launch.span.end, " &")
    below = row_of(job_file, done + 1)
    ends = "" if text[below.start : below.end].endswith("\n") else "\n"
    yield edit(job_file, below.end, below.end, f"{ends}wait\n")
