"""The causes as they appear on launch lines, in logs, in the dumps and stacks of a stuck job, and in a rehearsal.

Each function returns rules that need one section only; the looks in the causes' files determine which causes these are.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ddpdoctor.facts.gaps import CannotLook
from ddpdoctor.findings import Finding
from ddpdoctor.rules import Rule, cause_of, loaded
from ddpdoctor.rules.line_modules import LINE_MODULES
from ddpdoctor.rules.log_modules import LOG_MODULES

__all__ = [
    "hang_rules",
    "line_rules",
    "log_rules",
    "log_rules_alone",
    "rehearsal_rules",
    "shows_in_logs",
    "submission_rules",
]

Look = Callable[..., Iterable[Finding] | None]


def line_rules() -> tuple[Rule, ...]:
    """The causes of machines that launch lines and files show as well, judged from the launch alone."""
    for module in LINE_MODULES:
        importlib.import_module(module)
    return tuple(
        replace(each.rule, check=look, needs=("launch",), wants=())
        for each in loaded()
        for look in each.looks_at("launch")
    )


def submission_rules(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Those of `rules` that job files show as a whole, each judged from the submission alone by its first look that finds
    something.
    """
    return tuple(
        replace(rule, check=functools.partial(_every_look, looks, is_one_enough=True), needs=("submission",), wants=())
        for rule in rules
        if (looks := _looks_at_submission(rule))
    )


def _looks_at_submission(rule: Rule) -> list[Look]:
    own: list[Look] = [rule.check] if "submission" in rule.needs else []
    return [*own, *cause_of(rule.code).looks_at("submission")]


def log_rules_alone(is_selected: Callable[[str], bool]) -> tuple[Rule, ...]:
    """The selected causes that logs can show, each judged from the log alone. Imports only the modules of such causes."""
    for module in LOG_MODULES:
        importlib.import_module(module)
    return log_rules(each.rule for each in loaded() if is_selected(each.rule.code))


def shows_in_logs(rule: Rule) -> bool:
    """Whether logs can show this cause. Its module must have been loaded."""
    return _look_at_log(rule) is not None


def log_rules(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Those of `rules` that logs can show, each judged from the log alone. Their modules must have been loaded."""
    found = []
    for rule in rules:
        look = _look_at_log(rule)
        if look is not None:
            check = look if cause_of(rule.code).all_attempts else functools.partial(_in_first_attempt, look)
            found.append(replace(rule, check=check, needs=("log",), wants=()))
    return tuple(found)


def _look_at_log(rule: Rule) -> Look | None:
    """The look that the cause defines, otherwise the one by its Xids, otherwise the one by its signatures."""
    from ddpdoctor.rules.log.signatures import by_signatures
    from ddpdoctor.rules.log.xids import xid_findings, xids_of

    own = cause_of(rule.code).looks_at("log") or ([rule.check] if "log" in rule.needs else [])
    if own:
        return own[0]
    if rule.xids is not None:
        return functools.partial(xid_findings, rule, xids_of(rule.xids))
    return by_signatures(rule) if rule.signatures else None


def _in_first_attempt(look: Look, log: object) -> Iterable[Finding] | None:
    from ddpdoctor.logs.history import history_of

    return look(history_of(log).first_attempt)


def hang_rules(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Those of `rules` that dumps and stuck ranks can show, each judged from `hang` alone. Their modules must have been
    loaded.
    """
    return tuple(
        replace(rule, check=functools.partial(_every_look, looks), needs=("hang",), wants=())
        for rule in rules
        if (looks := cause_of(rule.code).looks_at("hang"))
    )


def rehearsal_rules(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Those of `rules` that the rehearsal of a script can show, each judged from `rehearsal` alone."""
    return tuple(
        replace(rule, check=functools.partial(_every_look, looks), needs=("rehearsal",), wants=())
        for rule in rules
        if (looks := cause_of(rule.code).looks_at("rehearsal"))
    )


def _every_look(looks: Sequence[Look], *, is_one_enough: bool = False, **sections: object) -> Iterable[Finding]:
    """What all looks at one cause found; skipped if all of them were skipped. They take one section.

    Args:
        is_one_enough: the looks after the first that finds something are left out.
    """
    (section,) = sections.values()
    answers: list[Finding] = []
    refusals: list[CannotLook] = []
    for look in looks:
        if is_one_enough and answers:
            break
        try:
            answers += look(section) or ()
        except CannotLook as skip:
            refusals.append(skip)
    if len(refusals) == len(looks):
        raise refusals[0]
    return answers
