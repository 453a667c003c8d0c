"""Python tracebacks, also where ranks write at once, and where a text holds only a part of one."""

from __future__ import annotations

import builtins
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Traceback, TracebackFrame, Who
from ddpdoctor.late_pattern import pattern
from ddpdoctor.logs.distances import (
    CHAIN_WORDS_LINES,
    CONTINUED_LINES,
    IGNORED_LINES,
    LEAD_LINES,
    NEXT_END_LINES,
    OTHERS_LINES,
    SPAWN_INDEX_LINES,
    SYNTAX_ERROR_LINES,
    TRACEBACK_LINES,
)
from ddpdoctor.logs.line_prefix import PrefixedLine
from ddpdoctor.logs.tracebacks.line_context import LineContext, is_same_stream, line_of, parsed_line

__all__ = ["EXCEPTION", "FRAME", "HEAD", "IGNORED", "message_of", "syntax_error_of", "traceback_of"]

MOST_FRAMES = 200

FRAME = pattern(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_BOXED = pattern(r"│ (?P<file>/\S+\.py):(?P<line>\d+) in (?P<function>\S+)")
EXCEPTION = pattern(r"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?::(?:\s(?P<message>.*))?)?$")
_NAMES = ("Error", "Exception", "Interrupt", "Exit", "Warning", "Failure", "Timeout", "Iteration", "Fault", "Err")
HEAD = "Traceback (most recent call last)"
IGNORED = "Exception ignored "
"""Python says so of what a destructor or a callback raised: it ended nothing."""
_AT_EXIT = "_run_finalizers"
"""Of multiprocessing: it prints what a finalizer raised, and continues."""
_ANNOUNCED = pattern(r"\b(ERROR|CRITICAL|FATAL)\b")
_CHAINED = pattern(r"handling of the above exception|above exception was the direct cause")
_ESCAPED = pattern(rb"Traceback \(most recent call last\):\\+n(?: *\[\.\.\.\]\\+n)? *File ")
_PASTED = pattern(rb'Traceback \(most recent call last\)[^"\n]{1,80}?File "')
_FRAME_WITHIN = pattern(r'File "(?P<file>[^"]{1,400})", line (?P<line>\d+)(?:, in (?P<function>[\w.<>]+))?')
_EXCEPTION_WITHIN = pattern(
    r"(?<![\w.])(?P<name>(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)): (?P<message>.*)"
)
_RANK_TAG = pattern(r"\[rank(\d{1,6})\]:? ?")
MOST_PASTED = 16_000
_STRING = pattern(rb'(?:[^"\\]|\\.)*')
_RANK_KEY = pattern(rb'"(?:global_)?rank": ?"?(\d{1,6})\b')
_RAISING = pattern(r"\s+raise (?P<name>(?:\w+\.)*[A-Z]\w*(?:Error|Exception))\(")
"""The last line of a traceback that the text cuts there: it names what was raised."""
_WRAPPED = pattern(r'\s*File "[^"]{40}')
"""The beginning of a frame that a terminal's or a collector's width may have cut."""
_SPAWNED = pattern(r"-- Process (\d+) terminated with the following error:")
_RANKED = pattern(r": \(RANK (\d+)\)\s*$")
"""What torch.distributed.checkpoint adds to the head of each traceback that it gathered."""
_BOLD = ("**", "__", "`")
"""Around a line that somebody stressed when they pasted it."""
_GROUP = pattern(r"^\s*[|+][-| ]?\s?")
_CARETS = pattern(r"[\^~]+")
_SHREDDED = pattern(r"\s*(?P<name>(?:\w+\.)*[A-Z]\w*(?:Error|Exception))\s*:\s+(?P<message>\S.*)")
LEAST_OF_NAME = 5
"""So many characters of an exception's name identify it."""
_BUILTIN = tuple(
    name for name, each in vars(builtins).items() if isinstance(each, type) and issubclass(each, Exception)
)
MOST_CODE = 200
"""Characters of a source line that are kept."""
_LAUNCHERS = pattern(
    r"/torch/distributed/(run|launch)\.py$|/torch/distributed/launcher/|/bin/(torchrun|accelerate|deepspeed)$"
    r"|/accelerate/commands/|/deepspeed/launcher/|/horovod/run(ner)?/|/bin/horovodrun$"
)
_STARTERS = pattern(r"/runpy\.py$|^<frozen runpy>$")


def traceback_of(context: LineContext, number: int) -> Traceback | None:
    """The traceback that begins at this line, without an exception where its end cannot be found; None without frames."""
    found = _found(context, number)
    return replace(found, is_chained=True) if found is not None and _is_chained(context) else found


def _is_chained(context: LineContext) -> bool:
    """Whether Python says above its head that it was raised over another one, or a DataLoader that it is the original one."""
    head = line_of(context)
    above = map(parsed_line, context.lines_before(CHAIN_WORDS_LINES))
    own = (each.text for each in above if is_same_stream(head, each) and each.text.strip())
    return "Original Traceback" in head.text or _CHAINED.search(next(own, "")) is not None


def _found(context: LineContext, number: int) -> Traceback | None:
    escaped = _ESCAPED.search(context.line)
    if escaped is not None:
        return _in_one_line(context, context.whole_line()[escaped.start() :], number)
    is_pasted = _PASTED.search(context.line) is not None
    if is_pasted and (pasted := _pasted(context, number)) is not None:
        return pasted
    head = line_of(context)
    before = next((parsed_line(raw) for raw in context.lines_before(1)), None)
    if _is_ignored(context, head):
        return None
    if "─" in head.text:
        return _boxed(context, head, number)
    ranked = _RANKED.search(head.text)
    who = replace(head.who, local_rank=_index_of_spawned(context, head))
    if who == Who() and before is not None and _ANNOUNCED.search(before.text):
        who = before.who  # a logger put its prefix before its own line alone
    who = replace(who, rank=int(ranked[1])) if ranked else who
    has_joined = head.who.rank is not None and b"[rank" in context.line
    found = _filled(
        Traceback(0, number, "", who=who, time=head.time, has_joined=has_joined, begin=number), _texts(context, head)
    )
    return None if found is not None and found.frames and found.frames[0].function == _AT_EXIT else found


def _is_ignored(context: LineContext, head: PrefixedLine) -> bool:
    """Whether Python says above its head that what was raised is ignored; several processes may have said so at once."""
    heads = 1  # of tracebacks that no line above has announced
    for raw in context.lines_before(IGNORED_LINES):
        each = parsed_line(raw)
        if not is_same_stream(head, each):
            continue
        heads += (HEAD in each.text) - (IGNORED in each.text)
        if heads == 0:
            return True
        if heads == 1 and IGNORED not in each.text and not FRAME.match(each.text) and each.text[:4].strip():
            return False
    return False


def _filled(found: Traceback, texts: Iterator[tuple[int, str]]) -> Traceback | None:
    """The traceback with its frames and its exception, from the lines after its head."""
    body = _TracebackBody()
    for offset, text in texts:
        ended = body.take(offset, text)
        if body.is_lost:
            return None
        if ended is not None:
            message = message_of(ended, (text for _, text in texts))
            at, frames = found.number + offset, tuple(body.frames)
            return replace(found, number=at, exception=ended["name"], message=message, frames=frames)
    return body.without_end(found)


class _TracebackBody:
    """The frames of one traceback, while its lines and those of other processes are read."""

    def __init__(self) -> None:
        self.frames: list[TracebackFrame] = []
        self.is_lost = False
        """Its end cannot be found, or it is a launcher's that breaks off."""
        self._indent = ""  # of the whole traceback: torchrun's summary indents what its worker recorded
        self._raising: re.Match[str] | None = None
        self._begun = ""  # the exception whose name the text cuts in its last line
        self._last = 0  # the distance of its last frame
        self._foreign = 0  # lines since then
        self._heads = 0  # other heads within this traceback
        self._ended = 0  # the distance of the last exception of theirs

    def take(self, offset: int, text: str) -> re.Match[str] | None:
        """Read the next line, so far from the head; the exception of this traceback where the line is it."""
        if self._ended and offset - self._ended > NEXT_END_LINES:
            self.is_lost = True
            return None
        if self._has_frame(offset, text):
            return None
        text = _unstressed(text.removeprefix(self._indent))
        if text[:1] not in (" ", "\t", ""):
            return self._unindented(offset, text)
        self._raising = self._raising or (_RAISING.match(text) if self.frames else None)
        self._keep_code(text)
        return None

    def _keep_code(self, text: str) -> None:
        """Keep the source line that Python prints below a frame."""
        if self.frames and not self.frames[-1].code and text.strip(" \t^~"):
            self.frames[-1] = replace(self.frames[-1], code=text.strip()[:MOST_CODE])

    def _has_frame(self, offset: int, text: str) -> bool:
        frame = FRAME.match(text)
        if frame is not None and len(self.frames) < MOST_FRAMES:
            self._indent = self._indent if self.frames else " " * (len(text) - len(text.lstrip(" ")) - 2)
            self.frames.append(TracebackFrame(frame["file"], int(frame["line"]), (frame["function"] or "").strip()))
            self._raising = None
        elif 'File "' in text and (found := list(_FRAME_WITHIN.finditer(text))):
            self.frames += [TracebackFrame(each["file"], int(each["line"]), each["function"] or "") for each in found]
        else:
            return False
        self._foreign, self._last = 0, offset
        return True

    def _unindented(self, offset: int, text: str) -> re.Match[str] | None:
        """A line at the margin: this traceback's exception, that of another one, or anything else."""
        ended = EXCEPTION.match(text) or _unshredded(text)
        is_named = ended is not None and ended["name"].endswith(_NAMES)
        is_end = ended is not None and bool(self.frames or is_named) and _is_exception(ended["name"], text)
        if ended is not None and is_end and not self._heads and (is_named or not self._ended):
            self.is_lost = _is_cut(ended["name"], text) and self._is_launchers
            return ended
        if is_end and self._heads:
            self._heads, self._ended = self._heads - 1, offset
        self._heads += HEAD in text
        self._foreign += 1
        self._begun = _known_by_its_beginning(text) if self.frames and self._foreign == 1 else ""
        self.is_lost = self._foreign > OTHERS_LINES
        return None

    def without_end(self, found: Traceback) -> Traceback | None:
        """The traceback where the text holds no exception of it; None where it says nothing of what a worker raised."""
        at, frames = found.number + self._last, tuple(self.frames)
        if self._begun and not self._heads and not self._is_launchers:
            return replace(found, number=at, exception=self._begun, frames=frames)
        if self._raising is not None and not self._heads:
            return replace(found, number=at, exception=self._raising["name"], frames=frames)
        if self._is_launchers or all(_STARTERS.search(frame.file.replace("\\", "/")) for frame in frames):
            return None
        return replace(found, number=at, frames=frames)

    @property
    def _is_launchers(self) -> bool:
        return any(_LAUNCHERS.search(frame.file.replace("\\", "/")) for frame in self.frames)


def _unstressed(text: str) -> str:
    """The text without the marks of Markdown around its end: all of it, or from the first such mark before a letter."""
    stressed = text.rstrip()
    for mark in _BOLD:
        if stressed.endswith(mark):
            body = stressed.removesuffix(mark)
            begin = next(
                (at for at in _places(body, mark) if body[at + len(mark) : at + len(mark) + 1].isalpha()), None
            )
            return text if begin is None else body[:begin] + body[begin + len(mark) :]
    return text


def _places(text: str, mark: str) -> Iterator[int]:
    at = text.find(mark)
    while at >= 0:
        yield at
        at = text.find(mark, at + 1)


def _unshredded(text: str) -> re.Match[str] | None:
    """The exception in a line between whose words other processes wrote the carets of their tracebacks."""
    found = _SHREDDED.match(_CARETS.sub("", text))
    return EXCEPTION.match(f"{found['name']}: {' '.join(found['message'].split())}") if found is not None else None


def _known_by_its_beginning(text: str) -> str:
    """The exception of Python of whose name a line holds the beginning alone; "" if there is none or several."""
    words = text.strip()
    known = [name for name in _BUILTIN if len(words) >= LEAST_OF_NAME and name.startswith(words)]
    return known[0] if len(known) == 1 else ""


def _is_cut(name: str, text: str) -> bool:
    """Whether the text ends in the middle of the exception's name."""
    return ":" not in text and not name.endswith(_NAMES)


def message_of(ended: re.Match[str], behind: Iterator[str]) -> str:
    """What the exception says; where its text begins on the next line, the first two lines of it, and one after a colon."""
    first = (ended["message"] or "").strip()
    if ":" not in ended[0] or (first and not first.endswith(":")):
        return (ended["message"] or "")[:1000]
    said = [first] if first else []
    for text in itertools.islice(behind, CONTINUED_LINES):
        if (not text.strip() and said) or HEAD in text or FRAME.match(text) or len(said) == 2:
            break
        said += [text.strip()] if text.strip() else []
    return " ".join(said)[:1000]


def _in_one_line(context: LineContext, kept: bytes, number: int) -> Traceback | None:
    """A traceback that a logger of JSON, or a message, keeps in one line with its line ends escaped."""
    string = _STRING.match(kept)
    if b"File \\" in kept and string is not None:
        kept = re.sub(rb'(?<!\\)\\+"', b'"', string[0])
    found = traceback_of(LineContext(re.sub(rb"(?<!\\)\\+n", b"\n", kept), 0), number)
    ranked = _RANK_KEY.search(context.line)
    who = line_of(context).who
    who = replace(who, rank=int(ranked[1])) if ranked and who.rank is None else who
    return None if found is None else replace(found, number=number, who=who)


def _pasted(context: LineContext, number: int) -> Traceback | None:
    """A traceback whose lines were pasted together into one."""
    own = line_of(context)
    told = _RANK_TAG.search(own.text)
    who = replace(own.who, rank=int(told[1])) if told and own.who.rank is None else own.who
    text = _RANK_TAG.sub("", context.whole_line()[:MOST_PASTED].decode("utf-8", "replace")).partition(HEAD)[2]
    found = list(_FRAME_WITHIN.finditer(text))
    ended = _EXCEPTION_WITHIN.search(text, found[-1].end()) if found else None
    if ended is None:
        return None
    frames = tuple(
        TracebackFrame(each["file"], int(each["line"]), each["function"] or "") for each in found[:MOST_FRAMES]
    )
    message = ended["message"].strip()[:1000]
    return Traceback(0, number, ended["name"], message, frames, who, own.time, told is not None, begin=number)


def _texts(context: LineContext, head: PrefixedLine) -> Iterator[tuple[int, str]]:
    """The lines after the head that its process may have written, each with its distance from it; wrapped frames in one."""
    lead = _lead(context, head)
    begun = ""
    for offset, raw in enumerate(context.lines_after(TRACEBACK_LINES), 1):
        each = parsed_line(raw)
        if offset == 1 and each.stream == Who() and FRAME.match(each.text):
            head = head._replace(stream=each.stream)  # some loggers put their prefix before the head alone
        if lead is not None:
            led = lead.match(each.text)
            each = each._replace(text=each.text[led.end() :] if led else " ")
        if not is_same_stream(head, each):
            continue
        text = _GROUP.sub("", each.text) if head.text.lstrip()[:1] in "+|" else each.text
        text = begun + text if begun and FRAME.match(begun + text) else text
        begun = text.rstrip("\n") if _WRAPPED.match(text) and not FRAME.match(text) else ""
        yield offset, text


def _lead(context: LineContext, head: PrefixedLine) -> re.Pattern[str] | None:
    """What a logger of an unknown form puts before every line of the traceback; None where only its head has something.

    Where numbers in it count lines or time, they may differ.
    """
    words = head.text.partition(HEAD)[0]
    if not words.strip():
        return None
    exact = re.escape(words)
    following = [parsed_line(raw).text for raw in context.lines_after(LEAD_LINES)]
    for known in (exact, re.sub(r"\d+", r"\\d+", exact)):
        if any(re.match(known + r'\s+File "', text) for text in following):
            return re.compile(known)
    return None


def _index_of_spawned(context: LineContext, head: PrefixedLine) -> int | None:
    """The local rank: mp.spawn numbers its processes, and prints the number above the traceback of one."""
    if head.who.local_rank is not None or head.who.rank is not None:
        return head.who.local_rank
    told = next((found for raw in context.lines_before(SPAWN_INDEX_LINES) if (found := _SPAWNED.search(raw))), None)
    return int(told[1]) if told else None


def syntax_error_of(context: LineContext, number: int) -> Traceback | None:
    """A script that Python cannot read: `File "train.py", line 12`, the line, a caret, and the exception, without a head."""
    own = line_of(context)
    ended = EXCEPTION.match(own.text)
    if ended is None:
        return None
    for raw in context.lines_before(SYNTAX_ERROR_LINES):
        each = parsed_line(raw)
        frame = FRAME.match(each.text)
        if frame is not None and is_same_stream(own, each):
            place = TracebackFrame(frame["file"], int(frame["line"]))
            return Traceback(
                0, number, ended["name"], ended["message"] or "", (place,), own.who, own.time, begin=number
            )
    return None


def _boxed(context: LineContext, head: PrefixedLine, number: int) -> Traceback | None:
    """A traceback in the frame that rich draws: `/job/train.py:71 in main`, and the exception below the frame."""
    frames: list[TracebackFrame] = []
    is_closed = False
    for offset, raw in enumerate(context.lines_after(TRACEBACK_LINES), 1):
        each = parsed_line(raw)
        if not is_same_stream(head, each) or not each.text.strip():
            continue
        frame = _BOXED.match(each.text)
        if frame is not None and len(frames) < MOST_FRAMES:
            frames.append(TracebackFrame(frame["file"], int(frame["line"]), frame["function"]))
        elif is_closed:
            ended = EXCEPTION.match(each.text.rstrip())
            if ended is None:
                return None
            message = (ended["message"] or "")[:1000]
            return Traceback(
                0, number + offset, ended["name"], message, tuple(frames), head.who, head.time, begin=number
            )
        is_closed = is_closed or each.text.startswith("╰")
    return None


def _is_exception(name: str, text: str) -> bool:
    return name.endswith(_NAMES) or "." in name or (name[0].isupper() and ":" in text[: len(name) + 1])
