"""Everything that the doctor can say: findings, and the report that holds them.

Types only, standard library only. The JSON that users read is written by `render/json.py`, so that these types may
change without changing the report (`CONTRACT: ddpdoctor.report/1`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

from ddpdoctor.examined import CheckedSection, ExaminedInput, ExaminedJob, Excerpt, Verdict

__all__ = [
    "CausalStage",
    "Certainty",
    "Crashed",
    "Edit",
    "Evidence",
    "Finding",
    "LineEdit",
    "NodeCommand",
    "Report",
    "Role",
    "Severity",
    "Skipped",
    "Speaker",
    "Verdict",
    "Where",
]


class Severity(str, Enum):
    """`error` will not start, hangs, dies or trains wrong; `warning` is slow or at risk; `note` is worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def weight(self) -> int:
        """3 for an error, 1 for a note: larger is worse."""
        return {"error": 3, "warning": 2, "note": 1}[self.value]


class Role(str, Enum):
    """What a finding is in this case: the thing to act on, something that follows from it, or harmless."""

    CAUSE = "cause"
    CONSEQUENCE = "consequence"
    NOISE = "noise"


class CausalStage(IntEnum):
    """How far from the fault something shows, in order: what is of an earlier stage explains what is of a later one.

    A wrong configuration makes ranks die, a rank that died makes the others fail or hang, and a process that was terminated
    from outside says only that somebody else had already given up. Causes declare theirs; `causality.graph` has those of
    the probe's observations.
    """

    FAULT = 0
    """A fault by itself, such as a wrong setting: nothing else is needed to explain it."""
    ADDRESS = 1
    """The address of the master is wrong, or its port belongs to somebody else."""
    OPEN_FILES = 2
    """A process may not open as many files as it needs."""
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
    """A whole host answers no more."""
    UNINTERRUPTIBLE = 9
    """A process waits in the kernel, where no signal reaches it."""
    RANK_ERROR = 10
    """A rank raised an exception or computed a wrong value; one that died or was stopped may have made it."""
    NOT_IN_COLLECTIVE = 11
    """A rank does something else while the others wait for it in a collective."""
    REACHABILITY = 12
    """A node or its port cannot be reached, or a rank never joined."""
    BLACK_HOLE = 13
    """Small packets pass a link and large ones vanish."""
    BLOCKED_LINK = 14
    """A link between two nodes is blocked."""
    PEER_ERROR = 15
    """An exception of the network: the other end, or the way to it, is to blame."""
    NCCL_ERROR = 16
    """NCCL failed and gives no reason."""
    STORE_LOST = 17
    """The connection to the store was lost."""
    OUT_OF_TIME = 18
    """The time was over before anything more could be seen."""
    HANG = 19
    """Ranks wait in a collective, or a watchdog gave up."""
    TERMINATED = 20
    """A process was ended by somebody who had already given up."""


class Speaker(str, Enum):
    """Who prints the lines that a cause's signatures match, and so whether the one who prints them is to blame."""

    CULPRIT = "culprit"
    """The process that has the fault."""
    VICTIM = "victim"
    """A process that suffers from what another one did."""
    LINK_END = "link_end"
    """One end of a link, whichever of the two is to blame: only its host is told."""
    SURVIVOR = "survivor"
    """A process whose peer has gone; why that one ended, its own output says."""
    STORE_CLIENT = "store_client"
    """A process whose store has gone, which happens at the end of every job as well."""
    TORCH = "torch"
    """torch or its launcher; scripts print the same words of something else, which then are not about this cause."""
    LAUNCHER = "launcher"
    """A launcher that sums up how its processes ended: its line explains no other."""
    SCHEDULER = "scheduler"
    """The scheduler that ended the job."""
    PERSON = "person"
    """A process that somebody interrupted with SIGINT: whatever else is told then follows from that."""
    KERNEL = "kernel"
    """The kernel, of a program that failed on a GPU."""

    @property
    def is_victim(self) -> bool:
        """Whoever says it is not to blame."""
        return self in (Speaker.VICTIM, Speaker.LINK_END)


class Certainty(str, Enum):
    """How sure a finding is: seen, inferred, or one of several candidates that only something else can tell apart."""

    CERTAIN = "certain"
    LIKELY = "likely"
    CANDIDATES = "candidates"


@dataclass(frozen=True, slots=True)
class Where:
    """The place to blame. Unknown or not applicable is None.

    `rank` is global and set only when exactly one is to blame; `gpu` is the NVML index; `host` is the short hostname;
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
    """One fact that a finding rests on: its path in the facts, what was seen there, what was expected."""

    path: str
    seen: str
    expected: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """A correction of a script: the text from `line`, `column` up to before `end_line`, `end_column` of `file` becomes `text`.

    Lines and columns count from 1, columns in characters. An edit whose end is its beginning inserts. The edits of one
    finding belong together and never overlap; of two findings whose edits overlap, only one can be applied. They are kept
    beside the report (`lint --diff` prints them as a patch): no format of the report holds them.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str


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


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. A rule gives message, evidence, fix and place; the engine stamps the identity.

    `severity` is None unless this case is softer than the catalogue says; `role` is None unless the rule knows that it
    is not a cause here. `fix_command` is a line to paste, alone; `fix_commands` are several, with the node of each
    (to be read from `commands`, which knows the host of a single one).
    `edits` correct a script, `line_edits` launch lines: `fix_command` is then what they make of the lines. `quote` is the
    line of a log that decides, `said_by` who printed it, for a sentence.
    `about` are the nodes or the device that the message is about, said behind it.
    `undetermined` is what this finding leaves open and what would decide it; it belongs to the message until something
    else explains the finding. `candidates` are the codes between which it leaves the choice.
    `label` is a short clause for the caret ("add --rdzv-endpoint"), `excerpt` the source lines that it stands under.
    `job` is the name of the job that it is about, `group` the one thing (a GPU, a link, a node) that several findings share.

    No logic reads the message: whatever is decided on is a field.
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

    @property
    def text(self) -> str:
        """The whole message: what was seen, where, and what that leaves open."""
        seen = f"{self.message} ({self.about})" if self.about else self.message
        return f"{seen}. {self.undetermined}" if self.undetermined else seen

    @property
    def commands(self) -> tuple[NodeCommand, ...]:
        """What to paste on which node; empty where the finding is not about one node."""
        if self.fix_commands or self.fix_command is None or self.where.host is None:
            return self.fix_commands
        return (NodeCommand(self.where.host, self.fix_command),)

    @property
    def identity(self) -> tuple[str, str]:
        """What findings that say the same of different places have in common: to be compared, never to be read."""
        return self.code, self.message

    def if_certain(self, is_certain: bool, otherwise: Severity = Severity.WARNING) -> Finding:
        """Itself where it is certain, else a likely finding of the softer severity."""
        return self if is_certain else replace(self, severity=otherwise, certainty=Certainty.LIKELY)

    def leaving_open(self, undetermined: str) -> Finding:
        """As one of several candidates: `undetermined` is what it leaves open and what would decide it."""
        message = self.message.rstrip(".")
        return replace(self, message=message, undetermined=undetermined, certainty=Certainty.CANDIDATES)

    def decided(self) -> Finding:
        """Without what it leaves open, because something else explains it: the choice was the likely one."""
        if self.certainty is not Certainty.CANDIDATES:
            return replace(self, undetermined="")
        return replace(self, undetermined="", certainty=Certainty.LIKELY, candidates=())

    def reworded(self, *, before: str = "", after: str = "") -> Finding:
        """With further words around its message, such as the cell of a notebook."""
        return replace(self, message=f"{before}{self.message}{after}")

    @property
    def worst(self) -> Severity:
        """The severity once stamped; an unstamped finding counts as an error."""
        return self.severity or Severity.ERROR


@dataclass(frozen=True, slots=True)
class Skipped:
    """A rule that could not look, and why. `unanswered`: something that exists did not answer."""

    code: str
    reason: str
    unanswered: bool = False


@dataclass(frozen=True, slots=True)
class Crashed:
    """A rule that failed itself: our bug, reported, never swallowed."""

    code: str
    error: str


INTERRUPTED = 130
"""The exit code after Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one command found. Every rule that was judged stands in exactly one of findings, passed, skipped, crashed.

    `failures` are things that the doctor itself could not do (an unreadable input, its own time limit): exit code 3.
    `inputs` are what was read, `jobs` what these show, `sections` those of a preflight; `subject` names what was examined in
    one line: files, lines, ranks and period, or the launch line, script, nodes and ranks.
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
    subject: str = ""
    is_interrupted: bool = False
    """Ctrl-C ended the work early: the report is about what was judged until then, and `failures` say what was not."""

    @property
    def not_understood(self) -> tuple[ExaminedInput, ...]:
        """The inputs that the user named and that are empty, unreadable or of no known kind."""
        return tuple(each for each in self.inputs if each.is_named and not each.is_understood)

    @property
    def worst(self) -> Severity | None:
        """The worst severity among the findings, None without any."""
        return max((f.worst for f in self.findings), key=lambda s: s.weight, default=None)

    @property
    def is_incomplete(self) -> bool:
        """Something that exists did not answer, an input was not understood, or the doctor itself failed."""
        has_failed = bool(self.crashed or self.failures or self.not_understood)
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
        if self.crashed or self.failures or (self.not_understood and self.worst is not Severity.ERROR):
            return 3
        if fail_on is None or self.worst is None:
            return 0
        return 1 if self.worst.weight >= fail_on.weight else 0
