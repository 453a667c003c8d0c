"""LAUNCH040, LAUNCH041: two jobs that use the same rendezvous id or port."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.job import Agent
from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.nodes import Form, Nodes, Stranger
from ddpdoctor.facts.submission import Step, Submission, Task
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.launch.rendezvous import DEFAULT_PORT
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.submitted import agents_of, at_mark, is_varied, mark_of, option_edit
from ddpdoctor.rules.node_findings import named, only_met

Started = tuple[Step, Task, Agent]


def _side_by_side(submission: Submission) -> Iterator[tuple[Started, Started]]:
    """Pairs of launchers of one host that two statements start; the first still runs when the second starts: it is in the
    background, and the shell does not wait between them.
    """
    commands = () if submission.shell is None else submission.shell.commands
    waits = sorted(command.span.start for command in commands if command.words[:1] == ("wait",))
    running: dict[tuple[str, int], list[Started]] = {}
    for second in agents_of(submission):
        step, task, _ = second
        if task.launcher is None:
            beside = running.setdefault((task.host, bisect(waits, task.span.start)), [])
            yield from ((first, second) for first in beside if first[0].source != step.source)
            beside += [second] if step.is_background else []


def _script(agent: Agent) -> str | None:
    return agent.layer.reading.script.text if agent.layer.reading.script is not None else None


def _is_one_rendezvous(one: Agent, two: Agent) -> bool:
    """Whether two jobs join one rendezvous of c10d. The same script may be two nodes of one job."""
    plans = (one.plan, two.plan)
    ends = {(plan.backend, plan.host, plan.port, plan.rdzv_id) for plan in plans}
    is_whole = one.plan.backend == "c10d" and one.plan.port is not None and one.plan.rdzv_id is not None
    return is_whole and len(ends) == 1 and _script(one) != _script(two)


def _strangers(nodes: Nodes, *, same_id: bool) -> Iterator[Finding]:
    """Nodes of another job at this job's address and port. If this job owns the port, the other one will fail."""
    first = nodes.nodes[nodes.hosted_by]
    for other in nodes.strangers:
        shares_id = nodes.form == Form.C10D and other.rdzv_id == first.rdzv_id
        if not other.is_node or shares_id is not same_id:
            continue
        same = f" and id {first.rdzv_id!r}" if same_id else ""
        yield Finding(
            f"another job uses {first.master_addr}:{first.master_port}{same}, too",
            (Evidence("nodes.strangers", other.title, "this job's nodes only"),),
            fix=f"Give {first.script or 'this job'} its own port.",
            about=other.title,
            where=Where(host=first.host, node_rank=first.node_rank, peer=other.host),
            severity=_severity(nodes, other),
        )


def _severity(nodes: Nodes, other: Stranger) -> Severity | None:
    """A warning if this job has the port. Where nodes prove who they are, a claim alone is only worth a note."""
    if not nodes.is_main:
        return None
    return Severity.NOTE if nodes.proves and not other.is_proven else Severity.WARNING


def _too_many(nodes: Nodes) -> Iterator[Finding]:
    """More c10d nodes than the job has: nodes of two jobs."""
    first, expected = nodes.nodes[nodes.hosted_by], nodes.expected
    if nodes.form == Form.C10D and expected is not None and len(nodes.nodes) > expected:
        yield Finding(
            f"{len(nodes.nodes)} nodes joined {first.master_addr}:{first.master_port}, but the job has only {expected}",
            (Evidence("nodes", str(len(nodes.nodes)), str(expected)),),
            about=named(nodes.nodes),
        )


@cause("LAUNCH040", "rdzv-id-shared", Severity.ERROR, explains=("LAUNCH041",))
def rdzv_id_shared(nodes: Nodes | None = None) -> Iterator[Finding]:
    """Two jobs use one endpoint with the same --rdzv-id.

    ## Why it matters
    Without --rdzv-id the id of every job is `none`. The second job waits in the rendezvous of the first, and fails
    with `RendezvousConnectionError` when the first one ends.

    ## Fix
    Give each job its own `--rdzv-id` and port.

    ## Example
        error[LAUNCH040]: HOST0:29400 with id 'none' is used by another job

        # before
        torchrun --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py &
        torchrun --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 eval.py

        # after
        torchrun --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py &
        torchrun --rdzv-backend=c10d --rdzv-endpoint=HOST0:29401 --rdzv-id=job2 eval.py
    """
    only_met(nodes)
    assert nodes is not None
    yield from _strangers(nodes, same_id=True)
    yield from _too_many(nodes)


@rdzv_id_shared.look
def rendezvous_of_two_jobs(submission: Submission) -> Iterator[Finding]:
    """A job file starts two jobs side by side that join one rendezvous."""
    told = set()
    for (_, _, one), (_, task, two) in _side_by_side(submission):
        if id(task) in told or not _is_one_rendezvous(one, two):
            continue
        told.add(id(task))
        given, plan = two.layer.given("rdzv_id"), two.plan
        name = f"{plan.rdzv_id}-2" if plan.rdzv_id != "none" else "job2"
        finding = at_mark(
            submission,
            mark_of(task, None if given is None else given.value_word),
            f"{plan.host}:{plan.port} with id {plan.rdzv_id!r} is used by another job",
            seen=f"{plan.rdzv_id}",
            expected="another --rdzv-id",
            label=f"use --rdzv-id={name}",
        )
        yield replace(finding, edits=option_edit(submission, task, two.layer, "rdzv_id", name))


@cause("LAUNCH041", "master-port-shared-by-jobs", Severity.ERROR, repairs=("port",))
def master_port_shared_by_jobs(nodes: Nodes | None = None) -> Iterator[Finding]:
    """Two jobs use the same master port on one node.

    ## Why it matters
    The second job fails with `EADDRINUSE`, or its other nodes join the first job's store and start workers there.

    ## Fix
    Give each job its own `--master-port`.

    On one node leave it out, or use `--standalone`.

    ## Example
        error[LAUNCH041]: port 29500 is used by the previous job on this node

        # before
        torchrun --master-port=29500 --nproc-per-node=2 train.py &
        torchrun --master-port=29500 --nproc-per-node=2 eval.py

        # after
        torchrun --master-port=29500 --nproc-per-node=2 train.py &
        torchrun --master-port=29501 --nproc-per-node=2 eval.py
    """
    only_met(nodes)
    assert nodes is not None
    yield from _strangers(nodes, same_id=False)


@master_port_shared_by_jobs.look
def port_of_two_jobs(submission: Submission) -> Iterator[Finding]:
    """A job file starts two jobs of one node side by side with the same port."""
    told = set()
    for (_, _, one), (_, task, two) in _side_by_side(submission):
        if one.plan.is_rewritten and two.plan.is_rewritten and id(task) not in told:
            told.add(id(task))
            yield _default_port(submission, task, two)
            continue
        if not one.plan.port or one.plan.port != two.plan.port or _is_one_rendezvous(one, two):
            continue  # with port 0 the system chooses a free one
        if id(task) in told or not all(_is_on_one_node(agent.plan) for agent in (one, two)):
            continue
        told.add(id(task))
        setting = two.plan.settings.get("rdzv_endpoint" if two.plan.backend == "c10d" else "master_port")
        expected = str(one.plan.port + 1)
        finding = at_mark(
            submission,
            mark_of(task, None if setting is None else setting.word),
            f"port {two.plan.port} is used by the previous job on this node",
            seen=str(two.plan.port),
            expected=expected,
            label=f"use port {expected}",
        )
        if two.plan.backend == "static" and not two.plan.settings["rdzv_endpoint"].value:
            finding = replace(finding, edits=option_edit(submission, task, two.layer, "master_port", expected))
        yield finding


def _default_port(submission: Submission, task: Task, agent: Agent) -> Finding:
    """A warning: a free port since torch 2.12, and the file does not show the version."""
    port = str(DEFAULT_PORT + 1)
    finding = at_mark(
        submission,
        mark_of(task, None),
        f"before torch 2.12 both jobs of this node use the default port {DEFAULT_PORT}",
        seen=str(DEFAULT_PORT),
        expected="one port per job",
        label="the default port, too",
        severity=Severity.WARNING,
    )
    return replace(finding, edits=option_edit(submission, task, agent.layer, "master_port", port))


def _is_on_one_node(plan: Plan) -> bool:
    """Whether a job has one node and a port that its user chose, or the default one."""
    is_chosen = plan.backend == "static" or (plan.backend == "c10d" and not plan.is_standalone)
    return is_chosen and not plan.is_multinode and (plan.node_rank or 0) == 0


@master_port_shared_by_jobs.look
def port_of_several_jobs(submission: Submission) -> Iterator[Finding]:
    """A loop of background statements, or an array of jobs, starts jobs of one node with the same port."""
    used: dict[tuple[str, int], Task] = {}
    for step, task, agent in agents_of(submission):
        plan = agent.plan
        of_c10d = plan.backend == "c10d" and not plan.is_standalone
        setting = plan.settings.get("rdzv_endpoint" if of_c10d else "master_port")
        word = None if setting is None else setting.word
        if plan.is_rewritten and step.is_background and len(step.tasks) > 1:
            first = used.setdefault((task.host, DEFAULT_PORT), task)
            if first is not task and first in step.tasks:
                yield replace(_default_port(submission, task, agent), edits=())
                return
            continue
        is_fixed = of_c10d or (plan.backend == "static" and not plan.is_rewritten)
        if word is None or not is_fixed or not plan.port or plan.nnodes != (1, 1):
            continue
        mark = mark_of(task, word)
        grant = submission.grant
        if grant.is_array and not grant.takes_whole_nodes and not is_varied(task, word):
            text = f"port {plan.port} is used by every job of the array, which may share a node"
            yield at_mark(
                submission,
                mark,
                text,
                seen=str(plan.port),
                expected="one port per job",
                label="add the array's index",
                severity=Severity.WARNING,
            )
            return
        first = used.setdefault((task.host, plan.port), task)
        if first is not task and step.is_background and len(step.tasks) > 1 and first in step.tasks:
            text = f"port {plan.port} is used by {len(step.tasks)} jobs at the same time"
            yield at_mark(
                submission, mark, text, seen=str(plan.port), expected="one port per job", label="vary the port"
            )
            return
