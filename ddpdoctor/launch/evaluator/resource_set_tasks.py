"""The tasks that jsrun starts by its resource sets, and those that flux starts."""

from __future__ import annotations

from ddpdoctor.launch.evaluator.cluster import MOST_NODES, Allocation
from ddpdoctor.launch.evaluator.slurm_steps import MOST_TASKS
from ddpdoctor.launch.evaluator.started_launchers import (
    LaunchedTask,
    StartedLauncher,
    TaskLayout,
    number_in,
    of_task,
    placed,
    plain_options,
)
from ddpdoctor.launch.evaluator.values import Value

__all__ = ["flux_tasks", "jsrun_tasks"]


def jsrun_tasks(allocation: Allocation, what: StartedLauncher) -> TaskLayout:
    """Resource sets (`-n`), so many per host (`-r`), each with tasks (`-a`) and GPUs (`-g`)."""
    options = plain_options(what.words)
    hosts = allocation.hosts
    per_host, counted = number_in(options, "-r", "--rs_per_host"), number_in(options, "-n", "--nrs")
    sets = counted or (per_host or 1) * (len(hosts) if per_host else 1)  # an unknown `-n` with `-r` fills the hosts
    per_host = per_host or max(1, sets // len(hosts))
    per_set, gpus = number_in(options, "-a", "--tasks_per_rs") or 1, number_in(options, "-g", "--gpu_per_rs")
    total, tasks = sets * per_set, []
    for rank in range(min(total, MOST_TASKS)):
        node = min(rank // (per_host * per_set), len(hosts) - 1)
        local = rank - node * per_host * per_set
        own = {
            "JSM_NAMESPACE_RANK": of_task(rank),
            "JSM_NAMESPACE_LOCAL_RANK": of_task(local),
            "JSM_NAMESPACE_SIZE": Value(str(total)),
            "OMPI_COMM_WORLD_RANK": of_task(rank),
            "OMPI_COMM_WORLD_LOCAL_RANK": of_task(local),
            "OMPI_COMM_WORLD_SIZE": Value(str(total)),
            "PMIX_RANK": of_task(rank),
        }
        tasks.append(LaunchedTask(hosts[node], node, rank, local, gpus, own))
    return tasks, dict(what.environ), {}


def flux_tasks(allocation: Allocation, what: StartedLauncher) -> TaskLayout:
    """Tasks (`-n`) on nodes (`-N`), each with `-g` GPUs."""
    options = plain_options(what.words)
    nodes = number_in(options, "-N", "--nodes")
    hosts = allocation.hosts
    if nodes is not None and allocation.scheduler != "Flux":
        hosts = tuple(f"node-{at}" for at in range(min(nodes, MOST_NODES)))
    hosts = hosts[:nodes] if nodes else hosts
    total = number_in(options, "-n", "--ntasks") or nodes or 1
    per_node = number_in(options, "--tasks-per-node")
    total = per_node * len(hosts) if per_node else total
    gpus, tasks = number_in(options, "-g", "--gpus-per-task"), []
    for rank in range(min(total, MOST_TASKS)):
        node, local = placed(rank, total, len(hosts))
        own = {
            "FLUX_TASK_RANK": of_task(rank),
            "FLUX_TASK_LOCAL_ID": of_task(local),
            "FLUX_JOB_SIZE": Value(str(total)),
            "FLUX_JOB_NNODES": Value(str(len(hosts))),
            "PMI_RANK": of_task(rank),
            "PMI_SIZE": Value(str(total)),
        }
        tasks.append(LaunchedTask(hosts[node], node, rank, local, gpus, own))
    return tasks, dict(what.environ), {}
