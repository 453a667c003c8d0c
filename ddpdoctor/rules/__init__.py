"""Rules: pure functions from facts to findings, one module a cause, found by their place.

A rule is a function with the `@rule` decorator. Its parameters name the sections of the facts that it needs; the engine
passes them and skips the rule, with the reason, when one is missing. A parameter with the default None is passed when
it is there. Its docstring is the manual. See CONTRIBUTING.md, "Adding a cause".
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ddpdoctor.facts.gaps import CannotLook
from ddpdoctor.findings import Finding, Severity

__all__ = [
    "AREAS",
    "Rule",
    "also_on_lines",
    "area_of",
    "in_hangs",
    "in_logs",
    "load",
    "of_hangs",
    "of_logs",
    "on_lines",
    "rule",
]

AREAS = {
    "ENV": "environ",
    "LAUNCH": "launch",
    "HOST": "host",
    "NET": "net",
    "GPU": "gpu",
    "TOPO": "topo",
    "VERSION": "versions",
    "SCRIPT": "script",
    "PROBE": "probe",
    "LOG": "log",
}
"""The prefix of the codes of an area, and its word: the name of the folder, the facts module and the JSON key."""

Check = Callable[..., Iterable[Finding] | None]

_found: dict[str, Rule] = {}
_on_lines: list[tuple[str, Check]] = []
_in_logs: dict[str, Check] = {}
_in_hangs: dict[str, list[Check]] = {}


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause of the catalogue. `needs` and `wants` are names of sections; `kind` is the catalogue's word."""

    code: str
    name: str
    severity: Severity
    check: Check
    doc: str
    module: str
    needs: tuple[str, ...]
    wants: tuple[str, ...] = ()
    kind: str = "cause"
    signatures: tuple[str, ...] = ()

    @property
    def is_of_logs(self) -> bool:
        """Whether only logs show this cause: its function takes the log, or takes nothing and is only a manual."""
        return "log" in self.needs or not (self.needs or self.wants)

    @property
    def title(self) -> str:
        """The first sentence of the manual: true of the sick job."""
        return " ".join(self.doc.split("\n\n", 1)[0].split())

    def section(self, heading: str) -> str:
        """The text under `## heading` in the manual, "" without one."""
        _, _, rest = self.doc.partition(f"## {heading}\n")
        return rest.partition("\n## ")[0].strip()

    @property
    def why(self) -> str:
        return " ".join(self.section("Why it matters").split())

    @property
    def fix(self) -> str:
        return " ".join(self.section("Fix").split("\n\n", 1)[0].split())


def rule(
    code: str,
    name: str,
    severity: Severity,
    *,
    kind: str = "cause",
    signatures: tuple[str, ...] = (),
) -> Callable[[Check], Check]:
    """Register the decorated function as the rule of one cause. A cause that is only seen in logs, by its signatures, has
    a function without parameters and without a body: its manual.

    Args:
        code: the catalogue's code, such as ENV021; final.
        name: the catalogue's name, the pattern found, in kebab case; final.
        severity: the worst case; a finding may be softer.
        kind: `cause`, `umbrella` (several causes, used when nothing more precise was seen), `consequence` or `noise`.
        signatures: regular expressions over one log line that show this cause.

    Raises:
        ValueError: the code is taken, or its prefix is unknown.
    """

    def register(check: Check) -> Check:
        if code in _found:
            raise ValueError(f"{code} is defined twice: {_found[code].module} and {check.__module__}")
        area_of(code)
        arguments = check.__code__.co_varnames[: check.__code__.co_argcount]
        optional = len(check.__defaults__ or ())
        split = len(arguments) - optional
        _found[code] = Rule(
            code=code,
            name=name,
            severity=severity,
            check=check,
            doc=_dedent(check.__doc__ or ""),
            module=check.__module__,
            needs=arguments[:split],
            wants=arguments[split:],
            kind=kind,
            signatures=signatures,
        )
        return check

    return register


def on_lines(of: Check) -> Callable[[Check], Check]:
    """Register the decorated function as a second look at the cause of a rule: at launch lines and files.

    Args:
        of: the rule's function.
    """
    code = next(code for code, each in _found.items() if each.check is of)

    def register(check: Check) -> Check:
        _on_lines.append((code, check))
        return check

    return register


def also_on_lines() -> tuple[Rule, ...]:
    """The causes of machines that lines and files show as well, judged from the launch alone."""
    for module in _modules("ddpdoctor.rules.lines"):
        importlib.import_module(module)
    return tuple(replace(_found[code], check=check, needs=("launch",), wants=()) for code, check in _on_lines)


def in_logs(code: str) -> Callable[[Check], Check]:
    """Register the decorated function, of the log alone, as the look at a cause in logs, in place of its signatures."""

    def register(check: Check) -> Check:
        _in_logs[code] = check
        return check

    return register


def of_logs(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Those of `rules` that logs can show, each judged from the log alone. Imports `ddpdoctor.rules.log`."""
    load(("log",))
    from ddpdoctor.rules.log.signatures import by_signatures

    looks = {**by_signatures(_found.values()), **_in_logs}
    looks |= {each.code: each.check for each in _found.values() if "log" in each.needs}
    return tuple(
        replace(
            r, check=looks[r.code] if r.code in OF_ALL_ATTEMPTS else _early(looks[r.code]), needs=("log",), wants=()
        )
        for r in rules
        if r.code in looks
    )


OF_ALL_ATTEMPTS = ("LOG008",)
"""Causes that are about restarts; all others are looked for in the first attempt, where the log shows how it failed."""


def _early(look: Check) -> Check:
    from ddpdoctor.logs.history import history_of

    return lambda log: look(history_of(log).first_attempt)


def in_hangs(code: str) -> Callable[[Check], Check]:
    """Register the decorated function, of `hang` alone, as one look at a cause in dumps, stacks or running ranks."""

    def register(check: Check) -> Check:
        _in_hangs.setdefault(code, []).append(check)
        return check

    return register


def of_hangs(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Those of `rules` that dumps and stuck ranks can show, each judged from `hang` alone. Imports `ddpdoctor.rules.hang`."""
    for module in _modules("ddpdoctor.rules.hang"):
        importlib.import_module(module)
    return tuple(
        replace(r, check=functools.partial(_each_look, _in_hangs[r.code]), needs=("hang",), wants=())
        for r in rules
        if r.code in _in_hangs
    )


def _each_look(looks: Sequence[Check], hang: object) -> Iterable[Finding]:
    """What all looks at one cause found; skipped when none of them has anything to look at."""
    answers: list[Finding] = []
    refusals: list[CannotLook] = []
    for look in looks:
        try:
            answers += look(hang) or ()
        except CannotLook as skip:
            refusals.append(skip)
    if len(refusals) == len(looks):
        raise refusals[0]
    return answers


def area_of(code: str) -> str:
    """The area's word of a code: `environ` for ENV021.

    Raises:
        ValueError: no area has that prefix.
    """
    prefix = code.rstrip("0123456789")
    if prefix not in AREAS or len(code) - len(prefix) != 3:
        raise ValueError(f"{code!r} is no code: expected one of {', '.join(AREAS)} and three digits")
    return AREAS[prefix]


def load(areas: Iterable[str] = tuple(AREAS.values())) -> tuple[Rule, ...]:
    """The rules of these areas, by code. Imports only their folders."""
    wanted = set(areas)
    for area in wanted:
        for module in _modules(f"ddpdoctor.rules.{area}"):
            importlib.import_module(module)
    return tuple(_found[code] for code in sorted(_found) if area_of(code) in wanted)


def _modules(package: str) -> Iterator[str]:
    try:
        paths = importlib.import_module(package).__path__
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        return  # an area that has no rules yet
    for info in pkgutil.iter_modules(paths, f"{package}."):
        if info.ispkg:
            yield from _modules(info.name)
        else:
            yield info.name


def _dedent(doc: str) -> str:
    first, _, rest = doc.partition("\n")
    lines = rest.split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join([first.strip(), *(line[margin:].rstrip() for line in lines)]).strip() + "\n"
