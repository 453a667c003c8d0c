"""The tables of `ddpdoctor net` fit every width and leave nothing unknown blank."""

from __future__ import annotations

import pytest
from machines import machine, machine_names

from ddpdoctor.cli.screens import net
from ddpdoctor.facts.gaps import Gap
from ddpdoctor.facts.net import Net
from ddpdoctor.facts.record import SCHEMA, Facts


@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("name", machine_names())
def test_a_machine_fits(name: str, width: int) -> None:
    text = net.draw(machine(name), width=width, colour=False)
    assert max(map(len, text.splitlines())) <= width
    assert "None" not in text


def test_what_is_not_known_is_said_with_its_reason() -> None:
    gaps = (Gap("net.interfaces", "no kernel"), Gap("net.port", "no port"), Gap("net.backlog_max", "x"))
    text = net.draw(Facts(SCHEMA, "", "", net=Net(gaps=gaps)), width=80, colour=False)
    assert ("no kernel" if "net" == "net" else "no port") in text
    text = net.draw(Facts(SCHEMA, "", "", gaps=(Gap("net", "late"),)), width=80, colour=False)
    assert "late" in text
