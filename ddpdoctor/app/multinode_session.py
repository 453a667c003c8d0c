"""The session of one `ddpdoctor check` with the other nodes of its job: what this node announces, and the common verdict."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ddpdoctor.app.announcement import NodeAnnouncement
from ddpdoctor.facts.codec import encode
from ddpdoctor.facts.nodes import Form, Node, Nodes, Stranger
from ddpdoctor.facts.reachability import ConnectOutcome
from ddpdoctor.launch.jobs import LocalJob, job_id
from ddpdoctor.privacy.redaction import redact

if TYPE_CHECKING:
    from ddpdoctor.app.verdicts import JobVerdict
    from ddpdoctor.collectors.multinode import BackgroundSession
    from ddpdoctor.facts.record import Facts
    from ddpdoctor.findings import Finding
    from ddpdoctor.multinode.authentication import Authentication
    from ddpdoctor.multinode.results import LostNode, NotJoined, SessionResult
    from ddpdoctor.probe.node_notices import NodeNotices
    from ddpdoctor.rules import Rule

__all__ = ["MultiNodeSession"]

HINT_SECONDS = 3.0
FRESH_SECONDS = 5.0
MOST_TOLD = 32
"""The most errors of its own that a node sends to the others: a script may have any number."""


class MultiNodeSession:
    """One node's session: `open` binds the port before the machine is examined, `meet` joins the others, `stop` ends it."""

    def __init__(
        self,
        job: LocalJob,
        line: Facts | None,
        join_seconds: float,
        began: float,
        say: Callable[[str], None],
        authentication: Authentication,
    ) -> None:
        self.job = job
        launch = line.launch if line is not None else None
        self._announcement = NodeAnnouncement(job, launch.lines[0] if launch is not None and launch.lines else None)
        self._torch = launch.torch if launch is not None else ""
        self._join_seconds = join_seconds
        self._began = began
        self._say = say
        self._authentication = authentication
        self._main: socket.socket | None = None
        self._flag: socket.socket | None = None
        self._there: dict[str, Any] = {}
        self._owns = False
        self._is_translated = False
        self._session: BackgroundSession | None = None
        self._token = ""
        self._way: tuple[float, Facts] | None = None
        self.news: NodeNotices | None = None
        """Messages about nodes that disappear after the session, before their ranks have joined."""

    @property
    def address(self) -> str:
        """HOST:PORT where the nodes join."""
        return f"{self.job.master_addr}:{self.job.master_port}"

    def waited(self) -> float:
        """Seconds since the command was started."""
        return time.monotonic() - self._began

    @property
    def is_of_ranks(self) -> bool:
        """Whether the members are the ranks themselves, instead of nodes that will start them."""
        return self.job.form == Form.ENV

    def nproc(self, facts: Facts) -> int | None:
        """The ranks that this node's launcher starts, from the facts of its GPUs if the line says `auto` or `gpu`."""
        return self._announcement.nproc(facts)

    def open(self) -> None:
        """Bind the job's port if this node will host the store: no other program can take it, and nodes can connect early."""
        from ddpdoctor.collectors.multinode import claim, flag, is_translated, recognises, token_of

        job = self.job
        script = os.path.basename(self._announcement.script() or "")
        self._token = token_of("ddpdoctor join", job_id(os.environ), script)
        if job.form == Form.C10D:
            self._owns = recognises(job.master_addr) if job.is_host is None else job.is_host
        else:
            self._owns = (job.rank if self.is_of_ranks else job.node_rank) == 0
        if self._owns:
            self._main, self._there = claim(job.master_port, self._token, self._authentication, job.master_addr)
        if self._main is not None:
            self._flag = flag(job.master_port)
            self._is_translated = is_translated(self._main, job.master_addr, job.master_port)

    @property
    def variables(self) -> dict[str, str | None]:
        """What the launch means to the environment of its ranks. If the store will be here, its name and port are examined
        with the machine; otherwise the session tests the connection to it.
        """
        job = self.job
        nodes = {} if self.is_of_ranks else {"GROUP_WORLD_SIZE": str(job.nnodes)}
        if not self.hides_the_master:
            return {**nodes, "MASTER_ADDR": job.master_addr, "MASTER_PORT": str(job.master_port)}
        return {**nodes, "MASTER_ADDR": None, "MASTER_PORT": None}

    @property
    def hides_the_master(self) -> bool:
        """Whether this machine is examined as if MASTER_ADDR and MASTER_PORT were not set."""
        return not self._owns or bool(self._there) or self._is_patient or self._is_translated

    @property
    def _is_patient(self) -> bool:
        """Names may appear late, as those of pods do."""
        return "KUBERNETES_SERVICE_HOST" in os.environ

    def meet(
        self,
        facts: Facts,
        errors: Iterable[Finding],
        judge_here: Callable[[Facts], list[Finding]],
        limit: float,
        rules: Sequence[Rule],
    ) -> JobVerdict:
        """Join the others; if this node is the host, judge what they announced by `rules`. All within `limit` seconds.

        `errors` are those of this node so far, which are sent to the others; `judge_here` gives them again when it is
        known how the connection to the master ends.
        """
        from ddpdoctor.app import verdict_messages, verdicts
        from ddpdoctor.collectors.multinode import BackgroundSession
        from ddpdoctor.multinode.members import Member
        from ddpdoctor.multinode.results import ReceivedVerdict, SessionResult
        from ddpdoctor.probe.node_notices import NodeNotices

        node = self._announcement.node(facts, self._owns)
        self.news = NodeNotices.open()
        own = [_announced(each) for each in (*self._lost_port(node, rules), *errors)][:MOST_TOLD]
        self._session = BackgroundSession(
            node,
            self._token,
            max(min(self._join_seconds - self.waited(), limit), 1.0),
            main=self._main,
            errors=own,
            line=self._announcement.launcher_line(),
            is_patient=self._is_patient,
            patience=self._join_seconds,
            say=self._say,
            explain=lambda: [_announced(each) for each in judge_here(self._with_way(facts, is_new=True))],
            lost=self._lost,
            hosts=self.job.hosts,
            authentication=self._authentication,
        )
        met = self._result(limit)
        if self._flag is not None:
            self._flag.close()
        if isinstance(met, ReceivedVerdict):
            return verdict_messages.read_verdict(met.verdict)
        if isinstance(met, SessionResult):
            nodes = self._nodes_of(met)
            outcome = verdicts.judge_nodes(rules, nodes, met.members, self._torch, met.gone)
            verdict = verdicts.JobVerdict(outcome, None, nodes, refuted=verdicts.refuted(nodes), is_host=True)
            shares = {} if verdict.has_errors else verdicts.shares(met.members)
            places = verdict_messages.places(met.members, shares)
            self._session.conclude(verdict_messages.written(outcome, nodes), places, watches=not verdict.has_errors)
            return replace(verdict, share=shares.get(met.members[met.hosted_by].key))
        is_lost = met is not None and met.lost_host is not None
        facts = facts if is_lost else self._with_way(facts)  # the connection worked a moment ago
        own += [] if is_lost else [each for each in map(_announced, judge_here(facts)) if each not in own]
        if met is not None and met.taken_by is not None:
            nodes = self._superfluous(met)
        else:
            is_explained = is_lost or bool(own or (met is not None and met.other_job))
            nodes = self._alone(node, met, is_explained=is_explained)
        me = Member("", met.me.node if met is not None else node, tuple(own))
        outcome = verdicts.judge_nodes(rules, nodes, (me,), self._torch)
        is_first = self.job.local_rank in (0, None)
        return verdicts.JobVerdict(outcome, None, nodes, facts, is_host=True, is_first=is_first)

    def _lost(self, node: LostNode) -> None:
        """A node left although there was no error."""
        if self.news is not None and node.first_rank is not None:
            ranks = tuple(range(node.first_rank, node.first_rank + node.count))
            self.news.tell(node.host, node.node_rank, ranks, node.end.value)

    def _lost_port(self, node: Node, rules: Sequence[Rule]) -> list[Finding]:
        """The findings when a node of another job holds the port that this node needs."""
        from ddpdoctor.app.verdicts import judge_nodes

        if self._there.get("kind") != "other-job":
            return []
        return judge_nodes(
            rules, Nodes(nodes=(node,), strangers=(_stranger(self._there),), is_main=False), (), ""
        ).findings

    def stop(self) -> None:
        """End it."""
        if self._session is not None:
            self._session.stop()
        for held in (self._main, self._flag, self.news):
            if held is not None:
                held.close()

    def _result(self, limit: float) -> Any:
        """Wait for the result; after HINT_SECONDS show how to continue without the others."""
        assert self._session is not None
        met = self._session.result(min(HINT_SECONDS, limit))
        if met is None and limit > HINT_SECONDS:
            self._say(
                f"waiting for the other nodes at {self.address}: run the same command on each,"
                " or check this node alone with --no-meet"
            )
            met = self._session.result(limit - HINT_SECONDS)
        return met

    def _nodes_of(self, met: SessionResult) -> Nodes:
        return Nodes(
            nodes=tuple(member.node for member in met.members),
            links=met.links,
            expected=met.expected,
            missing=met.missing,
            missing_hosts=self._hosts(met.missing),
            lacking=met.lacking,
            waited_seconds=met.waited_seconds,
            hosted_by=met.hosted_by,
            is_main=met.is_main,
            strangers=met.strangers,
            silent=met.silent,
            left=met.left if met.lacking else (),
            absent=met.absent,
            absent_count=met.absent_count,
            proves=self._authentication.proves,
        )

    def _hosts(self, numbers: Iterable[int]) -> dict[str, str]:
        """The hosts of node_ranks, if the scheduler numbers the nodes and the ranks of a node are consecutive."""
        job, size = self.job, 1
        if self.is_of_ranks:
            size = job.nproc or 0
            if not size or len(job.hosts) * size != job.world_size:
                return {}
        elif job.form != Form.STATIC or len(job.hosts) != job.nnodes:
            return {}
        return {str(n): job.hosts[n // size].partition(".")[0] for n in numbers if n // size < len(job.hosts)}

    def _alone(self, node: Node, met: NotJoined | None, *, is_explained: bool) -> Nodes:
        """The nodes when this one is alone: the node of rank 0 did not join, and nothing is known about the others.

        `is_explained`: another job there, or an error of this node or of its connection to the master, is the reason.
        """
        way = met.way if met is not None else None
        told = met.refused_by or (_stranger(met.other_job) if met.other_job else None) if met is not None else None
        strangers = () if told is None else (told,)
        is_taken = way in (ConnectOutcome.STRANGER, ConnectOutcome.SILENT) and not is_explained and not strangers
        is_over = way in (None, ConnectOutcome.REFUSED) and (met is None or met.waited_seconds >= self._join_seconds)
        is_other = bool(strangers) or (met is not None and met.lost_host is not None)
        is_absent = (is_over or not is_explained) and not is_taken and not is_other
        expected = self.job.world_size if self.is_of_ranks else self.job.nnodes
        return Nodes(
            nodes=(replace(met.me.node if met is not None else node, way=way if is_taken else None),),
            expected=expected,
            absent_count=max((self.job.least or expected or 1) - 1, 0),
            missing=(0,) if is_absent and not node.owns and self.job.form != Form.C10D else (),
            missing_hosts=self._hosts((0,)),
            lacking=1 if is_absent else 0,
            waited_seconds=met.waited_seconds if met is not None else self._join_seconds,
            is_main=False,
            lost_host=met.lost_host if met is not None else None,
            strangers=strangers,
            proves=self._authentication.proves,
        )

    def _superfluous(self, met: NotJoined) -> Nodes:
        """The nodes when the job was complete before this one joined: it, and the one that has its number. Without numbers,
        those that joined before seem to be another job's nodes.
        """
        taken = met.taken_by
        assert taken is not None
        if self.job.form == Form.C10D:
            other = Stranger(taken.host, taken.script, taken.rdzv_id)
            return Nodes(nodes=(met.me.node,), expected=self.job.nnodes, strangers=(other,), is_main=False)
        return Nodes(nodes=(taken, met.me.node), expected=2, is_main=False)

    def _with_way(self, facts: Facts, *, is_new: bool = False) -> Facts:
        """The facts with the connection to the master as NCCL and torch would make it; a result of the last seconds is reused."""
        from ddpdoctor.collectors.net import look_at_master
        from ddpdoctor.system.machine import Root

        if facts.net is None or facts.environ is None:
            return facts
        if self._way is not None and not is_new and time.monotonic() - self._way[0] < FRESH_SECONDS:
            return self._way[1]
        job = self.job
        variables = {**facts.environ.variables, "MASTER_ADDR": job.master_addr, "MASTER_PORT": str(job.master_port)}
        net = look_at_master(facts.net, Root(), job.master_addr, job.master_port)
        facts = replace(facts, environ=replace(facts.environ, variables=variables), net=net)
        self._way = (time.monotonic(), facts)
        return facts


def _announced(finding: Finding) -> dict[str, Any]:
    """A finding of this node as it is sent to the others: it may quote variables and launch lines."""
    found: dict[str, Any] = redact(encode(finding))
    return found


def _stranger(introduction: Mapping[str, Any]) -> Stranger:
    """Another job's node, as it introduced itself."""
    host, script, rdzv_id = (introduction.get(key) for key in ("host", "script", "rdzv_id"))
    return Stranger(str(host)[:80], _word(script), _word(rdzv_id))


def _word(told: object) -> str | None:
    return told[:80] if isinstance(told, str) else None
