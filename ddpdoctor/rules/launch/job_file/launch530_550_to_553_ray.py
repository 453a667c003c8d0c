"""LAUNCH530, LAUNCH550 to LAUNCH553: the nodes of a Ray cluster that a job file starts, and the jobs that it submits."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.addresses import is_loopback
from ddpdoctor.facts.submission import RayStart, Submission
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.manifest.launch545_546_549_pods import ray_told_other_gpus
from ddpdoctor.rules.launch.submitted import at_mark, count_of


@cause("LAUNCH530", "ray-head-on-every-node", Severity.ERROR, explains=("LAUNCH553",))
def ray_head_on_every_node(submission: Submission) -> Iterator[Finding]:
    """`ray start --head` runs on more than one node of the job.

    ## Why it matters
    Each head is a Ray cluster of its own with the GPUs of one node. The trainer connects to one of them and waits for
    resources that this cluster does not have.

    ## Fix
    Start the head on one node only.

    Run `ray start --address=HEAD:6379` on the others.

    ## Example
        error[LAUNCH530]: ray start --head runs on 4 nodes

        # before
        srun ray start --head --port=6379 --block &

        # after
        srun --nodes=1 --ntasks=1 -w "$HEAD" ray start --head --port=6379 --block &
        srun --nodes=3 --ntasks=3 --exclude="$HEAD" ray start --address="$HEAD:6379" --block &
    """
    heads: dict[object, list[RayStart]] = {}
    for each in submission.ray_starts:
        if each.is_head and each.is_certain:
            heads.setdefault(each.at, []).append(each)
    for members in heads.values():
        hosts = {each.host for each in members}
        if len(hosts) > 1:
            text = f"ray start --head runs on {len(hosts)} nodes"
            label = "start one head only"
            yield at_mark(submission, members[0].at, text, seen=f"{len(hosts)} nodes", expected="one node", label=label)


def _head(submission: Submission) -> RayStart | None:
    """The one head of the file; None where there are several, or it may not be started."""
    heads = [each for each in submission.ray_starts if each.is_head]
    return heads[0] if len({each.host for each in heads}) == 1 and heads[0].is_certain else None


@cause("LAUNCH550", "ray-address-not-the-head", Severity.ERROR)
def ray_address_not_the_head(submission: Submission) -> Iterator[Finding]:
    """`ray start --address` does not name the host and port of the job file's head.

    ## Why it matters
    The worker retries and then fails with `Unable to connect to GCS`. The trainer waits for GPUs that never join: `No available
    node types can fulfill resource request`.

    ## Fix
    Use the head's host, and the port of its `--port` (6379 by default).

    ## Example
        error[LAUNCH550]: --address has port 6380, but the head listens on 6379

        # before
        ray start --head --port=6379 --block &
        ssh node1 ray start --address=node0:6380

        # after
        ray start --head --port=6379 --block &
        ssh node1 ray start --address=node0:6379
    """
    head = _head(submission)
    if head is None:
        return
    told = set()
    for each in submission.ray_starts:
        mark = each.places.get("--address", each.at)
        if each.is_head or not each.is_certain or mark in told:
            continue
        known = {one.host for one in submission.ray_starts}
        if each.port is not None and head.port is not None and each.port != head.port:
            text = f"--address has port {each.port}, but the head listens on {head.port}"
            seen, expected = str(each.port), str(head.port)
        elif each.address is not None and is_loopback(each.address) and each.host != head.host:
            text = f"{each.address} is each worker itself, but the head runs on {head.host:.30}"
            seen, expected = each.address, head.host
        elif each.address in known and each.address != head.host:
            text = f"--address is {each.address}, but the head runs on {head.host:.30}"
            seen, expected = each.address or "", head.host
        else:
            continue
        told.add(mark)
        yield at_mark(submission, mark, text, seen=seen, expected=expected, label=f"use {expected:.30}")


@cause("LAUNCH551", "ray-start-ends-its-step", Severity.ERROR)
def ray_start_ends_its_step(submission: Submission) -> Iterator[Finding]:
    """srun starts `ray start` without --block, so the step ends and Slurm kills Ray.

    ## Why it matters
    `ray start` starts daemons and returns. Slurm kills all processes of a step when its command returns: workers
    disappear within seconds, `The node has been marked dead`, and the trainer waits for resources.

    ## Fix
    Add `--block`, and `&` at the end of the line.

    ## Example
        error[LAUNCH551]: ray start without --block ends the job step, and Slurm kills Ray

        # before
        srun --nodes=1 --ntasks=1 -w "$node" ray start --address="$head:6379"

        # after
        srun --nodes=1 --ntasks=1 -w "$node" ray start --address="$head:6379" --block &

    ## Source
    ray-project/ray#826 and doc/source/cluster/vms/user-guides/community/slurm.rst.
    """
    told = set()
    for each in submission.ray_starts:
        if each.starter == "srun" and not each.blocks and each.is_certain and each.at not in told:
            told.add(each.at)
            text = "ray start without --block ends the job step, and Slurm kills Ray"
            yield at_mark(submission, each.at, text, seen="no --block", expected="--block", label="add --block")


@cause("LAUNCH552", "ray-job-address-not-dashboard", Severity.ERROR)
def ray_job_address_not_dashboard(submission: Submission) -> Iterator[Finding]:
    """`ray job submit --address=http://…` has the port of the head's GCS instead of the dashboard's.

    ## Why it matters
    Jobs are submitted to the dashboard, 8265 by default. At 6379 the GCS does not speak HTTP: `Failed to connect to Ray at
    address: http://…:6379`.

    ## Fix
    Use the dashboard's port: `http://HEAD:8265`.

    ## Example
        error[LAUNCH552]: http://…:6379 is not the dashboard, which listens on 8265

        # before
        ray job submit --address=http://127.0.0.1:6379 -- python train.py

        # after
        ray job submit --address=http://127.0.0.1:8265 -- python train.py

    ## Source
    `ray job submit --help` of Ray 2.40.
    """
    heads = {each.port for each in submission.ray_starts if each.is_head} - {None} or {6379}
    for each in submission.ray_submits:
        if each.scheme in ("http", "https") and (each.port in heads or each.port in (6379, 10001)):
            text = f"{each.scheme}://{each.host:.20}:{each.port} is not the dashboard, which listens on 8265"
            yield at_mark(submission, each.at, text, seen=str(each.port), expected="8265", label="use port 8265")


@cause("LAUNCH553", "ray-started-twice-on-host", Severity.ERROR)
def ray_started_twice_on_host(submission: Submission) -> Iterator[Finding]:
    """The job file starts a Ray worker on the head's host, which is already a node.

    ## Why it matters
    Ray counts the GPUs and CPUs of this host twice and places two workers on each GPU: `Duplicate GPU detected` from NCCL,
    or CUDA runs out of memory. The two raylets may also conflict on their ports.

    ## Fix
    Start workers on the other hosts only: `srun --exclude="$HEAD" …`.

    ## Example
        error[LAUNCH553]: the head and a worker run on node-0: its GPUs count twice

        # before
        srun -w "$HEAD" -N1 -n1 ray start --head --block &
        srun -N4 -n4 ray start --address="$HEAD:6379" --block &

        # after
        srun -w "$HEAD" -N1 -n1 ray start --head --block &
        srun -N3 -n3 --exclude="$HEAD" ray start --address="$HEAD:6379" --block &
    """
    head = _head(submission)
    if head is None or not head.starter:
        return
    for each in submission.ray_starts:
        if not each.is_head and each.is_certain and each.starter and each.host == head.host and each.told != 0:
            text = f"the head and a worker run on {each.host:.30}: its GPUs count twice"
            label = "leave out the head's host"
            yield at_mark(submission, each.at, text, seen=each.host, expected="the other hosts", label=label)
            return


@ray_told_other_gpus.look
def more_than_the_host_has(submission: Submission) -> Iterator[Finding]:
    """`ray start --num-gpus` is more than the scheduler gives the host."""
    told = set()
    for each in submission.ray_starts:
        mark = each.places.get("--num-gpus", each.at)
        if each.told is None or not each.gpus or each.told <= each.gpus or mark in told or not each.is_certain:
            continue
        told.add(mark)
        text = f"--num-gpus is {each.told}, but {each.host:.30} has {count_of(each.gpus, 'GPU')}"
        fix = "Use the number of GPUs that the scheduler gives the host, or leave the option out."
        yield at_mark(
            submission, mark, text, seen=str(each.told), expected=str(each.gpus), label=f"use {each.gpus}", fix=fix
        )
