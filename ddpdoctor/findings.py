"""What ddpdoctor reports: findings, and the report that contains them.

Types only, standard library only. The JSON that users read is written by `render/json.py`, so that these types may
change without changing the report (`CONTRACT: ddpdoctor.report/1`).
"""

from __future__ import annotations

import time
from dataclasses import field, replace
from enum import Enum, IntEnum

from ddpdoctor.examined import CheckedSection, ExaminedInput, ExaminedJob, Excerpt, RunDifference, Verdict
from ddpdoctor.light_dataclass import dataclass

__all__ = [
    "CausalStage",
    "Certainty",
    "Crashed",
    "Culprit",
    "Edit",
    "Evidence",
    "Finding",
    "LineEdit",
    "NodeCommand",
    "Relation",
    "Report",
    "Role",
    "Severity",
    "Skipped",
    "Speaker",
    "Verdict",
    "Where",
    "seconds_since",
    "time_of",
]


def time_of(started: float) -> str:
    """The time of day of a moment of `time.monotonic()`, for `Report.started_at`, by the clock as it is set now."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - (time.monotonic() - started)))


def seconds_since(started: float) -> float:
    """Seconds since a moment of `time.monotonic()`, for `Report.seconds`: the clock of the day may be set meanwhile."""
    return round(time.monotonic() - started, 3)


class Severity(str, Enum):
    """`error`: the job does not start, hangs, dies or trains incorrectly; `warning`: slow or at risk; `note`: worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def weight(self) -> int:
        """3 for an error, 1 for a note: larger is worse."""
        return {"error": 3, "warning": 2, "note": 1}[self.value]


class Role(str, Enum):
    """What a finding is in this case: the cause to act on, a consequence of it, or harmless."""

    CAUSE = "cause"
    CONSEQUENCE = "consequence"
    NOISE = "noise"


class CausalStage(IntEnum):
    """How far from the fault something appears, in order: an earlier stage explains a later one.

    A wrong configuration makes ranks die, a rank that died makes the others fail or hang, and a process that was terminated
    from outside only shows that something else had already failed. Causes declare theirs; `causality.graph` has those of
    the probe's observations.
    """

    FAULT = 0
    """A fault by itself, such as a wrong setting: nothing else is needed to explain it."""
    ADDRESS = 1
    """The address of the master is wrong, or its port is used by another process."""
    OPEN_FILES = 2
    """A process is not allowed to open as many files as it needs."""
    INTERFACE = 3
    """The interface that a backend chose cannot reach the other nodes."""
    IMPORT = 4
    """A module cannot be imported."""
    MISMATCH = 5
    """Ranks call different collectives, or the same one with other shapes or dtypes."""
    DEATH = 6
    """A process ended, by a signal or by an exception of its own."""
    STOPPED = 7
    """A process was stopped, by a signal or a debugger."""
    HOST_LOST = 8
    """A whole host no longer answers."""
    UNINTERRUPTIBLE = 9
    """A process waits in the kernel, uninterruptible by signals."""
    RANK_ERROR = 10
    """A rank raised an exception or computed a wrong value, possibly because another one died or was stopped."""
    NOT_IN_COLLECTIVE = 11
    """A rank is not in the collective in which the others wait for it."""
    REACHABILITY = 12
    """A node or its port cannot be reached, or a rank never joined."""
    BLACK_HOLE = 13
    """A link drops large packets."""
    BLOCKED_LINK = 14
    """A link between two nodes is blocked."""
    PEER_ERROR = 15
    """A network exception: the peer, or the connection to it, is at fault."""
    NCCL_ERROR = 16
    """NCCL failed and gives no reason."""
    STORE_LOST = 17
    """The connection to the store was lost."""
    OUT_OF_TIME = 18
    """A timeout, without further information."""
    HANG = 19
    """Ranks wait in a collective, or a watchdog gave up."""
    TERMINATED = 20
    """A process was ended after something else had failed."""


class Speaker(str, Enum):
    """Who prints the lines that a cause's signatures match, and therefore whether the fault is there."""

    CULPRIT = "culprit"
    """The process that has the fault."""
    VICTIM = "victim"
    """A process that suffers from what another one did."""
    LINK_END = "link_end"
    """One end of a link; either may be at fault, so only the host is reported."""
    SURVIVOR = "survivor"
    """A process whose peer has exited; the peer's own output says why."""
    STORE_CLIENT = "store_client"
    """A process whose store has exited, which also happens at the end of every job."""
    TORCH = "torch"
    """torch or its launcher; if a script prints the same words, they are not about this cause."""
    LAUNCHER = "launcher"
    """A launcher that summarizes how its processes ended: its line does not explain others."""
    SCHEDULER = "scheduler"
    """The scheduler that ended the job."""
    PERSON = "person"
    """A process that was interrupted with SIGINT: everything else follows from that."""
    KERNEL = "kernel"
    """The kernel, about a program that failed on a GPU."""

    @property
    def is_victim(self) -> bool:
        """Whether the speaker is not at fault."""
        return self in (Speaker.VICTIM, Speaker.LINK_END)


class Certainty(str, Enum):
    """How certain a finding is: seen, inferred, or one of several candidates that other evidence must decide between."""

    CERTAIN = "certain"
    LIKELY = "likely"
    CANDIDATES = "candidates"


@dataclass(frozen=True, slots=True)
class Where:
    """The place of the fault. None is unknown or not applicable.

    `rank` is global and set only if exactly one is at fault; `gpu` is the NVML index; `host` is the short hostname;
    `peer` is the other end of a link; `node` is the index of a `--node` line; lines and columns count from 1.
    """

    host: str | None = None
    node_rank: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    gpu: int | None = None
    peer: str | None = None
    file: str | None = None
    line: int | None = None
    column: int | None = None
    node: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One fact behind a finding: its path in the facts, what was seen there, what was expected."""

    path: str
    seen: str
    expected: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """A correction of a script: the text from `line`, `column` up to before `end_line`, `end_column` of `file` becomes `text`.

    Lines and columns count from 1, columns in characters. An empty span inserts. The edits of one
    finding belong together and never overlap; of two findings whose edits overlap, only one can be applied. They are kept
    beside the report (`lint --diff` prints them as a patch): no format of the report holds them.

    `is_safe`: the edits of the finding correct the whole mistake, and cannot break a start of the script that worked.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    is_safe: bool = False


@dataclass(frozen=True, slots=True)
class LineEdit:
    """A correction of a launch line: characters `start` to before `end` of its source become `text`. An empty span inserts.

    `line` is the index of the line in the launch that was judged.
    """

    line: int
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """A command to paste on one node or on all: `on` is "all nodes", "node 1" or a host name."""

    on: str
    command: str


class Relation(str, Enum):
    """What a process of a log has to do with a finding."""

    ONLY = "only"
    """It is the process that the finding is about."""
    FIRST = "first"
    """It is the first of several to which the same happened, in the order of the log or of its times."""
    LAUNCHER = "first by launcher"
    """The decisive line names no process; the launcher or scheduler reports that this one failed first."""
    REPORTED_BY = "reported by"
    """It printed the decisive line, and need not be at fault."""
    PEER = "peer"
    """The decisive line names it as the other end of a connection that failed."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """The process that decides a finding about a log, as far as the log names it.

    `host` is a host, a pod or an address; `gpu` is what the log calls the GPU: `3` or `0000:83:00`. `text`, which is always
    there, has the words for a screen: `rank 3 on gpu-07`.
    """

    relation: Relation
    text: str
    rank: int | None = None
    local_rank: int | None = None
    node_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    gpu: str | None = None

    @property
    def phrase(self) -> str:
        """What is printed after a message that does not say it: `first: rank 3`."""
        if self.relation is Relation.ONLY:
            return self.text
        words = {
            Relation.FIRST: "first:",
            Relation.LAUNCHER: "first failed:",
            Relation.REPORTED_BY: "reported by",
            Relation.PEER: "peer:",
        }
        return f"{words[self.relation]} {self.text}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. A rule gives message, evidence, fix and place; the engine stamps the identity.

    `severity` is None unless this case is softer than declared; `role` is None unless the rule knows that it
    is not a cause here. `fix_command` is a line to paste, alone; `fix_commands` are several, with the node of each
    (to be read from `commands`, which knows the host of a single one).
    `edits` correct a script, `line_edits` launch lines: `fix_command` then has the corrected lines. `quote` is the
    decisive line of a log, `said_by` who printed it, as part of a sentence.
    `about` are the nodes or the device that the message is about, printed after it.
    `undetermined` is what this finding leaves open and what would decide it; it is part of the message until something
    else explains the finding. `candidates` are the codes between which it leaves the choice.
    `label` is a short clause for the caret ("add --rdzv-endpoint"), `excerpt` the source lines that it stands under.
    `job` is the name of its job, `group` the subject (a GPU, a link, a node) that several findings share.
    `culprit` is the process that decides a finding about a log: the first of `ranks`, if there are several.

    Code never reads the message: every decision uses a field.
    """

    message: str
    evidence: tuple[Evidence, ...] = ()
    fix: str = ""
    fix_command: str | None = None
    where: Where = field(default_factory=Where)
    ranks: tuple[int, ...] = ()
    severity: Severity | None = None
    role: Role | None = None
    caused_by: str | None = None
    code: str = ""
    name: str = ""
    why: str = ""
    help: str = ""
    edits: tuple[Edit, ...] = ()
    line_edits: tuple[LineEdit, ...] = ()
    fix_commands: tuple[NodeCommand, ...] = ()
    certainty: Certainty = Certainty.CERTAIN
    candidates: tuple[str, ...] = ()
    quote: str = ""
    said_by: str = ""
    undetermined: str = ""
    about: str = ""
    label: str = ""
    excerpt: Excerpt | None = None
    job: str | None = None
    group: str | None = None
    culprit: Culprit | None = None

    @property
    def is_corrected_safely(self) -> bool:
        """Whether it has edits of a script, all of them safe."""
        return bool(self.edits) and all(edit.is_safe for edit in self.edits)

    @property
    def text(self) -> str:
        """The whole message: what was seen, where, and what that leaves open."""
        seen = f"{self.message} ({self.about})" if self.about else self.message
        return f"{seen}. {self.undetermined}" if self.undetermined else seen

    @property
    def unsaid_process(self) -> str:
        """The process that decides it, for a screen; "" if the message names it."""
        if self.culprit is None:
            return ""
        phrase, words = self.culprit.phrase, self.culprit.text
        is_telling = self.culprit.relation is Relation.FIRST
        is_reporter = self.culprit.relation is Relation.REPORTED_BY and "rank" in self.message
        is_gpu = words.startswith("GPU ") and (self.culprit.gpu or words) in self.message
        is_said = phrase in self.message or is_reporter or is_gpu or (not is_telling and words in self.message)
        return "" if is_said else phrase

    @property
    def commands(self) -> tuple[NodeCommand, ...]:
        """What to paste on which node; empty if the finding is not about one node."""
        if self.fix_commands or self.fix_command is None or self.where.host is None:
            return self.fix_commands
        return (NodeCommand(self.where.host, self.fix_command),)

    @property
    def identity(self) -> tuple[str, str]:
        """What equal findings at different places have in common: for comparison only, not for display."""
        return self.code, self.message

    def if_certain(self, is_certain: bool, otherwise: Severity = Severity.WARNING) -> Finding:
        """Itself if it is certain, otherwise a likely finding of the lower severity."""
        return self if is_certain else replace(self, severity=otherwise, certainty=Certainty.LIKELY)

    def leaving_open(self, undetermined: str) -> Finding:
        """As one of several candidates: `undetermined` says what is open and what would decide it."""
        message = self.message.rstrip(".")
        return replace(self, message=message, undetermined=undetermined, certainty=Certainty.CANDIDATES)

    def decided(self) -> Finding:
        """Without the open part, because something else explains it: the likely choice was right."""
        if self.certainty is not Certainty.CANDIDATES:
            return replace(self, undetermined="")
        return replace(self, undetermined="", certainty=Certainty.LIKELY, candidates=())

    def reworded(self, *, before: str = "", after: str = "") -> Finding:
        """With a prefix or suffix to its message, such as the cell of a notebook."""
        return replace(self, message=f"{before}{self.message}{after}")

    @property
    def worst(self) -> Severity:
        """The severity; a finding without one counts as an error."""
        return self.severity or Severity.ERROR


@dataclass(frozen=True, slots=True)
class Skipped:
    """A rule that was skipped, and why. `unanswered`: something that exists did not answer."""

    code: str
    reason: str
    unanswered: bool = False


@dataclass(frozen=True, slots=True)
class Crashed:
    """A rule that crashed: a bug of ddpdoctor, which is reported."""

    code: str
    error: str


INTERRUPTED = 130
"""The exit code after Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one command found. Every rule that was judged is in exactly one of findings, passed, skipped, crashed.

    `failures` are things that ddpdoctor itself could not do (an unreadable input, its own time limit): exit code 3.
    `inputs` are what was read, `jobs` what these show, `sections` those of a preflight; `differences` are what only the failed
    run has in comparison with `compared_with`, runs that completed; `subject` names what was examined in one line: files,
    lines, ranks and period, or the launch line, script, nodes and ranks.
    """

    command: str
    host: str
    started_at: str
    seconds: float
    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    crashed: tuple[Crashed, ...] = ()
    failures: tuple[str, ...] = ()
    inputs: tuple[ExaminedInput, ...] = ()
    jobs: tuple[ExaminedJob, ...] = ()
    sections: tuple[CheckedSection, ...] = ()
    differences: tuple[RunDifference, ...] = ()
    compared_with: str = ""
    subject: str = ""
    notes: tuple[str, ...] = ()
    """What a reader may want to know about the examination itself; a screen shows it only if it is verbose."""
    is_interrupted: bool = False
    """Ctrl-C ended the work early: the report is about what was judged until then, and `failures` list what was not."""

    @property
    def not_understood(self) -> tuple[ExaminedInput, ...]:
        """The inputs that the user named and that are empty, unreadable or of an unknown kind."""
        return tuple(each for each in self.inputs if each.is_named and not each.is_understood)

    @property
    def open_ends(self) -> tuple[str, ...]:
        """For each job of which nothing shows that it ended well or still works: its name and what the log shows."""
        return tuple(f"how job {job.name} ended: {job.open_end}" for job in self.jobs if job.open_end)

    @property
    def worst(self) -> Severity | None:
        """The worst severity among the findings, None without any."""
        return max((f.worst for f in self.findings), key=lambda s: s.weight, default=None)

    @property
    def is_incomplete(self) -> bool:
        """Something that exists did not answer, an input was not understood, or ddpdoctor itself failed."""
        has_failed = bool(self.crashed or self.failures or self.not_understood or self.open_ends)
        return has_failed or any(s.unanswered for s in self.skipped)

    @property
    def verdict(self) -> Verdict:
        """`fail` with an error, `warn` with a warning, else `incomplete` or `pass`."""
        if self.worst is Severity.ERROR:
            return Verdict.FAIL
        if self.worst is Severity.WARNING:
            return Verdict.WARN
        return Verdict.INCOMPLETE if self.is_incomplete else Verdict.PASS

    def exit_code(self, fail_on: Severity | None) -> int:
        """0, 1, 3 or 130 as the contract says; `fail_on` None means that findings never fail the command."""
        if self.is_interrupted:
            return INTERRUPTED
        is_open = bool(self.not_understood or self.open_ends) and self.worst is not Severity.ERROR
        if self.crashed or self.failures or is_open:
            return 3
        if fail_on is None or self.worst is None:
            return 0
        return 1 if self.worst.weight >= fail_on.weight else 0
