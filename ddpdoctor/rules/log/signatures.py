"""From signatures to findings: which lines show a cause, who printed them, and which traceback they end."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.findings import Certainty, Evidence, Finding, Role, Severity, Speaker, Where
from ddpdoctor.logs.distances import FEW_PROGRESS_LINES
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.matching import compiled, matching_lines
from ddpdoctor.logs.mentioned_peers import peer_in, ranks_in
from ddpdoctor.logs.nccl_hints import hints_after
from ddpdoctor.logs.traceback_of_line import OF_LAUNCHER, OUTSIDERS, traceback_of, traceback_of_repeated
from ddpdoctor.rules import Cause, Rule, load
from ddpdoctor.rules.log.headlines import headline, names_of

__all__ = [
    "by_signatures",
    "codes_of",
    "ending",
    "explained",
    "finding_of",
    "retitled",
    "shortened",
    "signed",
    "softly_explained",
]

_LOGGER = re.compile(
    r"^(\[[IWEF][ \d:.]{0,40}[\w.]{1,80}:\d{1,6}\] ?(\[c10d\] )?|[IWEF]\d{4} [\d:.]{1,30} \d{1,8} [\w./-]{1,200}:\d{1,6}\] )"
)
"""What c10d's and torch's loggers put before a message."""

_INFORMS = re.compile(r"\[I[ \d:.]{0,40}[\w.]{1,80}:\d{1,6}\]")
"""How c10d begins a line that is information only."""
_WARNS = re.compile(r"\[W[ \d:.]{0,40}[\w.]{1,80}:\d{1,6}\]")
_DOWNLOAD = re.compile(r"urlopen error|HTTPS?ConnectionPool|NewConnectionError|Max retries exceeded|Failed to resolve")
"""The messages of libraries that download something."""


_TORCH_RAISES = re.compile(r"(?:torch\.distributed\.)?(?:Dist\w+Error|RuntimeError|ValueError)$")
"""The classes of torch's own errors: an exception without frames is torch's if it has one of them."""

LONGEST = 240
MOST_HINTS = 2
"""So many of NCCL's hints stand below its warning."""
DISTINCTIVE = 8
"""A message of at least this many characters does not occur in another line by chance."""


def by_signatures(rule: Rule) -> Callable[[Log], Iterator[Finding]]:
    """The look that searches a log for the signatures of one cause."""
    return functools.partial(_look, rule)


def signed(cause: Cause, log: Log) -> Iterator[Finding]:
    """The findings of a cause's signatures, for a look that adds to them."""
    return by_signatures(cause.rule)(log)


def ending(cause: Cause, log: Log) -> Iterator[Finding]:
    """The same for a cause that is an exception of a process: nothing if the process continued."""
    yield from (_with_ranks(log, cause, found) for found in signed(cause, log) if found.role is not Role.NOISE)


def _with_ranks(log: Log, cause: Cause, found: Finding) -> Finding:
    """With the ranks that raised what a logger or a parent process printed without a rank."""
    if found.ranks:
        return found
    raised = [t for t in log.tracebacks if len(t.message) >= DISTINCTIVE and t.message[:LONGEST] in found.quote]
    if not raised and history_of(log).is_excerpt:
        raised = list(log.unfinished)  # a title quotes what a traceback below it cuts
    ranks = tuple(sorted({traceback.who.rank for traceback in raised if traceback.who.rank is not None}))
    if not ranks:
        return found
    where = replace(found.where, rank=ranks[0] if len(ranks) == 1 else None)
    hosts = () if where.host is None else (where.host,)
    return retitled(replace(found, ranks=ranks, where=where, said_by=names_of(ranks, hosts)), cause.rule.title)


@functools.cache
def _catalogue() -> tuple[Rule, ...]:
    return load()


def codes_of(*names: str) -> tuple[str, ...]:
    """The codes of the causes with these names, in this order.

    Raises:
        KeyError: the catalogue has no such name.
    """
    codes = {rule.name: rule.code for rule in _catalogue()}
    return tuple(codes[name] for name in names)


def explained(log: Log, *kinds: str) -> list[LogLine]:
    """The workers' lines that a signature of a cause of these kinds matches; a launcher's report about them explains nothing."""
    rules = [rule for rule in _catalogue() if rule.kind in kinds and rule.speaker is not Speaker.LAUNCHER]
    of_torch = matching_lines(log, [s for rule in rules if rule.speaker is Speaker.TORCH for s in rule.signatures])
    doubted = [line for line in of_torch if _is_scripts(log, line)]
    lines = matching_lines(log, [s for rule in rules for s in rule.signatures])
    harmless = {*doubted, *(() if "noise" in kinds else _harmless(log, rules))}
    return [line for line in lines if not OF_LAUNCHER.match(line.text) and line not in harmless]


def _harmless(log: Log, rules: Iterable[Rule]) -> list[LogLine]:
    """The lines of probes and fallbacks that look like one of these causes: a cause of no harm declares them."""
    codes = {code for rule in rules for code in rule.yields_to}
    quiet = [s for rule in _catalogue() if rule.kind == "noise" and rule.code in codes for s in rule.signatures]
    return matching_lines(log, quiet)


def softly_explained(log: Log) -> dict[tuple[int, int], str]:
    """The places of lines that only show causes that are not errors by themselves, each with one of their codes."""
    codes: dict[tuple[int, int], str] = {}
    for rule in _catalogue():
        if rule.kind == "cause" and rule.severity is not Severity.ERROR:
            codes |= {(line.source, line.number): rule.code for line in matching_lines(log, rule.signatures)}
    hard = [
        s for rule in _catalogue() if rule.kind != "noise" and rule.severity is Severity.ERROR for s in rule.signatures
    ]
    for line in matching_lines(log, hard):
        codes.pop((line.source, line.number), None)
    return codes


def _look(rule: Rule, log: Log) -> Iterator[Finding]:
    lines = matching_lines(log, rule.signatures)
    if rule.speaker is Speaker.TORCH:
        lines = [line for line in lines if not _is_scripts(log, line)]
    if lines and rule.yields_to:
        precise = [s for other in _catalogue() if other.code in rule.yields_to for s in other.signatures]
        others = set(matching_lines(log, precise))
        lines = [line for line in lines if line not in others]
    if lines:
        is_speaker = rule.kind not in ("consequence", "noise") and not rule.speaker.is_victim
        found = finding_of(log, lines, rule.title, blames_speaker=is_speaker, signatures=rule.signatures)
        if rule.speaker is Speaker.LINK_END and len(hosts := {line.who.host for line in lines}) == 1:
            found = replace(found, where=replace(found.where, host=hosts.pop()))
        is_mild = rule.severity is Severity.ERROR and found.severity is None
        if is_mild and all(_WARNS.match(line.text) for line in lines) and not _shows_end(log, lines[-1]):
            # torch tried something else, and no line shows that this failed
            found = replace(found, severity=Severity.WARNING)
        if all(_INFORMS.match(line.text) for line in lines) and not history_of(log).has_failed:
            found = replace(found, severity=Severity.NOTE, role=Role.NOISE)
        yield found


def _shows_end(log: Log, last: LogLine) -> bool:
    """Whether the job failed, or the log ends with a port that could not be bound."""
    history = history_of(log)
    return history.has_failed or (
        "(errno: 98 - " in last.text and len(history.progress_after(last)) < FEW_PROGRESS_LINES
    )


def _is_scripts(log: Log, line: LogLine) -> bool:
    """Whether the line ends a traceback without frames of torch.distributed, or is about a download."""
    if _DOWNLOAD.search(line.text):
        return True
    traceback = traceback_of(log, line)
    if traceback is None or (not traceback.frames and _TORCH_RAISES.match(traceback.exception)):
        return False
    return not any("/torch/distributed/" in frame.file for frame in traceback.frames)


def finding_of(
    log: Log,
    lines: list[LogLine],
    title: str,
    undetermined: str = "",
    *,
    blames_speaker: bool,
    signatures: Iterable[str] = (),
) -> Finding:
    """One finding for all `lines`, at the innermost frame of the job's own code if one of them has a traceback.

    It quotes the first line; of a very long line, the part that one of the `signatures` matches. `undetermined` names the causes
    between which the lines do not decide, and what does.
    """
    first = lines[0]
    is_noise = history_of(log).is_harmless(lines)
    named = ranks_in(lines)
    speakers = {line.who.rank for line in lines if line.who.rank is not None}
    ranks = sorted((speakers if blames_speaker else set()) | named)
    hosts = {line.who.host for line in lines if line.who.host is not None} if blames_speaker else set()
    tracebacks = (t for line in lines for t in (traceback_of(log, line), traceback_of_repeated(log, line)))
    frame = next((t.place for t in tracebacks if t is not None and t.place is not None), None)
    shown = (*lines[:3], *hints_after(log, lines[:1])[:MOST_HINTS])
    file, number = (log.sources[first.source].name, first.number) if frame is None else (frame.file, frame.line)
    found = Finding(
        "",
        tuple(Evidence(log.place(line.source, line.number), _around(line.text, signatures)) for line in shown),
        where=Where(
            host=hosts.pop() if len(hosts) == 1 else None,
            rank=ranks[0] if len(ranks) == 1 else None,
            local_rank=first.who.local_rank if len(ranks) == 1 else None,
            peer=peer_in(lines),
            file=file,
            line=number,
        ),
        ranks=tuple(ranks),
        severity=Severity.NOTE if is_noise else None,
        role=Role.NOISE if is_noise else None,
        quote=_around(_LOGGER.sub("", first.text).strip(), signatures),
        said_by=_who(lines, ranks if blames_speaker else sorted(speakers)),
    )
    return retitled(found, title, undetermined)


def retitled(found: Finding, title: str, undetermined: str = "") -> Finding:
    """The finding with this title in its headline; `undetermined` is what its lines do not decide."""
    found = replace(found, message=headline(found.said_by, title, found.quote))
    if undetermined:
        return replace(found, undetermined=undetermined, certainty=Certainty.CANDIDATES)
    return found


def _around(text: str, signatures: Iterable[str]) -> str:
    """The beginning of a line, or the part that a signature matches if the beginning does not contain it."""
    if len(text) > LONGEST:
        match = next((m for s in signatures if (m := compiled(s).search(text)) is not None), None)
        if match is not None and match.end() >= LONGEST:
            text = "…" + text[max(0, match.start() - LONGEST // 4) :]
    return shortened(text)


def shortened(text: str) -> str:
    """The text of a line as a finding quotes it."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _who(lines: list[LogLine], ranks: list[int]) -> str:
    """`rank 3 on node1`, `node1`, `local rank 2`, as far as the lines show it; "" if they do not."""
    own = [line for line in lines if not OUTSIDERS.match(line.text)]
    hosts = sorted({line.who.host for line in own if line.who.host is not None})
    if ranks:
        return names_of(ranks, hosts if {*ranks} <= {line.who.rank for line in own} else ())
    if len(hosts) > 1:
        return names_of((), hosts)
    local_ranks, devices = {line.who.local_rank for line in lines}, {line.who.device for line in lines}
    part = ""
    if len(local_ranks) == 1 and None not in local_ranks:
        part = f"local rank {lines[0].who.local_rank}"
    elif len(devices) == 1 and None not in devices:
        part = f"CUDA device {lines[0].who.device}"
    return " on ".join([*filter(None, (part,)), *hosts])
