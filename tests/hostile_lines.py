"""Every regular expression of the product that sees text of others, and lines that make backtracking expensive."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import ddpdoctor
from ddpdoctor.late_pattern import LatePattern

if sys.version_info >= (3, 11):
    import re._constants as constants
    import re._parser as parser
else:
    import sre_constants as constants
    import sre_parse as parser

__all__ = ["Expression", "expressions", "hostile_texts"]

ROOT = Path(ddpdoctor.__file__).parent
PACKAGES = (
    *("logs", "rules/log", "dumps", "tool_output", "launch", "privacy", "scripts", "facts", "network", "sequences"),
    *("collectors", "rules", "multinode", "probe", "app", "render"),
)
"""Packages whose expressions see logs, dumps, job files, scripts, facts, or what another node sent."""
STARTED = ("probe", "rehearsal", "cli")
"""Packages with modules that act when they are imported."""
METHODS = ("search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer")
ANCHORED = {"match", "fullmatch"}
MOST_TEXTS = 14


@dataclass(frozen=True)
class Expression:
    """One expression. `place` is the file and name where it is defined; `methods` are those that it is used with, if known."""

    place: str
    pattern: str | bytes
    flags: int
    methods: frozenset[str]

    @functools.cached_property
    def compiled(self) -> re.Pattern[Any]:
        """The expression, compiled."""
        return re.compile(self.pattern, self.flags)

    def use(self, text: Any) -> None:
        """Apply it as the product does: from the start only, to the first match, or to all of them."""
        for method in self.methods & ANCHORED:
            getattr(self.compiled, method)(text)
        if "search" in self.methods or not self.methods:
            self.compiled.search(text)
        if self.methods - ANCHORED - {"search"}:
            for _ in self.compiled.finditer(text):
                pass


@functools.cache
def expressions() -> list[Expression]:
    """All expressions below PACKAGES: compiled in modules, written in calls, and the signatures of rules."""
    found: dict[tuple[str | bytes, int], Expression] = {}
    for each in (*_compiled(), *_written(), *_signatures()):
        key = (each.pattern, each.flags & ~re.UNICODE)
        known = found.get(key)
        found[key] = each if known is None else _both(known, each)
    return sorted(found.values(), key=lambda each: (each.place, str(each.pattern)))


def _both(one: Expression, other: Expression) -> Expression:
    return Expression(one.place, one.pattern, one.flags, one.methods | other.methods)


def _signatures() -> Iterator[Expression]:
    from ddpdoctor.app.request import Request
    from ddpdoctor.app.rule_selection import rules_for
    from ddpdoctor.logs.context_patterns import CONTEXT_PATTERNS
    from ddpdoctor.rules import AREAS

    for rule in rules_for(Request(), tuple(AREAS.values())):
        for pattern in rule.signatures:
            yield Expression(f"signature:{rule.code}", pattern, 0, frozenset({"search"}))
    for name, pattern in CONTEXT_PATTERNS.items():
        yield Expression(f"signature:context {name}", pattern, 0, frozenset({"search"}))


def _files() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path


def _compiled() -> Iterator[Expression]:
    """Patterns that the modules hold, also in tables, classes and records."""
    uses = _uses()
    for name, path in dict(_files()).items():
        if path.name == "__main__.py" or name.split("/")[0] in STARTED:
            continue
        module = importlib.import_module(
            "ddpdoctor." + name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        )
        for attribute, value in vars(module).items():
            for pattern in _patterns_in(value, set(), module.__name__):
                is_named = isinstance(value, re.Pattern | LatePattern)
                methods = uses.get((name, attribute), frozenset()) if is_named else frozenset({"search"})
                yield Expression(f"{name}:{attribute}", pattern.pattern, pattern.flags, methods)


def _patterns_in(value: Any, seen: set[int], module: str) -> Iterator[re.Pattern[Any]]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, LatePattern):
        yield value.compiled
    elif isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict | types.MappingProxyType):
        for key, item in value.items():
            yield from _patterns_in(key, seen, module)
            yield from _patterns_in(item, seen, module)
    elif isinstance(value, tuple | list | set | frozenset):
        for item in value:
            yield from _patterns_in(item, seen, module)
    elif isinstance(value, type) and value.__module__ == module:
        for item in vars(value).values():
            yield from _patterns_in(item, seen, module)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from _patterns_in(getattr(value, each.name, None), seen, module)
    elif isinstance(value, functools.partial):
        yield from _patterns_in((value.func, value.args, value.keywords), seen, module)
    elif isinstance(value, types.MethodType | types.BuiltinMethodType):
        yield from _patterns_in(value.__self__, seen, module)
    elif isinstance(value, types.FunctionType) and value.__module__ == module:
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        yield from _patterns_in((cells, value.__defaults__, value.__kwdefaults__), seen, module)


def _written() -> Iterator[Expression]:
    """Calls such as `re.search(r"…", text)`, and those of `re.compile` in functions and in modules that are not imported."""
    for name, path in _files():
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "re." in text else ():
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re" and node.args):
                continue
            first = node.args[0]
            if isinstance(first, ast.Constant) and node.func.attr in (*METHODS, "compile"):
                flags = next((each.value for each in node.keywords if each.arg == "flags"), None)
                at = {"sub": 4, "subn": 4, "split": 3, "compile": 1}.get(node.func.attr, 2)
                flags = node.args[at] if flags is None and len(node.args) > at else flags
                value = eval(ast.unparse(flags), {"re": re}) if flags is not None else 0
                if node.func.attr != "compile":
                    yield Expression(f"{name}:{node.lineno}", first.value, int(value), frozenset({node.func.attr}))
                elif name.split("/")[0] in STARTED:
                    yield Expression(f"{name}:{node.lineno}", first.value, int(value), frozenset({"search"}))


_MAY_USE = re.compile(
    r"\b_?[A-Z][A-Z0-9_]*\b.{0,10}\.(?:search|f?u?l?l?match|subn?|split|find(?:all|iter))\(|re\.compile"
)


@functools.cache
def _uses() -> dict[tuple[str, str], frozenset[str]]:
    """By file and name of a constant: the methods that it is used with there, or where it is imported; "search" if handed on."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text("utf-8")
        if not _MAY_USE.search(text):
            continue
        tree = ast.parse(text)
        home = path.relative_to(ROOT).as_posix()
        homes = {
            alias.asname or alias.name: _file_of(node.module or "")
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        called = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in METHODS:
                found.setdefault((homes.get(node.value.id, home), node.value.id), set()).add(node.attr)
                called.add(node.value)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node not in called:
                found.setdefault((homes.get(node.id, home), node.id), set()).add("search")
    return {place: frozenset(methods) for place, methods in found.items()}


def _file_of(module: str) -> str:
    return module.removeprefix("ddpdoctor.").replace(".", "/") + ".py"


def hostile_texts(pattern: str | bytes, flags: int, size: int) -> list[Any]:
    """Texts of about `size` characters: the beginnings of a match, repeated; what repeats, repeated; almost matches."""
    text = pattern.decode("latin1") if isinstance(pattern, bytes) else pattern
    parsed = parser.parse(text, flags & ~re.UNICODE if isinstance(pattern, str) else flags & ~re.LOCALE)
    begins: list[tuple[str, str]] = []
    example = _example(parsed, "", begins)
    seeds: dict[str, None] = {}
    for prefix, body in begins:
        seeds.setdefault(prefix + body * 3)
        for filler in dict.fromkeys((body, *(_other(body)))):
            seeds.setdefault("\0" + prefix + "\1" + filler)
    seeds.setdefault(example[:-1] or "a")
    seeds.setdefault(example[:-1] + " ")
    if begins:
        seeds.setdefault((begins[0][0] or begins[0][1]) + " ")
    found = []
    for seed in list(seeds)[:: max(1, -(-len(seeds) // MOST_TEXTS))]:
        if seed.startswith("\0"):
            prefix, _, body = seed[1:].partition("\1")
            made = (prefix + (body or "a") * (size // len(body or "a")))[:size] + "\x00"
        else:
            made = (seed * (size // max(1, len(seed)) + 1))[:size] + "\x00"
        found.append(made.encode("latin1", "replace") if isinstance(pattern, bytes) else made)
    return found


def _other(body: str) -> tuple[str, ...]:
    return (body + " ",) if body.strip() else ("\t", body)


def _example(parsed: Any, before: str, begins: list[tuple[str, str]]) -> str:
    """A text that the expression matches, roughly; `begins` get what comes before each long repeat, and what it repeats."""
    made = ""
    for what, value in parsed:
        if what is constants.LITERAL:
            made += chr(value)
        elif what is constants.NOT_LITERAL:
            made += "a" if value != ord("a") else "b"
        elif what is constants.ANY:
            made += "a"
        elif what is constants.IN:
            made += _member(value)
        elif what is constants.SUBPATTERN:
            made += _example(value[3], before + made, begins)
        elif what is constants.BRANCH:
            made += _branches(value[1], before + made, begins)
        elif what in REPEATS:
            least, most, body = value
            inner = _example(body, before + made, begins)
            if most > 50:
                begins.append((before + made, inner))
            made += inner * min(max(least, 1), 60)
        elif what is constants.ASSERT and value[0] > 0:
            _example(value[1], before + made, begins)
    return made


def _branches(choices: Any, before: str, begins: list[tuple[str, str]]) -> str:
    """The first alternative; `begins` get those of all."""
    return [_example(each, before, begins) for each in choices][0]  # noqa: RUF015 (all are visited)


REPEATS = [constants.MAX_REPEAT, constants.MIN_REPEAT, getattr(constants, "POSSESSIVE_REPEAT", None)]
SAMPLES = "a1A _-./:=,'\"([{<\t%@x0Zzé"
CATEGORIES = {
    constants.CATEGORY_DIGIT: r"\d",
    constants.CATEGORY_NOT_DIGIT: r"\D",
    constants.CATEGORY_SPACE: r"\s",
    constants.CATEGORY_NOT_SPACE: r"\S",
    constants.CATEGORY_WORD: r"\w",
    constants.CATEGORY_NOT_WORD: r"\W",
}


def _member(items: Any) -> str:
    """A character of a class."""
    negated = items[0][0] is constants.NEGATE
    for letter in SAMPLES + "".join(chr(code) for code in range(33, 127)):
        if any(_holds(item, letter) for item in items) is not negated:
            return letter
    return next((chr(value) for what, value in items if what is constants.LITERAL), "a")


def _holds(item: Any, letter: str) -> bool:
    what, value = item
    if what is constants.LITERAL:
        return ord(letter) == value
    if what is constants.RANGE:
        return bool(value[0] <= ord(letter) <= value[1])
    return what is constants.CATEGORY and re.match(CATEGORIES[value], letter) is not None
