"""LAUNCH040, LAUNCH041: two jobs that use the same rendezvous id or port."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import Word
from ddpdoctor.facts.nodes import Form, Nodes, Stranger
from ddpdoctor.facts.submission import Step, Submission, Task
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import after, agents, point, revalue, spelled
from ddpdoctor.rules.launch.submitted import agents_of, at_mark, mark_of
from ddpdoctor.rules.node_findings import named, only_met

Agent = tuple[LaunchLine, Layer, Plan]


def _together(launch: Launch) -> Iterator[tuple[Agent, Agent]]:
    """Pairs of launches of one file on one host; the first is still running when the second starts."""
    launches = [a for a in agents(launch) if a[0].node is None and a[0].layers[0].name != "ssh"]
    for i, second in enumerate(launches):
        for first in launches[:i]:
            if first[0].is_background and first[0].file == second[0].file and first[0].task_starter is None:
                yield first, second


def _script(layer: Layer) -> str | None:
    return layer.reading.script.text if layer.reading.script is not None else None


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


@cause("LAUNCH040", "rdzv-id-shared", Severity.ERROR)
def rdzv_id_shared(launch: Launch | None = None, nodes: Nodes | None = None) -> Iterator[Finding]:
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
    if nodes is not None:
        yield from _strangers(nodes, same_id=True)
        yield from _too_many(nodes)
    if only_met(nodes, launch):
        return
    assert launch is not None
    for (_, first, one), (line, second, two) in _together(launch):
        if one.backend != "c10d" or two.backend != "c10d" or one.port is None or _script(first) == _script(second):
            continue
        if (one.host, one.port, one.rdzv_id) != (two.host, two.port, two.rdzv_id) or two.rdzv_id is None:
            continue
        given = second.given("rdzv_id")
        name = f"{two.rdzv_id}-2" if two.rdzv_id != "none" else "job2"
        edits = (
            [revalue(given, name)]
            if given is not None
            else [after(second.own[-1], f"{spelled(second, 'rdzv_id', launch.version)}={name}")]
        )
        word = second.program if given is None else given.value_word
        text = f"{two.host}:{two.port} with id {two.rdzv_id!r} is used by another job"
        yield point(launch, line, word, text, "another --rdzv-id", edits, label=f"use --rdzv-id={name}")


@cause("LAUNCH041", "master-port-shared-by-jobs", Severity.ERROR, repairs=("port",))
def master_port_shared_by_jobs(launch: Launch | None = None, nodes: Nodes | None = None) -> Iterator[Finding]:
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
    if nodes is not None:
        yield from _strangers(nodes, same_id=False)
    if only_met(nodes, launch):
        return
    assert launch is not None
    for (_, _, one), (line, second, two) in _together(launch):
        if one.backend != "static" or two.backend != "static" or one.port is None or one.port != two.port:
            continue
        if (one.node_rank or 0) != 0 or (two.node_rank or 0) != 0 or one.is_multinode or two.is_multinode:
            continue
        given = second.given("master_port")
        edits = None if given is None else [revalue(given, str(one.port + 1))]
        if edits is None and not two.settings["rdzv_endpoint"].value:
            edits = [after(second.own[-1], f"{spelled(second, 'master_port', launch.version)}={one.port + 1}")]
        word = second.program if given is None else given.value_word
        text, expected = f"port {two.port} is used by the previous job on this node", str(one.port + 1)
        yield point(launch, line, word, text, expected, edits, label=f"use port {expected}")


@master_port_shared_by_jobs.look
def port_of_several_jobs(submission: Submission) -> Iterator[Finding]:
    """A loop of background statements, or an array of jobs, starts jobs of one node with the same port."""
    used: dict[tuple[str, int], tuple[Task, Step]] = {}
    for step, task, agent in agents_of(submission):
        plan = agent.plan
        of_c10d = plan.backend == "c10d" and not plan.is_standalone
        setting = plan.settings.get("rdzv_endpoint" if of_c10d else "master_port")
        word = None if setting is None else setting.word
        is_fixed = of_c10d or (plan.backend == "static" and not plan.is_rewritten)
        if word is None or not is_fixed or not plan.port or plan.nnodes != (1, 1):
            continue
        mark = mark_of(task, word)
        grant = submission.grant
        if grant.is_array and not grant.takes_whole_nodes and not _is_varied(task, word):
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
        first, before = used.setdefault((task.host, plan.port), (task, step))
        if of_c10d and first is not task and before is not step and before.is_background:
            text = f"port {plan.port} is used by the previous job on this node"
            yield at_mark(
                submission, mark, text, seen=str(plan.port), expected="another port", label="use another port"
            )
            return
        if first is not task and step.is_background and len(step.tasks) > 1 and first in step.tasks:
            text = f"port {plan.port} is used by {len(step.tasks)} jobs at the same time"
            yield at_mark(
                submission, mark, text, seen=str(plan.port), expected="one port per job", label="vary the port"
            )
            return


def _is_varied(task: Task, word: Word) -> bool:
    """Whether the port differs in each job of an array."""
    at = next(
        (at for at, each in enumerate(task.line.argv) if each.start <= word.start < max(each.end, each.start + 1)), None
    )
    return at in task.varying
