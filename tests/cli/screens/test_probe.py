"""The probe's table at the widths that people have."""

from __future__ import annotations

import pytest
from machines import machine

from ddpdoctor.cli.screens.probe import draw


@pytest.mark.parametrize("width", [40, 80, 100])
def test_it_fits(width: int) -> None:
    text = draw(machine("cpu_vm"), width=width, colour=False)
    assert max(map(len, text.splitlines())) <= width
    assert "all_reduce" in text
    assert "4 MiB" in text


def test_without_a_probe_it_gives_the_reason() -> None:
    facts = machine("cpu_vm", {"probe": None, "gaps": [{"path": "probe", "reason": "torch is not installed"}]})
    assert "torch is not installed" in draw(facts, width=80, colour=False)


def test_unknown_is_said_in_words() -> None:
    patch = {"probe": {"ranks": [{"rank": 0, "host": "node-a", "phase": "join"}], "observations": []}}
    text = draw(machine("cpu_vm", patch), width=80, colour=False)
    assert "not imported" in text
