"""Looks at one cause in several views: none is lost."""

from __future__ import annotations

import pytest

from ddpdoctor.findings import Severity
from ddpdoctor.rules import Cause, Rule


def _cause(*needs: str) -> Cause:
    rule = Rule("HOST999", "a-pattern", Severity.ERROR, lambda **_: None, "", "here", needs)
    return Cause(rule, all_attempts=False)


def test_a_second_look_at_logs_is_refused() -> None:
    cause = _cause("host")
    cause.look(lambda log: ())
    with pytest.raises(ValueError, match="HOST999: a second look at logs"):
        cause.look(lambda log: ())
    with pytest.raises(ValueError, match="HOST999: a second look at logs"):
        _cause("log").look(lambda log: ())


def test_several_looks_at_stuck_jobs_are_all_kept() -> None:
    cause = _cause("host")
    looks = [cause.look(lambda hang: ()), cause.look(lambda hang: ())]
    assert cause.looks_at("hang") == looks


def test_a_look_at_another_section_is_refused() -> None:
    with pytest.raises(ValueError, match="takes launch, log, hang, submission or rehearsal, not 'gpu'"):
        _cause("host").look(lambda gpu: ())
