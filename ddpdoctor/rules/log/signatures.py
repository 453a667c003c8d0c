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
from ddpdoctor.logs.traceback_of_line import OF_LAUNCHER, OUTSIDERS, traceback_of, traceback_of_repeated
from ddpdoctor.rules import Cause, Rule, load

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

_LOGGER = re.compile(r"^(\[[IWEF]\d*[ \d:.]* ?[\w.]+:\d+\] ?(\[c10d\] )?|[IWEF]\d{4} [\d:.]+ \d+ [\w./-]+:\d+\] )")
"""What c10d's and torch's loggers put before a message."""

_WARNS = re.compile(r"\[W\d*[ \d:.]* ?[\w.]+:\d+\]")
_DOWNLOAD = re.compile(r"urlopen error|HTTPS?ConnectionPool|NewConnectionError|Max retries exceeded|Failed to resolve")
"""What libraries say that fetch something from the web."""


LONGEST = 240
TELLING = 8
"""A message of so many characters is no accident in another line."""
MOST = 16


def by_signatures(rule: Rule) -> Callable[[Log], Iterator[Finding]]:
    """The look at a log for the signatures of one cause."""
    return functools.partial(_look, rule)


def signed(cause: Cause, log: Log) -> Iterator[Finding]:
    """What the signatures of a cause find, for a look of its own that adds to them."""
    return by_signatures(cause.rule)(log)


def ending(cause: Cause, log: Log) -> Iterator[Finding]:
    """The same of a cause that is a process's own exception: it says nothing where the process went on."""
    yield from (_with_ranks(log, each) for each in signed(cause, log) if each.role is not Role.NOISE)


def _with_ranks(log: Log, found: Finding) -> Finding:
    """With the ranks that raised what a logger or a parent printed without one."""
    if found.ranks:
        return found
    raised = [each for each in log.tracebacks if len(each.message) >= TELLING and each.message[:LONGEST] in found.quote]
    ranks = tuple(sorted({each.who.rank for each in raised if each.who.rank is not None}))
    return replace(found, ranks=ranks, where=replace(found.where, rank=ranks[0] if len(ranks) == 1 else None))


@functools.cache
def _catalogue() -> tuple[Rule, ...]:
    return load()


def codes_of(*names: str) -> tuple[str, ...]:
    """The codes of the causes with these names, in this order.

    Raises:
        KeyError: the catalogue has no such name.
    """
    codes = {each.name: each.code for each in _catalogue()}
    return tuple(codes[name] for name in names)


def explained(log: Log, *kinds: str) -> list[LogLine]:
    """The workers' lines that a signature of a cause of these kinds matches; what launchers say of them explains nothing."""
    known = [each for each in _catalogue() if each.kind in kinds and each.speaker is not Speaker.LAUNCHER]
    scripts = matching_lines(log, [s for each in known if each.speaker is Speaker.TORCH for s in each.signatures])
    doubted = [line for line in scripts if _is_scripts(log, line)]
    lines = matching_lines(log, [s for each in known for s in each.signatures])
    return [line for line in lines if not OF_LAUNCHER.match(line.text) and line not in doubted]


def softly_explained(log: Log) -> dict[tuple[int, int], str]:
    """The places of lines that only show causes that are no errors by themselves, each with one of their codes."""
    found: dict[tuple[int, int], str] = {}
    for each in _catalogue():
        if each.kind == "cause" and each.severity is not Severity.ERROR:
            found |= {(line.source, line.number): each.code for line in matching_lines(log, each.signatures)}
    hard = [
        s for each in _catalogue() if each.kind != "noise" and each.severity is Severity.ERROR for s in each.signatures
    ]
    for line in matching_lines(log, hard):
        found.pop((line.source, line.number), None)
    return found


def _look(rule: Rule, log: Log) -> Iterator[Finding]:
    lines = matching_lines(log, rule.signatures)
    if rule.speaker is Speaker.TORCH:
        lines = [line for line in lines if not _is_scripts(log, line)]
    if lines and rule.yields_to:
        precise = [s for each in _catalogue() if each.code in rule.yields_to for s in each.signatures]
        others = set(matching_lines(log, precise))
        lines = [line for line in lines if line not in others]
    if lines:
        is_speaker = rule.kind not in ("consequence", "noise") and not rule.speaker.is_victim
        found = finding_of(log, lines, rule.title, blames_speaker=is_speaker, signatures=rule.signatures)
        if rule.speaker is Speaker.LINK_END and len(hosts := {line.who.host for line in lines}) == 1:
            found = replace(found, where=replace(found.where, host=hosts.pop()))
        is_mild = rule.severity is Severity.ERROR and found.severity is None
        if is_mild and all(_WARNS.match(line.text) for line in lines) and not _shows_end(log, lines[-1]):
            # torch tried something else, and nothing shows that it failed
            found = replace(found, severity=Severity.WARNING)
        yield found


def _shows_end(log: Log, last: LogLine) -> bool:
    """Whether the job failed, or a port that could not be had is the last that is told: nobody goes on after it."""
    history = history_of(log)
    return history.has_failed or (
        "(errno: 98 - " in last.text and len(history.progress_after(last)) < FEW_PROGRESS_LINES
    )


def _is_scripts(log: Log, line: LogLine) -> bool:
    """Whether the line ends a traceback that no launcher is part of, or tells of a download."""
    if _DOWNLOAD.search(line.text):
        return True
    traceback = traceback_of(log, line)
    return traceback is not None and not any("/torch/distributed/" in frame.file for frame in traceback.frames)


def finding_of(
    log: Log,
    lines: list[LogLine],
    title: str,
    undetermined: str = "",
    *,
    blames_speaker: bool,
    signatures: Iterable[str] = (),
) -> Finding:
    """One finding for all `lines`: the first one told, with its traceback's innermost frame of the job's own code.

    Of very long lines it shows what one of the `signatures` matches. `undetermined` is what the lines leave open.
    """
    first = lines[0]
    told = next((line for line in lines if line.who.rank is not None), first) if blames_speaker else first
    is_noise = history_of(log).is_harmless(lines)
    named = ranks_in(lines)
    speakers = {line.who.rank for line in lines if line.who.rank is not None} if blames_speaker else set()
    ranks = sorted(speakers | named)
    hosts = {line.who.host for line in lines if line.who.host is not None} if blames_speaker else set()
    own = {line.who.host for line in lines if line.who.host in hosts and not OUTSIDERS.match(line.text)}
    listed = _listed(sorted(named), sorted(host for host in own if host is not None))
    tracebacks = (found for line in lines for found in (traceback_of(log, line), traceback_of_repeated(log, line)))
    frame = next((each.place for each in tracebacks if each is not None and each.place is not None), None)
    file, number = (log.sources[first.source].name, first.number) if frame is None else (frame.file, frame.line)
    found = Finding(
        "",
        tuple(Evidence(log.place(line.source, line.number), _around(line.text, signatures)) for line in lines[:3]),
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
        said_by=_speaker(told),
    )
    if undetermined:
        return retitled(found, title, undetermined + listed)
    return retitled(found, title.rstrip(".") + listed)


def retitled(found: Finding, title: str, undetermined: str = "") -> Finding:
    """The finding of a signature under this title, with the line that it quotes; `undetermined` is what that leaves open."""
    said = f"{found.said_by}: {found.quote}" if found.said_by else found.quote
    if undetermined:
        return replace(found, message=title, undetermined=f"{undetermined}: {said}", certainty=Certainty.CANDIDATES)
    return replace(found, message=f"{title}: {said}")


def _listed(ranks: list[int], hosts: list[str]) -> str:
    """` (ranks 0, 3, 7; on node1, node2)`, where a line alone does not name them all."""
    words = [("ranks", [*map(str, ranks)])] if len(ranks) > 2 else []
    words += [("on", hosts)] if len(hosts) > 1 else []
    told = (f"{word} {', '.join(names[:MOST])}{', …' if len(names) > MOST else ''}" for word, names in words)
    return f" ({'; '.join(told)})" if words else ""


def _around(text: str, signatures: Iterable[str]) -> str:
    """Of a very long line the part that a signature matches, where its beginning does not hold it."""
    if len(text) > LONGEST:
        found = next((m for s in signatures if (m := compiled(s).search(text)) is not None), None)
        if found is not None and found.end() >= LONGEST:
            text = "…" + text[max(0, found.start() - LONGEST // 4) :]
    return shortened(text)


def shortened(text: str) -> str:
    """The text of a line as a message quotes it."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _speaker(line: LogLine) -> str:
    """`rank 3 on node1`, as far as it is known."""
    who = line.who
    name = f"rank {who.rank}" if who.rank is not None else ""
    if not name and who.local_rank is not None:
        name = f"local rank {who.local_rank}"
    elif not name and who.device is not None:
        name = f"CUDA device {who.device}"
    place = f"on {who.host}" if who.host is not None else ""
    return " ".join(word for word in (name, place) if word)
