"""LAUNCH051, 054, 058, 063 and 070, SCRIPT005, NET015, NET018: what several lines together say of the launch."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.findings import Evidence, Finding, Role, Severity, Where
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.history import history_of
from ddpdoctor.rules import in_logs
from ddpdoctor.rules.log.scene import came
from ddpdoctor.rules.log.signatures import finding_of, matching, traceback_of

__all__: list[str] = []

_NUMBERS = re.compile(r"\d+")
NOT_SET = (r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_RANK) expected, but not set",)
NO_KEY = (r"KeyError: '(RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'",)
NO_LOCAL_RANK = (r"KeyError: 'LOCAL_RANK'",)
NOT_PASSED = (r"arguments are required: --local[-_]rank",)
NO_GROUP = (r"Default process group (?:has not been|is not) initialized",)
CLOSED = (r"RendezvousClosedError", r"The rendezvous '[^']*' is closed")
TOLD_TO_END = (r"Received (15|Signals\.SIGTERM|SIGTERM) death signal",)
"""What the other launcher says, by whose end a rendezvous is closed."""
UNKNOWN_NAME = (
    r"gai error: -\d+",
    r"host not found: Name or service not known",
    r"Temporary failure in name resolution",
)


@in_logs("NET018")
def rendezvous_closed(log: Log) -> Iterator[Finding]:
    """A launcher that comes to a rendezvous that is over: left from an earlier job, or ended by another node of this one."""
    left = [line for line, _ in context_lines(log, "left_file")]
    waited = [line for line in log.lines if (count := came(line)) is not None and count[0] > count[1]]
    if left and waited:
        title = "The file of the process group was left by an earlier run, whose ranks it still counts"
        yield finding_of(log, [*left, *waited], title, blames_speaker=False)
    lines = matching(log, CLOSED)
    if not lines:
        return
    title = "The rendezvous was closed before this launcher joined"
    if log.exits or any(source.restarted_at is not None for source in log.sources) or log.world_size is not None:
        title = "The rendezvous was closed: another node's launcher had ended or given up; its output holds the reason"
    else:
        title += ": an earlier run has the same --rdzv-id, or another node gave up first"
    found = finding_of(log, lines, title, blames_speaker=False)
    yield replace(found, role=Role.CONSEQUENCE, caused_by="LOG015") if matching(log, TOLD_TO_END) else found


@in_logs("LAUNCH063")
def tasks_without_variables(log: Log) -> Iterator[Finding]:
    """Under srun or mpirun, every task lacks torch's variables."""
    lines = matching(log, NOT_SET + NO_KEY)
    if lines and _under_scheduler(log):
        yield finding_of(log, lines, "srun or mpirun started tasks without torch's variables", blames_speaker=False)


@in_logs("LAUNCH054")
def no_launcher(log: Log) -> Iterator[Finding]:
    """Nothing set torch's variables, and no scheduler is in sight."""
    lines = matching(log, NOT_SET + NO_KEY)
    if lines and not _under_scheduler(log):
        title = "A script that reads env:// was started without a launcher"
        yield finding_of(log, lines, title, blames_speaker=False)


def _under_scheduler(log: Log) -> bool:
    words = ("srun:", "slurmstepd", "mpirun", "prterun")
    if any(word in line.text for line in (*log.tails, *log.lines) for word in words):
        return True
    return any(line.who.task is not None for line in log.tails)


@in_logs("SCRIPT005")
def local_rank_under_spawn(log: Log) -> Iterator[Finding]:
    """LOCAL_RANK is missing in a child of mp.spawn."""
    lines = [line for line in matching(log, NO_LOCAL_RANK) if _is_spawned(log, line)]
    if lines:
        yield finding_of(log, lines, "The script reads LOCAL_RANK, which mp.spawn does not set", blames_speaker=False)


@in_logs("LAUNCH051")
def local_rank_not_passed(log: Log) -> Iterator[Finding]:
    """LOCAL_RANK, or the argument, is missing, and mp.spawn is not the reason."""
    lines = [line for line in matching(log, NO_LOCAL_RANK + NOT_PASSED) if not _is_spawned(log, line)]
    if lines:
        title = "The script expects its local rank in a way that its launcher does not use"
        yield finding_of(log, lines, title, blames_speaker=False)


def _is_spawned(log: Log, line: LogLine) -> bool:
    traceback = traceback_of(log, line)
    return traceback is not None and any("multiprocessing/spawn.py" in frame.file for frame in traceback.frames)


@in_logs("LAUNCH070")
def own_worlds(log: Log) -> Iterator[Finding]:
    """Several nodes each say that they are the only member."""
    alone: dict[str, LogLine] = {}
    for line, found in context_lines(log, "member"):
        if found["members"] == "1":
            alone.setdefault(line.who.host or log.sources[line.source].name, line)
    if len(alone) > 1:
        first = next(iter(alone.values()))
        yield _about(log, f"{', '.join(alone)} each formed a world of one rank", list(alone.values()), first)


@in_logs("LAUNCH058")
def launched_per_task(log: Log) -> Iterator[Finding]:
    """One rank is announced again and again by different processes of one job."""
    forms: dict[tuple[str, str], dict[str, list[LogLine]]] = defaultdict(lambda: defaultdict(list))
    for line, found in context_lines(log, "member"):  # loggers may tell each once more in another form
        form = _NUMBERS.sub("#", line.text[: found.start()])
        forms[form, found["members"]][found["rank"]].extend([line] * line.count)
    for (_, members), said in forms.items():
        times, rest = divmod(sum(map(len, said.values())), len(said))
        is_even = all(len(each) == times for each in said.values()) or times * len(said) == int(members)
        if members != "1" and times > 1 and not rest and is_even:
            rank, lines = next(iter(said.items()))
            text = (
                f"rank {rank} of {members} started {times} times, and so did every other: a launcher runs in each task"
            )
            yield _about(log, text, lines[:3], lines[0])
            return


@in_logs("NET015")
def name_came_late(log: Log) -> Iterator[Finding]:
    """A name did not resolve at first, and then the job ran."""
    lines = matching(log, UNKNOWN_NAME)
    if lines and all(history_of(log).survived(line) for line in lines):
        found = _about(log, "the master's name did not resolve at first; later the job ran", lines[:2], lines[0])
        yield Finding(found.message, found.evidence, where=found.where, severity=Severity.NOTE)


def _about(log: Log, text: str, lines: list[LogLine], first: LogLine) -> Finding:
    return Finding(
        text,
        tuple(Evidence(log.place(line.source, line.number), line.text[:200]) for line in lines[:4]),
        where=Where(file=log.sources[first.source].name, line=first.number),
    )


@in_logs("SCRIPT019")
def batch_norm_without_group(log: Log) -> Iterator[Finding]:
    """The process group is missed by SyncBatchNorm."""
    lines = [line for line in matching(log, NO_GROUP) if _is_of_batch_norm(log, line)]
    if lines:
        yield finding_of(log, lines, "SyncBatchNorm runs without a process group", blames_speaker=True)


@in_logs("SCRIPT018")
def group_missing(log: Log) -> Iterator[Finding]:
    """The process group is missed by anything else."""
    lines = [line for line in matching(log, NO_GROUP) if not _is_of_batch_norm(log, line)]
    if lines:
        yield finding_of(log, lines, "A distributed call runs before init_process_group", blames_speaker=True)


def _is_of_batch_norm(log: Log, line: LogLine) -> bool:
    traceback = traceback_of(log, line)
    files = () if traceback is None else (frame.file for frame in traceback.frames)
    return any(file.endswith(("torch/nn/modules/_functions.py", "torch/nn/modules/batchnorm.py")) for file in files)
