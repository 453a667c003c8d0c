"""`ddpdoctor check` on several nodes: examine this machine, find the other nodes, probe all ranks together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.app.multinode_session import MultiNodeSession
from ddpdoctor.app.preflight_plan import SECTIONS, Observed, judge_scripts_of, rules_of_machine
from ddpdoctor.app.probe_run import MOST_RANKS, Probing, variables_of
from ddpdoctor.app.progress import reporting
from ddpdoctor.app.request import Request, UsageError, seconds_left
from ddpdoctor.app.rule_selection import rules_for
from ddpdoctor.app.verdicts import JobVerdict, rules_of_nodes, why_no_ranks
from ddpdoctor.collectors.probe import NodeRanks
from ddpdoctor.engine import Outcome, extended, judge
from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.nodes import Form, Node, Proves
from ddpdoctor.findings import Finding, Report, Severity

if TYPE_CHECKING:
    from ddpdoctor.app.preflight_plan import PreflightPlan
    from ddpdoctor.facts.record import Facts
    from ddpdoctor.launch.jobs import LocalJob
    from ddpdoctor.multinode.authentication import Authentication
    from ddpdoctor.rules import Rule

UNAUTHENTICATED = (
    "the nodes were not authenticated: any program that can connect to this port could have taken part;"
    " --secret FILE on all nodes prevents that"
)
__all__ = ["gather_with_other_nodes", "is_shown_elsewhere", "with_verdict"]


def gather_with_other_nodes(plan: PreflightPlan, job: LocalJob, probing: Probing) -> Observed:
    """The facts of this machine, the common verdict of all nodes, and the result of the probe over all of them."""
    request, line = plan.request, plan.line
    looks = probing.looks_at_the_machine()
    ranks_environ = {**os.environ, **variables_of(plan.line_facts)}
    with reporting(request.listener, enabled=looks) as progress:
        session = MultiNodeSession(
            job, plan.line_facts, plan.options.join_seconds, request.began, progress.phase, _authentication(plan)
        )
        try:
            if plan.probes:
                probing.import_early(1 if session.is_of_ranks else job.nproc, ranks_environ)
            progress.phase("examining this machine")
            facts, failures = look(request, session, line, SECTIONS if looks else ("environ",))
            rules = rules_of_machine(plan)

            # torch is being imported meanwhile
            scripts = judge_scripts_of(line[0], facts, request) if line is not None and looks else None
            wrong = errors_of(scripts.outcomes) if scripts is not None else []

            def judge_here(facts: Facts) -> list[Finding]:
                return own_errors(facts, line, rules) + wrong

            own = judge_here(facts)
            if own:
                probing.stop()
            elif plan.probes:
                probing.import_early(session.nproc(facts), ranks_environ)
            across = rules_of_nodes(rules_for(request, (*SECTIONS, "launch", "probe")))
            try:
                verdict = session.meet(facts, own, judge_here, max(seconds_left(request), 1.0), across)
            except KeyboardInterrupt:
                failed = f"the other nodes: interrupted after {session.waited():.0f} s of waiting at {session.address}"
                return Observed(facts, (*failures, failed), scripts=scripts, is_interrupted=True)
            facts = verdict.facts or facts
            if plan.probes:
                facts = probe_together(facts, verdict, session, probing, plan.line_facts, progress.phase)
        finally:
            session.stop()
            probing.stop()
    return Observed(facts, failures, probing.answer, verdict, scripts, probing.is_interrupted)


def _authentication(plan: PreflightPlan) -> Authentication:
    """What this node can prove to the others.

    Raises:
        UsageError: the file of the secret cannot be used.
    """
    from ddpdoctor.collectors.multinode import authentication_of
    from ddpdoctor.network.proof import SECRET_VARIABLE, SecretError

    try:
        return authentication_of(os.environ, plan.options.secret)
    except SecretError as error:
        raise UsageError(f"{'--secret' if plan.options.secret else SECRET_VARIABLE} {error}") from None


def _with_note(report: Report, verdict: JobVerdict) -> Report:
    """The report with the note that nodes were accepted without a proof."""
    nodes = verdict.nodes
    if nodes is None or nodes.proves != Proves.NOTHING or nodes.joined_count < 2:
        return report
    return replace(report, notes=(*report.notes, UNAUTHENTICATED))


def look(
    request: Request, session: MultiNodeSession, line: tuple[Facts, tuple[Rule, ...]] | None, sections: tuple[str, ...]
) -> tuple[Facts, tuple[str, ...]]:
    """The facts of this machine, which holds the job's port meanwhile, and what failed while they were gathered."""
    from ddpdoctor.app.facts_source import facts_for

    session.open()
    python = None if line is None or line[0].startup is None else line[0].startup.python
    facts, failures = facts_for(request, sections, {**variables_of(line and line[0]), **session.variables}, python)
    facts = _with_master(facts, session)
    if line is not None:
        facts = replace(facts, launch=line[0].launch, startup=line[0].startup)
    return facts, failures


def own_errors(facts: Facts, line: tuple[Facts, tuple[Rule, ...]] | None, rules: Sequence[Rule]) -> list[Finding]:
    """The errors of this node by `rules`, to be sent to the others."""
    return errors_of(
        (
            judge(facts, [rule for rule in rules if "nodes" not in rule.needs]),
            *((judge(*line),) if line is not None else ()),
        )
    )


def errors_of(outcomes: Iterable[Outcome]) -> list[Finding]:
    """The errors among the outcomes of rules."""
    return [finding for outcome in outcomes for finding in outcome.findings if finding.worst is Severity.ERROR]


def _with_master(facts: Facts, session: MultiNodeSession) -> Facts:
    """The facts with the variables that were hidden while the machine was examined."""
    if facts.environ is None or not session.hides_the_master:
        return facts
    hidden = {name: os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in os.environ}
    facts = replace(facts, environ=replace(facts.environ, variables={**facts.environ.variables, **hidden}))
    if facts.net is None:
        return facts
    gap = Gap("net.port", "the store of the job is on another node", Why.NOT_HERE)
    return replace(facts, net=replace(facts.net, port=None, gaps=(*facts.net.gaps, gap)))


def probe_together(
    facts: Facts,
    verdict: JobVerdict,
    session: MultiNodeSession,
    probing: Probing,
    line: Facts | None,
    say: Callable[[str], None],
) -> Facts:
    """The facts with those of the probe over all nodes, or with the reason why there is none."""
    if verdict.has_errors:
        return replace(facts, gaps=(*facts.gaps, why_no_ranks(verdict.outcome)))
    if verdict.is_alone:
        return replace(facts, gaps=(*facts.gaps, Gap("probe", "the other nodes did not join", Why.NOT_HERE)))
    if session.is_of_ranks:
        return probing.finish(facts, say, session.news)
    job, share = session.job, verdict.share
    nproc = session.nproc(facts)
    if share is None or not nproc or nproc > MOST_RANKS:
        reason = (
            "how many ranks a node starts is not known"
            if not nproc
            else f"{nproc} ranks on one node are too many to probe"
        )
        return replace(facts, gaps=(*facts.gaps, Gap("probe", reason, Why.NOT_HERE)))
    node = NodeRanks(
        nproc=nproc,
        world_size=share.world_size,
        master_addr=job.master_addr,
        master_port=job.master_port,
        first_rank=share.first_rank,
        node_rank=share.node_rank,
        nnodes=share.nnodes,
        run=job.rdzv_id or "ddpdoctor",
    )
    return probing.finish_with_other_nodes(facts, node, {**os.environ, **variables_of(line)}, say, session.news)


def with_verdict(report: Report, verdict: JobVerdict, rules: Sequence[Rule], line: Facts | None) -> Report:
    """The report of this node together with the verdict on all nodes; a finding in both appears once."""
    told = [_completed(finding, line) for finding in verdict.outcome.findings]
    own = [
        finding for finding in report.findings if finding.code not in verdict.refuted and not _is_told(finding, told)
    ]
    nodes = () if verdict.is_alone or verdict.has_errors or verdict.nodes is None else verdict.nodes.nodes
    kept = tuple(_with_host(each, nodes) for each in own)
    outcome = replace(verdict.outcome, findings=told)
    return _with_note(extended(replace(report, findings=kept), [outcome], rules), verdict)


def _with_host(finding: Finding, nodes: Sequence[Node]) -> Finding:
    """A finding of the probe about a rank or node that did not join, with its host from the earlier session."""
    where = finding.where
    index = where.rank if nodes and nodes[0].form == Form.ENV else where.node_rank
    if index is None and where.rank is not None:
        index = _of_rank(where.rank, nodes)
    if where.host is not None or index is None or not 0 <= index < len(nodes):
        return finding
    return replace(finding, where=replace(where, host=nodes[index].host))


def _of_rank(rank: int, nodes: Sequence[Node]) -> int | None:
    """The index of the node that starts this rank; nodes before it start lower ranks."""
    for index, node in enumerate(nodes):
        if node.nproc is None:
            return None
        if rank < node.nproc:
            return index
        rank -= node.nproc
    return None


def _completed(finding: Finding, line: Facts | None) -> Finding:
    """The corrected command with the script's own arguments, which are not sent to the other nodes."""
    launch = line.launch if line is not None else None
    starter = launch.lines[0].starter if launch is not None and launch.lines else None
    script = starter.reading.script if starter is not None else None
    if launch is None or script is None or finding.fix_command is None:
        return finding
    rest, raw = launch.lines[0].source[script.end :], script.raw
    lines = [each + rest if each.endswith(raw) else each for each in finding.fix_command.split("\n")]
    commands = (
        replace(command, command=command.command + rest) if command.command.endswith(raw) else command
        for command in finding.fix_commands
    )
    return replace(finding, fix_command="\n".join(lines), fix_commands=tuple(commands))


def _is_told(own: Finding, told: Sequence[Finding]) -> bool:
    return any(each.identity == own.identity for each in told)


def is_shown_elsewhere() -> bool:
    """Whether another node shows the whole report: if a scheduler started this command once per node."""
    environ = Environ(variables=dict(os.environ))
    return environ.launcher is not None and (environ.rank or 0) > 0
