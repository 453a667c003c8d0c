"""LAUNCH510: torchrun's --nnodes compared with the nodes on which Slurm or Kubernetes starts it."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.job import Agent
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.pod import Operator
from ddpdoctor.facts.launch.programs import REMOTE, LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.facts.submission import Launcher, Submission, Task
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.launch.task_counts import NODES, number, option
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.job_file.places import shell_of, where
from ddpdoctor.rules.launch.pointing import agents, point, revalue
from ddpdoctor.rules.launch.scheduler.granted import allocated_nodes
from ddpdoctor.rules.launch.submitted import agents_of, at_mark, count_of, has_one_node_by_default, mark_of

__all__ = ["is_one_of_several"]

_COPIES = (Operator.JOBSET, Operator.JOB, Operator.STATEFULSET)


@cause("LAUNCH510", "nnodes-not-allocated", Severity.ERROR, explains=("LAUNCH038",), repairs=("node-count",))
def nnodes_not_allocated(launch: Launch) -> Iterator[Finding]:
    """--nnodes is not the number of nodes on which the scheduler starts the launcher.

    ## Why it matters
    If it is too large, every torchrun waits for missing nodes: 10 minutes with c10d, 15 with static. If it is too
    small, some nodes train and the others wait, or join with ranks that already exist.

    ## Fix
    Use the scheduler's number of nodes: `--nnodes=$SLURM_NNODES`.

    In a manifest, use the number of pods.

    ## Example
        error[LAUNCH510]: --nnodes=2, but srun starts 4 nodes

        # before
        srun --nodes=4 --ntasks-per-node=1 torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py

        # after
        srun --nodes=4 --ntasks-per-node=1 torchrun --nnodes=4 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
    """
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


@nnodes_not_allocated.look
def nodes_over_ssh(submission: Submission) -> Iterator[Finding]:
    """ssh or pdsh starts launchers on fewer hosts than each of them waits for, and nothing else of the file starts one."""
    is_complete = shell_of(submission).is_complete and all(step.is_certain for step in submission.steps)
    jobs: dict[tuple[object, ...], list[Task]] = {}
    for task in submission.tasks:
        plan = task.line.plan
        if plan is not None and plan.is_multinode:
            jobs.setdefault((plan.nnodes, plan.host, plan.port), []).append(task)
    for members in jobs.values():
        first = members[0]
        plan = first.line.plan
        hosts = {each.host for each in members}
        is_known = is_complete and all(UNKNOWN not in task.host for task in members)
        is_remote = any(name in REMOTE for each in members for name in each.via)
        if plan is None or plan.nnodes is None or not is_known or not is_remote or len(hosts) < 2:
            continue
        if len(members) == len(hosts) < plan.nnodes[0]:
            yield Finding(
                f"--nnodes={plan.nnodes[0]}, but the file starts {len(hosts)} nodes",
                (Evidence("submission.steps", str(plan.nnodes[0]), str(len(hosts))),),
                where=where(submission, first.span.start),
                label=f"{len(hosts)} nodes are started",
            )


@nnodes_not_allocated.look
def nodes_of_step(submission: Submission) -> Iterator[Finding]:
    """A launcher of the job file starts torchrun or accelerate on another number of nodes than it waits for."""
    told = set()
    if any(step.is_background for step in submission.steps):
        return  # several steps may be one job
    for _, task, agent in agents_of(submission):
        launcher, expected = task.launcher, agent.plan.nnodes
        if launcher is None and submission.grant.scheduler == "SkyPilot":
            found = _on_every_node(submission, task, agent)
            if found is not None:
                yield found
                return
        if launcher is None or launcher.name not in _STARTERS or submission.grant.is_array:
            continue
        started = len(launcher.hosts)
        if expected is None or agent.plan.is_standalone or not _is_counted(submission, launcher):
            continue
        if expected[0] <= started <= expected[1] or expected == (1, 1) or launcher.at in told:
            continue
        told.add(launcher.at)
        word = agent.plan.settings["nnodes"].word
        size = (
            submission.grant.nodes if not submission.grant.parts else sum(len(p.hosts) for p in submission.grant.parts)
        )
        is_partial = size is not None and started < size and expected[0] <= size <= expected[1]
        mark = launcher.at if is_partial or word is None else mark_of(task, word)
        text = f"{_spelled(agent, expected)}, but {launcher.name} starts {count_of(started, 'node')}"
        label = f"start it on all {size} nodes" if is_partial else f"use {started}"
        meant = f"{expected[1]} nodes" if is_partial else str(started)
        yield at_mark(submission, mark, text, seen=str(expected[1]), expected=meant, label=label)


def _on_every_node(submission: Submission, task: Task, agent: Agent) -> Finding | None:
    """SkyPilot runs the text on all of its nodes."""
    count, expected, word = submission.grant.nodes, agent.plan.nnodes, agent.plan.settings["nnodes"].word
    if count is None or expected is None or expected[0] <= count <= expected[1] or word is None or expected == (1, 1):
        return None
    text = f"{_spelled(agent, expected)}, but num_nodes is {count}"
    meant = "$SKYPILOT_NUM_NODES"
    return at_mark(submission, mark_of(task, word), text, seen=str(expected[1]), expected=meant, label=f"use {meant}")


_STARTERS = ("srun", "jsrun", "flux", "mpiexec", "mpirun", "mpiexec.hydra", "blaunch", "pbsdsh")


def _is_counted(submission: Submission, launcher: Launcher) -> bool:
    """Whether the nodes on which a launcher works are known: by its own options, or those of the batch script."""
    own = {"-N", "--nodes", "--het-group", "-H", "--host", "--hostfile", "-hostfile", "-hosts"} & launcher.places.keys()
    script = {"-N", "--nodes", "-w", "--nodelist", "-l"} & submission.grant.places.keys()
    if launcher.name == "srun" and {"-w", "--nodelist", "-r", "--relative", "-x", "--exclude"} & launcher.places.keys():
        return False  # one step per node, which other steps join
    if launcher.name in ("blaunch", "pbsdsh"):
        return submission.grant.nodes is not None and set(launcher.hosts) == _all_hosts(submission)
    return bool(own) or (bool(script) and submission.grant.nodes is not None)


@nnodes_not_allocated.look
def nodes_by_default(submission: Submission) -> Iterator[Finding]:
    """The batch script says how many tasks and GPUs a node has, but not how many nodes: sbatch allocates one."""
    for _, task, agent in agents_of(submission):
        expected, word = agent.plan.nnodes, agent.plan.settings["nnodes"].word
        if expected is None or expected[0] < 2 or word is None or agent.plan.is_standalone:
            continue
        if has_one_node_by_default(submission, task):
            text = f"{_spelled(agent, expected)}, but the file asks for no number of nodes: sbatch allocates 1"
            label, fix = "1 node by default", f"Add `#SBATCH --nodes={expected[1]}`."
            yield at_mark(
                submission,
                mark_of(task, word),
                text,
                seen=str(expected[1]),
                expected="1 node",
                label=label,
                severity=Severity.WARNING,
                fix=fix,
            )
            return


def _all_hosts(submission: Submission) -> set[str]:
    return {host for step in submission.steps for host in step.hosts}


def _spelled(agent: Agent, expected: tuple[int, ...]) -> str:
    is_accelerate = agent.layer.launcher is LauncherKind.ACCELERATE
    name = "--num_machines" if is_accelerate else "--nnodes"
    low, high = expected
    return f"{name}={high}" if low == high else f"{name}={low}:{high}"
