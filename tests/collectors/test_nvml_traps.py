"""What a reader of NVML easily gets wrong, through a library that behaves as the real one does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import library

from ddpdoctor.collectors import collect
from ddpdoctor.engine import judge
from ddpdoctor.facts.record import Facts
from ddpdoctor.rules import load
from ddpdoctor.system.machine import Machine

Look = Callable[..., Facts]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """The facts of a profile with something laid over each of its GPUs, and over the node."""

    def build(
        name: str, over: dict[str, Any] | None = None, node: dict[str, Any] | None = None, **environ: str
    ) -> Facts:
        profile = library.merge(library.profile(name), node or {})
        profile["gpus"] = [library.merge(gpu, over or {}) for gpu in profile["gpus"]]
        folder = library.build(profile, tmp_path)
        return collect(Machine(environ={**os.environ, "LD_LIBRARY_PATH": str(folder), **environ}), ("gpu", "topo"))

    return build


def codes(facts: Facts) -> set[str]:
    outcome = judge(facts, load(("gpu", "topo")))
    assert not outcome.crashed
    return {finding.code for finding in outcome.findings}


def test_peer_access_is_asked_with_numbers_since_a_constant_of_pynvml_is_a_tuple(look: Look) -> None:
    topo = look("l40sx2_cross_numa").topo
    assert topo is not None
    assert topo.pairs[0].read == "OK"
    assert topo.pairs[0].write_back == "OK"


def test_the_version_of_a_link_is_an_enum_and_is_kept_as_it_came(look: Look) -> None:
    topo = look("h100x2_nvl").topo
    assert topo is not None
    assert {link.version for link in topo.gpus[0].links} == {6}


def test_no_field_whose_number_depends_on_the_driver_is_asked_for() -> None:
    from ddpdoctor.collectors.nvml.devices import FIELDS

    assert all(number <= 198 or 201 <= number <= 250 for _, number in FIELDS)


def test_margins_are_no_temperatures(look: Look) -> None:
    facts = look("h100x2_nvl")
    assert facts.gpu is not None
    device = facts.gpu.devices[0]
    assert (device.shutdown_margin_celsius, device.slowdown_margin_celsius, device.gpu_margin_celsius) == (-8, -2, 0)
    assert device.temperature_margin_celsius == 55
    assert device.temperature_slowdown_celsius is None
    assert device.says("temperature_slowdown_celsius") == "n/a"
    assert not codes(facts)


def test_a_counter_s_life_is_no_finding_and_its_growth_is(look: Look) -> None:
    assert not codes(look("h200x1_vm", {"pci": {"link": {"replays": 150}}}))
    growing = look("h200x1_vm", {"pci": {"link": {"replays": 150, "replay_growth": 400}}})
    assert growing.gpu is not None
    device = growing.gpu.devices[0]
    assert device.later is not None
    assert (device.pcie_replays, device.later.pcie_replays) == (150, 550)
    assert codes(growing) == {"TOPO028"}


def test_link_errors_that_grow_while_we_look(look: Look) -> None:
    facts = look("h100x2_nvl", {"nvlink": {"error_growth": {"3": 1}}})
    assert facts.topo is not None
    grown = [link.index for link in facts.topo.gpus[0].links if link.replay_growth]
    assert grown == [3]
    assert codes(facts) == {"TOPO013"}


def test_links_that_idle_are_not_slow_and_links_under_load_are(look: Look) -> None:
    assert not codes(look("a10x4_pcie", {"pci": {"link": {"gen": 1}}, "pstate": 8}))
    assert codes(look("a10x4_pcie", {"pci": {"link": {"gen": 1}}, "utilization": 99})) == {"TOPO027"}


def test_a_reason_of_the_clocks_counts_when_it_stands_twice(look: Look) -> None:
    assert codes(look("h200x1_vm", {"throttle": ["hw_slowdown", "hw_thermal"]})) == {"GPU029"}


@pytest.mark.parametrize("version", [3, 2, 1])
def test_the_fabric_is_read_from_every_driver_s_structure(version: int, look: Look) -> None:
    over = {"fabric": {"state": "in_progress", "status": "SUCCESS", "clique": 5, "cluster_uuid": "0" * 30 + "2a"}}
    topo = look("h200x1_vm", over, {"driver": {"fabric_version": version}}).topo
    assert topo is not None
    fabric = topo.gpus[0].fabric
    assert fabric is not None
    assert (fabric.state, fabric.clique, fabric.cluster_uuid) == (2, 5, "0" * 30 + "2a")
    assert (fabric.health_mask is None) is (version == 1)


def test_mig_instances_come_with_holes_in_their_slots(look: Look) -> None:
    mig = {"current": 1, "pending": 0, "instances": ["MIG-aaaa", None, "MIG-bbbb"]}
    facts = look("h200x1_vm", {"mig": mig})
    assert facts.gpu is not None
    assert [m.uuid for m in facts.gpu.devices[0].mig_instances] == ["MIG-aaaa", "MIG-bbbb"]
    assert "GPU016" in codes(facts)


def test_the_place_in_a_rack_is_numbers_of_one_byte_and_a_text(look: Look) -> None:
    gpu = look("gb200x4_tray", {"platform": {"serial": "182", "slot": 200, "tray": 0}}).gpu
    assert gpu is not None
    device = gpu.devices[0]
    assert (device.chassis_serial, device.chassis_slot, device.chassis_tray) == ("182", 200, 0)


def test_the_on_chip_memory_s_own_threshold(look: Look) -> None:
    assert codes(look("h200x1_vm", {"sram_threshold": 1})) == {"GPU020"}


def test_processes_are_named_and_one_of_elsewhere_is_not(look: Look) -> None:
    listed = [{"pid": os.getpid(), "used": 1 << 30}, {"pid": 2**31 - 2, "used": 1 << 30}]
    facts = look("h200x1_vm", {"processes": listed})
    assert facts.gpu is not None
    ours, strange = facts.gpu.devices[0].processes or ()
    assert ours.command is not None
    assert ours.is_ours
    assert strange.command is None
    assert not strange.is_ours
