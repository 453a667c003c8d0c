"""The tables of `ddpdoctor host` and `ddpdoctor versions` at the widths that people have."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
from machines import machine, machine_names

from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.host import Host
from ddpdoctor.facts.versions import Versions


def _draw(command: str, name: str, width: int) -> str:
    draw = importlib.import_module(f"ddpdoctor.cli.screens.{command}").draw
    text: str = draw(machine(name), width=width, colour=False)
    return text


@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("command", ["host", "versions"])
def test_every_machine_fits_and_no_value_is_blank(command: str, width: int) -> None:
    for name in machine_names():
        text = _draw(command, name, width)
        assert max(map(len, text.splitlines())) <= width
        assert "None" not in text


def test_the_host_table_shows_limits_and_what_is_left() -> None:
    words = " ".join(_draw("host", "container_shm64", 100).split())
    for part in (
        "container docker /.dockerenv",
        "/dev/shm 64 MiB 64 MiB free",
        "open files 1024 hard 4096",
        "NUMA calls refused",
    ):
        assert part in words


def test_the_versions_table_shows_which_nccl_would_be_loaded() -> None:
    words = " ".join(_draw("versions", "h100x8_sxm_healthy", 100).split())
    for part in ("build CUDA 12.4", "NCCL 2.21.5", "torch needs 2.21.5", "of the same Python"):
        assert part in words


def test_the_reason_stands_where_a_value_is_not_known() -> None:
    gaps = (
        Gap("host.shm_total_bytes", "/dev/shm did not respond"),
        Gap("host.cpus_allowed", "only root", Why.NEEDS_ROOT),
    )
    facts = replace(machine("cpu_vm"), host=Host(gaps=gaps), versions=Versions())
    draw = importlib.import_module("ddpdoctor.cli.screens.host").draw
    words = " ".join(draw(facts, width=100, colour=False).split())
    assert "/dev/shm unknown /dev/shm did not respond" in words
    assert "CPUs needs root only root" in words
    assert "0 B" not in words


@pytest.mark.parametrize("command", ["host", "versions"])
def test_a_missing_section_says_why(command: str) -> None:
    facts = replace(machine("cpu_vm"), host=None, versions=None, gaps=(Gap(command, "no answer within 5 s"),))
    draw = importlib.import_module(f"ddpdoctor.cli.screens.{command}").draw
    assert draw(facts, width=80, colour=False).strip() == "no answer within 5 s"
