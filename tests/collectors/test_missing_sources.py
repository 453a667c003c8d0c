"""Without /proc, /sys, /etc or /dev no rule passes that could not look, and the report says why it was skipped."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import FULL
from lab.processes import need
from machines import machine, machine_names

from ddpdoctor.collectors.sources import FIELDS, with_gaps_of_sources
from ddpdoctor.engine import judge
from ddpdoctor.facts.gaps import CannotLook
from ddpdoctor.facts.partial import Reads, guarded
from ddpdoctor.facts.record import Facts
from ddpdoctor.rules import Rule, load
from ddpdoctor.system.machine import Root

SECTIONS = ("environ", "host", "net", "gpu", "topo", "versions")
RULES = tuple(each for each in load() if {*each.needs, *each.wants} & {*SECTIONS, "facts"})
SOURCES = tuple(FIELDS)
EXAMINED = machine_names() if FULL else machine_names()[::12]


class _Everything(frozenset[str]):
    """All paths there are."""

    def __contains__(self, path: object) -> bool:
        return True


def fields_read(rule: Rule, facts: Facts) -> set[str]:
    """The fields that a rule reads, without indices, whatever the product's own guard says."""
    reads = Reads()
    sections = {name: getattr(facts, name) for name in SECTIONS if getattr(facts, name) is not None}
    watched = {name: guarded(value, name, _Everything(), reads) for name, value in sections.items()}
    seen = replace(facts, **watched)
    arguments = {name: seen if name == "facts" else getattr(seen, name) for name in (*rule.needs, *rule.wants)}
    try:
        list(rule.check(**arguments) or ())
    except CannotLook:
        pass
    return {re.sub(r"\[[^\]]*\]", "", path) for path in reads.known}


def without(facts: Facts, source: str, empty: Path) -> Facts:
    """The facts as they are gathered where a source is missing."""
    sections: dict[str, Any] = {}
    for name in SECTIONS:
        section = getattr(facts, name)
        if section is None:
            continue
        for path in FIELDS[source].get(name, ()):
            section = _blank(section, path.split("."))
        sections[name] = with_gaps_of_sources(_WithoutSource(str(empty), source), name, section)
    return replace(facts, **sections)


class _WithoutSource(Root):
    """A tree in which only one folder is empty."""

    def __init__(self, path: str, source: str) -> None:
        super().__init__(path)
        object.__setattr__(self, "source", source)

    def names(self, path: str) -> tuple[str, ...]:
        return () if path == object.__getattribute__(self, "source") else ("something",)


def _blank(value: Any, path: list[str]) -> Any:
    if isinstance(value, tuple):
        return tuple(_blank(item, path) for item in value)
    if value is None:
        return None
    if len(path) > 1:
        return replace(value, **{path[0]: _blank(getattr(value, path[0]), path[1:])})
    kind = next(each for each in dataclasses.fields(value) if each.name == path[0])
    if kind.default is not dataclasses.MISSING:
        return replace(value, **{path[0]: kind.default})
    if kind.default_factory is not dataclasses.MISSING:
        return replace(value, **{path[0]: kind.default_factory()})
    return value


@pytest.mark.parametrize("source", SOURCES)
def test_no_rule_passes_that_reads_what_a_missing_source_would_show(source: str, tmp_path: Path) -> None:
    unseen = {f"{section}.{path}" for section, names in FIELDS[source].items() for path in names}
    wrong, judged = [], 0
    for name in EXAMINED:
        facts = machine(name)
        blind = without(facts, source, tmp_path)
        gapped = {gap.path for each in SECTIONS if (own := getattr(blind, each)) is not None for gap in own.gaps}
        outcome = judge(blind, RULES)
        assert not outcome.crashed
        passed = set(outcome.passed)
        for rule in RULES:
            if rule.code in passed:
                judged += 1
                wrong += [(rule.code, name, path) for path in fields_read(rule, blind) & unseen & gapped]
    assert judged
    assert wrong == []


PROGRAM = """
import json, sys
from ddpdoctor.app.facts_source import facts_for
from ddpdoctor.collectors import collect
from ddpdoctor.facts.codec import encode
from ddpdoctor.system.machine import this_machine
print(json.dumps(encode(collect(this_machine(20.0)))))
"""
CHANGE = {"memory_available_bytes", "shm_free_bytes", "listening", "gaps", "variables", "user_threads", "free_port"}
"""Fields that differ between any two moments."""
BY_THE_KERNEL = {"shm_total_bytes"}
"""The size of what this test mounts."""


def collected(source: str | None) -> dict[str, Any]:
    """This machine's facts, with an empty folder in place of one source, in a mount namespace of its own."""
    command = [sys.executable, "-c", PROGRAM]
    if source is not None:
        need("unshare", "mount")
        cover = f'mount --make-rprivate / && mount -t tmpfs none {source} && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", cover, "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("source", ["/proc", "/sys", "/etc"])
def test_every_fact_that_changes_without_a_source_is_known_to_come_from_it(source: str) -> None:
    whole, covered = collected(None), collected(source)
    for section in ("host", "gpu", "topo"):
        known = {path.partition(".")[0] for path in FIELDS[source].get(section, ())}
        for name, value in (whole.get(section) or {}).items():
            now = (covered.get(section) or {}).get(name)
            if name in CHANGE | BY_THE_KERNEL | known or now == value or _is_alike(value, now):
                continue
            raise AssertionError(f"{section}.{name} was {value} and is {now} without {source}")
        gaps = {gap["path"] for gap in (covered.get(section) or {}).get("gaps", ())}
        for path in FIELDS[source].get(section, ()):
            found = (covered.get(section) or {}).get(path)
            assert "." in path or found or f"{section}.{path}" in gaps, path


def _is_alike(one: Any, other: Any) -> bool:
    """Whether two records differ in numbers that change all the time only: free space, use of memory."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return all(_is_alike(one[name], other[name]) for name in one)
    return one == other or (isinstance(one, int) and isinstance(other, int) and not isinstance(one, bool))
