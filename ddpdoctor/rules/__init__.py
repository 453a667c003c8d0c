"""Causes: pure functions from facts to findings, one module per cause or family, named by its code.

A cause is a function with the `@cause` decorator. Its parameters name the sections of the facts that it needs; the engine
passes them and skips the rule, with the reason, when one is missing. A parameter with the default None is passed when
it is there. Its docstring is the manual. `@NAME.look` adds a look at launch lines, logs or stuck jobs, in the same file;
looks at logs and stuck jobs import what they need inside the function, so that a check of a machine does not pay for it.
See CONTRIBUTING.md, "Adding a cause".
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING

from ddpdoctor.findings import CausalStage, Finding, Severity, Speaker
from ddpdoctor.light_dataclass import dataclass

if TYPE_CHECKING:
    from ddpdoctor.facts.xids import XidKind

__all__ = ["AREAS", "Cause", "CauseScope", "Rule", "area_of", "cause", "cause_of", "load", "loaded"]

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

_causes: dict[str, Cause] = {}


class CauseScope(str, Enum):
    """What a cause is about, if that decides when it is judged."""

    PROCESS = "process"
    """The ranks of a running process: a launch line has none yet."""
    LINES_OF_NODES = "lines_of_nodes"
    """The launch lines of several nodes, compared with each other."""
    FACTS_OF_NODES = "facts_of_nodes"
    """The properties of several nodes, compared with each other: saved facts are enough."""
    SEPARATE_MACHINES = "separate_machines"
    """An address that means each machine itself: not a fault if all nodes turn out to be on one machine."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One look at one cause, ready to be run. `needs` and `wants` are names of sections; `kind` is the catalogue's word."""

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
    xids: XidKind | None = None
    candidates: tuple[str, ...] = ()
    scope: CauseScope | None = None
    stage: CausalStage = CausalStage.FAULT
    explains: tuple[str, ...] = ()
    yields_to: tuple[str, ...] = ()
    speaker: Speaker = Speaker.CULPRIT
    also_in: tuple[str, ...] = ()
    is_last_resort: bool = False
    repairs: tuple[str, ...] = ()

    @property
    def is_of_logs(self) -> bool:
        """Whether only logs show this cause: its function takes the log, or takes nothing and is only a manual."""
        return "log" in self.needs or not (self.needs or self.wants)

    @property
    def title(self) -> str:
        """The first sentence of the manual: true of the faulty job."""
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


class Cause:
    """One cause of the catalogue and every look at it: at a machine, at launch lines, at a log, at a stuck job.

    Made by `@cause` from the function that is its manual and its first look; `@NAME.look` adds another one, which is
    about whatever section it takes: `launch`, `log`, `hang` or `rehearsal`.
    """

    def __init__(self, rule: Rule, *, all_attempts: bool) -> None:
        self.rule = rule
        self.all_attempts = all_attempts
        self._looks: list[tuple[str, Check]] = []

    @property
    def code(self) -> str:
        """The catalogue's code, such as ENV021."""
        return self.rule.code

    def look(self, check: Check) -> Check:
        """Register the decorated function as another look at this cause; its parameter names the section.

        Raises:
            ValueError: no such section, or a second look at logs, of which only one would be used.
        """
        (section,) = check.__code__.co_varnames[: check.__code__.co_argcount]
        if section not in ("launch", "log", "hang", "submission", "rehearsal"):
            sections = "launch, log, hang, submission or rehearsal"
            raise ValueError(f"{self.rule.code}: a look takes {sections}, not {section!r}")
        if section == "log" and (self.looks_at("log") or "log" in self.rule.needs):
            raise ValueError(f"{self.rule.code}: a second look at logs, expected one")
        self._looks.append((section, check))
        return check

    def __call__(self, *sections: object) -> Iterable[Finding] | None:
        """What the first look finds."""
        return self.rule.check(*sections)

    def looks_at(self, section: str) -> list[Check]:
        """The further looks that take this section, in the order of their definition."""
        return [check for name, check in self._looks if name == section]


def cause(
    code: str,
    name: str,
    severity: Severity,
    *,
    kind: str = "cause",
    signatures: tuple[str, ...] = (),
    xids: XidKind | None = None,
    candidates: tuple[str, ...] = (),
    scope: CauseScope | None = None,
    stage: CausalStage = CausalStage.FAULT,
    explains: tuple[str, ...] = (),
    yields_to: tuple[str, ...] = (),
    speaker: Speaker = Speaker.CULPRIT,
    also_in: tuple[str, ...] = (),
    all_attempts: bool = False,
    is_last_resort: bool = False,
    repairs: tuple[str, ...] = (),
) -> Callable[[Check], Cause]:
    """Register the decorated function as the manual of one cause and the first look at it. A cause that is only seen in
    logs, by its signatures, has a function without parameters and without a body: its manual.

    Args:
        code: the catalogue's code, such as ENV021; final.
        name: the catalogue's name, the pattern found, in kebab case; final.
        severity: the worst case; a finding may be softer.
        kind: `cause`, `umbrella` (several causes, used if nothing more precise was found), `consequence` or `noise`.
        signatures: regular expressions over one log line that show this cause.
        xids: the kind of Xids that show this cause in the kernel's log.
        candidates: the codes between which an uncertain finding leaves the choice; of an umbrella, the codes that it covers.
        all_attempts: about restarts: searched for in all attempts of a log; others only in the first one, which shows how
            the job failed.
        scope: what it is about, if that decides when it is judged.
        stage: how far from the fault it appears: everything of an earlier stage explains it.
        explains: codes that follow from this cause on the same host, although their stages do not say so.
        yields_to: codes of more precise causes: a line that one of their signatures matches shows only these.
        speaker: who prints the lines that its signatures match.
        is_last_resort: judged after all others, and only where none of them found an error.
        repairs: the names of corrections of a job file that may remove it, the likeliest first: see
            `launch/evaluator/repairs.py`.
        also_in: commands that show this cause besides the one of its own area: ports, net, gpus, versions.

    Raises:
        ValueError: the code is taken, or its prefix is unknown.
    """

    def register(check: Check) -> Cause:
        if code in _causes:
            raise ValueError(f"{code} is defined twice: {_causes[code].rule.module} and {check.__module__}")
        area_of(code)
        arguments = check.__code__.co_varnames[: check.__code__.co_argcount]
        split = len(arguments) - len(check.__defaults__ or ())
        rule = Rule(
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
            xids=xids,
            candidates=candidates,
            scope=scope,
            stage=stage,
            explains=explains,
            yields_to=yields_to,
            speaker=speaker,
            also_in=also_in,
            is_last_resort=is_last_resort,
            repairs=repairs,
        )
        _causes[code] = Cause(rule, all_attempts=all_attempts)
        return _causes[code]

    return register


def cause_of(code: str) -> Cause:
    """The cause with this code; its module must have been loaded.

    Raises:
        KeyError: no loaded module defines it.
    """
    return _causes[code]


def loaded() -> tuple[Cause, ...]:
    """The causes whose modules were loaded, by code."""
    return tuple(each for _, each in sorted(_causes.items()))


def area_of(code: str) -> str:
    """The area's word of a code: `environ` for ENV021.

    Raises:
        ValueError: no area has that prefix.
    """
    prefix = code.rstrip("0123456789")
    if prefix not in AREAS or len(code) - len(prefix) != 3:
        raise ValueError(f"{code!r} is not a code: expected one of {', '.join(AREAS)} and three digits")
    return AREAS[prefix]


def load(areas: Iterable[str] = tuple(AREAS.values())) -> tuple[Rule, ...]:
    """The rules of these areas, by code. Imports only their folders."""
    wanted = set(areas)
    for area in wanted:
        for module in _modules(f"ddpdoctor.rules.{area}"):
            importlib.import_module(module)
    return tuple(each.rule for each in loaded() if area_of(each.rule.code) in wanted)


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
