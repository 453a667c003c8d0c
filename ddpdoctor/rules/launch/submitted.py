"""What the looks at job files share: which launchers of a file wait for other nodes, and findings at a place of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.job import Agent
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.words import Mark, Word, is_known
from ddpdoctor.facts.submission import Step, Submission, Task
from ddpdoctor.findings import Edit, Evidence, Finding, Severity, Where
from ddpdoctor.rules.launch.pointing import spelled

__all__ = [
    "agents_of",
    "at_mark",
    "count_of",
    "has_one_node_by_default",
    "is_varied",
    "launchers_of",
    "mark_of",
    "masters_of",
    "numbered_ranks",
    "option_edit",
    "option_mark",
    "source_of",
]


def agents_of(submission: Submission, *, certain: bool = True) -> Iterator[tuple[Step, Task, Agent]]:
    """Every torchrun, accelerate on several machines, and deepspeed without ssh, with its settings."""
    for step in submission.steps:
        if certain and not step.is_certain:
            continue
        agents = {id(agent.line): agent for agent in step.job.agents}
        for task in step.tasks:
            agent = agents.get(id(task.line))
            if agent is not None and not agent.layer.is_garbled and not agent.layer.reading.is_help:
                yield step, task, agent


def launchers_of(submission: Submission) -> Iterator[tuple[Task, Layer]]:
    """Every torchrun that certainly runs, also one whose words its parser refuses."""
    for step in submission.steps:
        for task in step.tasks if step.is_certain else ():
            if task.layer.launcher in (LauncherKind.TORCHRUN, LauncherKind.LEGACY):
                yield task, task.layer


def mark_of(task: Task, word: Word | None) -> Mark:
    """Where a word of a task is written; its program for None."""
    word = task.layer.program if word is None else word
    return Mark(*task.line.place(word.start))


def is_varied(task: Task, word: Word) -> bool:
    """Whether a word differs in each job of an array."""
    words = enumerate(task.line.argv)
    index = next((i for i, own in words if own.start <= word.start < max(own.end, own.start + 1)), None)
    return index in task.varying


def option_mark(submission: Submission, task: Task, *flags: str) -> Mark:
    """Where an option of the launcher around a task stands, or of the batch script; else the launcher, else the program."""
    launcher = task.launcher
    for places in ({} if launcher is None else launcher.places, submission.grant.places):
        for flag in flags:
            if flag in places:
                return places[flag]
    return mark_of(task, None) if launcher is None else launcher.at


def option_edit(submission: Submission, task: Task, layer: Layer, name: str, value: str) -> tuple[Edit, ...]:
    """The edit that gives an option of a launcher another value, or adds it; () where its text is not in the shell file."""
    given = layer.given(name)
    word = layer.own[-1] if given is None else given.value_word
    line, column = task.line.place(word.start)
    rows = submission.text.split("\n")
    if line > len(rows) or not rows[line - 1].startswith(word.raw, column - 1):
        return ()
    if given is None:
        text = f"{word.raw} {spelled(layer, name, (2, 0))}={value}"
    else:
        text = f"{given.written}={value}" if given.is_joined else value
    return (Edit(submission.file, line, column, line, column + len(word.raw), text),)


def masters_of(submission: Submission) -> Iterator[tuple[str, int | None, int, Mark]]:
    """The master of each job with several pods, its port, the pods of the job, and where the address is written.

    A job whose pods have different masters has none: the causes that compare nodes are about it.
    """
    for step, task, agent in agents_of(submission):
        is_one = len({each.plan.host for each in step.job.agents}) == 1
        if is_one and len(step.hosts) > 1 and agent.plan.host and is_known(agent.plan.host):
            settings = agent.plan.settings
            word = settings["rdzv_endpoint"].word or settings["master_addr"].word
            is_set = task.line.environ.variables.get("MASTER_ADDR") == agent.plan.host
            mark = task.set_at.get("MASTER_ADDR") if is_set else None
            yield agent.plan.host, agent.plan.port, len(step.hosts), mark or mark_of(task, word)
    for step in submission.steps:
        for task in step.tasks if step.is_certain and not step.job.agents and len(step.hosts) > 1 else ():
            host, port = (task.line.environ.variables.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
            if host and is_known(host):
                number = int(port) if port is not None and port.isdigit() else None
                yield host, number, len(step.hosts), _place(submission, task)


def _place(submission: Submission, task: Task) -> Mark:
    return task.set_at.get("MASTER_ADDR") or option_mark(submission, task)


def has_one_node_by_default(submission: Submission, task: Task) -> bool:
    """Whether a batch script of Slurm that sizes a node leaves out the number of nodes, and srun does not set it either.

    The command line of sbatch may set it, so that this is likely and not certain.
    """
    grant, launcher = submission.grant, task.launcher
    counts = {"-N", "--nodes", "-w", "--nodelist", "-n", "--ntasks", "-F", "--nodefile", "-G", "--gpus"}
    given = {*grant.places, *(() if launcher is None else launcher.places)}
    sizes = {"--ntasks-per-node", "--gpus-per-node", "--gres"} & grant.places.keys()
    is_one = {each.host for step in submission.steps for each in step.tasks} == {task.host}
    of_slurm = grant.scheduler == "Slurm" and not grant.parts and not submission.is_submitting
    return of_slurm and len(sizes) > 1 and not counts & given and is_one


def numbered_ranks(submission: Submission) -> Iterator[tuple[Step, tuple[int, ...], int]]:
    """Steps whose processes get RANK and one WORLD_SIZE: their ranks and that size.

    A launcher of tasks starts them, or the services of a file in which alone the master's name is known.
    """
    for step in submission.steps:
        launcher = step.tasks[0].launcher
        master = step.tasks[0].line.environ.variables.get("MASTER_ADDR")
        is_meant = launcher.name in _OF_TASKS if launcher is not None else master in (submission.names or ())
        ranks, sizes = _numbers(step, "RANK") or _set_by_scripts(step), _numbers(step, "WORLD_SIZE")
        is_rank = all(task.line.starter is None for task in step.tasks)
        if step.is_certain and is_meant and is_rank and ranks and len(set(sizes)) == 1:
            yield step, ranks, sizes[0]


def _set_by_scripts(step: Step) -> tuple[int, ...]:
    """The ranks of tasks whose script sets RANK itself, from a variable of its launcher; () for other tasks."""
    variables = {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PALS_RANKID", "JSM_NAMESPACE_RANK"}
    for task in step.tasks:
        script = task.script
        is_set = script is not None and "RANK" in script.sets and variables & set(script.reads) and not script.spawns
        if not is_set or "WORLD_SIZE" in (script.sets if script is not None else ()):
            return ()
    return tuple(task.number for task in step.tasks)


_OF_TASKS = ("srun", "mpirun", "mpiexec", "mpiexec.hydra", "jsrun", "flux", "horovodrun")


def _numbers(step: Step, name: str) -> tuple[int, ...]:
    """The values of a variable, rank by rank; () if one of them is not a known number."""
    texts = [task.line.environ.variables.get(name, "") for task in step.tasks]
    return tuple(map(int, texts)) if all(re.fullmatch(r"\d{1,6}", text) for text in texts) else ()


def at_mark(
    submission: Submission,
    mark: Mark,
    message: str,
    *,
    seen: str,
    expected: str,
    label: str,
    severity: Severity | None = None,
    fix: str = "",
) -> Finding:
    """A finding at a place of a job file.

    Args:
        seen: what the job file has, for the evidence.
        expected: what should be there.
        label: what the caret says, in at most six words.
    """
    return Finding(
        message,
        (Evidence("submission", seen, expected),),
        where=Where(file=submission.file, line=mark.line, column=mark.column),
        label=label,
        severity=severity,
        fix=fix,
    )


def count_of(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`, `2 processes`."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def source_of(task: Task) -> str:
    """What starts a task, for the headline."""
    return "the job file" if task.launcher is None else task.launcher.name
