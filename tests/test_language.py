"""No text contains a phrase that docs/language.md rules out: manuals, messages, pages, docstrings and comments."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from ddpdoctor.rules import AREAS, Rule, load

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ddpdoctor"


class Refused(NamedTuple):
    """One phrase: its pattern, an example of it, and what to write instead."""

    pattern: str
    example: str
    instead: str


REFUSED = (
    Refused(r"\bnothing (says|tells|calls|divides)\b", "nothing says where", "X is not set; no Y is given"),
    Refused(r"\bfor (want|lack) of\b", "killed for want of memory", "OOM-killed; because there is no X"),
    Refused(r"\bleads? (to )?nowhere\b", "a name that leads nowhere", "does not resolve; does not exist"),
    Refused(r"\bstands? (still|in for|alone)\b", "the job stands still", "hangs; replaces; is alone"),
    Refused(r"\blies? elsewhere\b", "the model lies elsewhere", "is on another GPU"),
    Refused(r"\banew\b", "read it anew", "again"),
    Refused(r"\bin turns\b", "measured in turns", "alternately"),
    Refused(r"\bwithout a word\b", "ended without a word", "without a message"),
    Refused(r"\bmend(s|ed|ing)?\b", "Mend the line.", "fix, correct"),
    Refused(r"\btorn\b", "the files are torn", "incomplete, corrupted"),
    Refused(r"\bfor ever\b", "waits for ever", "forever"),
    Refused(r"; expected\b", "3 ranks; expected 2", "3 ranks, expected 2; or say what to give"),
    Refused(r"\bwish to\b", "the wish to stop", "want to; a stop flag"),
    Refused(
        r"(?<!there )\b(is|are) no (?!longer)(address|integer|port|level|such|fault|part|job|rank|list|measurement)\b",
        "0 is no port",
        "0 is not a port",
    ),
    Refused(r"\btakes? (itself|themselves) for\b", "takes itself for rank 0", "treats itself as"),
    Refused(r"\bknocks?\b", "knocks at the master", "tries to connect to"),
    Refused(r"\bin vain\b", "waits in vain", "does not succeed, without success"),
    Refused(r"\banswers? (as no|no more)\b", "answers no more", "no longer answers; is not a"),
    Refused(r"(?-i:\bUndetermined\b)", "Undetermined which", "unknown: X would decide"),
    Refused(r"\bhouse on one page\b", "the house on one page", "architecture"),
    Refused(r"\b(crew|vigil)\b", "the crew waits", "nodes, ranks; liveness"),
    Refused(r"\b(goes|went) on\b", "the others went on", "continues, continued"),
    Refused(
        r"\b(options|words?|operator|script|wrapper) behind\b|\bbehind (the (options|script)|an operator)\b",
        "the words behind the options",
        "after",
    ),
)

REFUSED_IN_TEXTS = (
    Refused(r"\b(nobody|somebody)\b", "nobody listens", "no process, no rank, no one; another process"),
    Refused(r"(?<!each )(?<!both )\bof which\b", "a job of which two ranks died", "whose, and … of them"),
    Refused(r"\b(tells?|told)\b", "NCCL is told the port", "reports, gets, is given, says"),
    Refused(r"(?<!--no-)\b(meet|meets|met|meeting)\b", "where the nodes meet", "join, rendezvous"),
    Refused(r"\bany more\b", "not there any more", "no longer"),
    Refused(r"\belsewhere\b", "the port is elsewhere", "on another node, in another file"),
    Refused(r"\b(looked at|could not look)\b", "could not look", "examined; skipped"),
    Refused(r"\b(one|a) (task|rank|process) a (node|rank|gpu)\b", "one task a node", "per node"),
    Refused(
        r"neighbours?\b|behaviour|(?<!_)synchronis|initialis|\banalys(e|ed)\b|\bspelt\b|centre\b|catalogue|\blabelled\b"
        r"|(?<!not-)recognis|\banalyses an?\b",
        "initialised",
        "American spelling: neighbor, behavior, synchronize, initialize, analyze, center, catalog",
    ),
    Refused(r"\bblanks?\b(?! line)", "no blanks in lists", "space, spaces"),
    Refused(r"\b(guilty|culprit|innocent)\b", "and look guilty", "look like the cause; the rank that failed first"),
    Refused(r"\bimagined\b", "2 imagined nodes", "simulated"),
    Refused(r"\b(came|comes) (to (its|their) end|out of)\b", "it came to its end", "finished, ended"),
    Refused(r"\b(was|were) not asked\b", "RAS was not asked", "was not queried; did not report"),
    Refused(
        r"\b(gets?|gives?|has|have|with|to) (another|other) (seed|split|metric|factor|weights|settings|keys)\b",
        "each rank has another seed",
        "a different seed",
    ),
)
"""Only in what users read: in code, these are also names and plain words."""

NOT_YET: tuple[str, ...] = ()
"""Folders whose texts are being rewritten; each is removed from here when its texts are clean."""

EXEMPT = {
    ("docs/language.md", ""): "the rules quote what they refuse",
    ("ddpdoctor/app/", "; expected"): "usage errors: the value, then what is allowed",
    ("ddpdoctor/cli/", "; expected"): "usage errors: the value, then what is allowed",
}
"""The beginning of a path and a part of the pattern, and the reason why the phrase is allowed there."""

MESSAGE_CALLS = {
    "Finding",
    "CannotLook",
    "Gap",
    "UsageError",
    "not_here",
    "notice",
    "phase",
    "unanswered",
    "needs_root",
}


class Text(NamedTuple):
    """A text and its place."""

    place: str
    line: int
    words: str


@cache
def manuals() -> tuple[Text, ...]:
    """The manual pages of all rules, each with the file of the rule."""
    found = []
    for rule in load(tuple(AREAS.values())):
        path = rule.module.replace(".", "/") + ".py"
        found.append(Text(path, 1, f"{rule.code} {rule.doc}"))
    return tuple(found)


@cache
def pages() -> tuple[Text, ...]:
    """README.md, CONTRIBUTING.md and docs/, without code blocks and generated pages."""
    files = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/guides").glob("*.md"),
    ]
    found = []
    for file in sorted(files):
        is_code = False
        for number, line in enumerate(file.read_text().splitlines(), 1):
            is_code ^= line.startswith("```")
            if not is_code:
                found.append(Text(str(file.relative_to(ROOT)), number, line))
    return tuple(found)


WRITTEN_FOR_USERS = (
    "ddpdoctor/rules/",
    "ddpdoctor/dumps/",
    "ddpdoctor/rehearsal/",
    "ddpdoctor/sequences/",
    "ddpdoctor/render/",
    "ddpdoctor/cli/",
    "ddpdoctor/app/",
    "ddpdoctor/collectors/",
    "ddpdoctor/facts/",
)
"""Packages whose sentences reach a screen through helpers: labels, rows, places, fixes, and differences."""

CODE_OR_PATTERN = re.compile(r"\\[a-zA-Z.(\[]|\(\?|[\]*]\+|\.\*|\{\d|^[A-Z_]+$")


def _is_sentence(words: str) -> bool:
    """At least two words, and neither a regular expression nor code."""
    return len(words.split()) >= 2 and CODE_OR_PATTERN.search(words) is None


def _strings(node: ast.AST) -> Iterator[str]:
    """The literal text in an expression; what a replacement field of an f-string contains is code."""
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _sentences(file: Path) -> Iterator[Text]:
    """The literals of a file that look like sentences, without docstrings and patterns."""
    tree = ast.parse(file.read_text())
    docstrings = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for each in ast.walk(tree):
        if id(each) in docstrings or not isinstance(each, ast.Constant) or not isinstance(each.value, str):
            continue
        if _is_sentence(each.value):
            yield Text(str(file.relative_to(ROOT)), each.lineno, each.value)


@cache
def messages() -> tuple[Text, ...]:
    """The literals of messages in ddpdoctor/: arguments of findings, skip reasons, usage errors, progress, and help."""
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text())):
            if not isinstance(call, ast.Call):
                continue
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            shown = [*call.args, *(k.value for k in call.keywords)] if name in MESSAGE_CALLS else []
            shown += [k.value for k in call.keywords if k.arg == "help"]
            place = str(file.relative_to(ROOT))
            found += [Text(place, part.lineno, words) for part in shown for words in _strings(part)]
        if str(file.relative_to(ROOT)).startswith(WRITTEN_FOR_USERS):
            found += _sentences(file)
    return tuple(found)


@cache
def comments() -> tuple[Text, ...]:
    """The docstrings and comments of ddpdoctor/."""
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        source, place = file.read_text(), str(file.relative_to(ROOT))
        for statement in ast.walk(ast.parse(source)):
            match statement:
                case ast.Expr(value=ast.Constant(value=str(words))):
                    found.append(Text(place, statement.lineno, words))
        found += [
            Text(place, token.start[0], token.string)
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        ]
    return tuple(found)


def _is_exempt(place: str, pattern: str) -> bool:
    return place.startswith(NOT_YET) or any(place.startswith(path) and part in pattern for path, part in EXEMPT)


def _hits(refused: Refused, texts: tuple[Text, ...]) -> list[str]:
    expression = re.compile(refused.pattern, re.IGNORECASE)
    return [
        f"{text.place}:{text.line}: {found[0]!r} in …{text.words[max(0, found.start() - 40) : found.end() + 30]}…"
        for text in texts
        for found in expression.finditer(text.words)
        if not _is_exempt(text.place, refused.pattern)
    ]


@pytest.mark.parametrize("refused", [*REFUSED, *REFUSED_IN_TEXTS], ids=lambda each: each.example)
def test_the_pattern_finds_its_example(refused: Refused) -> None:
    assert re.search(refused.pattern, refused.example, re.IGNORECASE)
    assert not re.search(refused.pattern, refused.instead, re.IGNORECASE)


@pytest.mark.parametrize("refused", [*REFUSED, *REFUSED_IN_TEXTS], ids=lambda each: each.example)
def test_no_text_for_users_has_the_phrase(refused: Refused) -> None:
    hits = _hits(refused, (*manuals(), *messages(), *pages()))
    assert not hits, f"write instead: {refused.instead}\n" + "\n".join(hits)


@pytest.mark.parametrize("refused", REFUSED, ids=lambda each: each.example)
def test_no_docstring_or_comment_has_the_phrase(refused: Refused) -> None:
    hits = _hits(refused, comments())
    assert not hits, f"write instead: {refused.instead}\n" + "\n".join(hits)


@pytest.mark.parametrize("rule", load(tuple(AREAS.values())), ids=lambda each: each.code)
def test_a_manual_is_short_and_shows_what_a_user_sees(rule: Rule) -> None:
    headline = rule.doc.partition("\n\n")[0]
    assert len(headline.split()) <= 16, f"at most 16 words: {headline}"
    reason = re.sub(r"``.*?``|`[^`]*`", "X", rule.why, flags=re.DOTALL)
    assert len(re.split(r"(?<=[.?!])\s+(?=[A-Z0-9])", reason)) <= 2, f"at most two sentences: {rule.why}"
    assert rule.section("Example").strip(), "an example: what the user sees, and the command or code before and after"


def test_every_collection_has_texts() -> None:
    assert len(manuals()) > 300
    assert min(len(messages()), len(comments()), len(pages())) > 500


def test_every_exemption_is_needed() -> None:
    texts = (*manuals(), *messages(), *pages(), *comments())
    for path, part in EXEMPT:
        patterns = [each.pattern for each in (*REFUSED, *REFUSED_IN_TEXTS) if part in each.pattern]
        there = [text.words for text in texts if text.place.startswith(path)]
        assert any(re.search(pattern, words, re.IGNORECASE) for pattern in patterns for words in there), (path, part)
    assert all(any(text.place.startswith(folder) for text in texts) for folder in NOT_YET)
