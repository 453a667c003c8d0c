"""What of a good and a bad node is held against each other, beyond versions and variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from machines import machine, machine_json, machine_names

from ddpdoctor.facts.codec import decode
from ddpdoctor.facts.comparable_properties import PROPERTY_WORDS, comparable_properties
from ddpdoctor.facts.record import Facts

CHANGES: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("topo.nvlinks", lambda f: f["topo"]["gpus"][3]["links"][0].update(is_active=False), "1x 17 of 18, 7x 18 of 18"),
    ("topo.fabric_manager", lambda f: f["topo"]["fabric_manager"].update(is_running=False), "not running"),
    ("gpu.pcie", lambda f: f["gpu"]["devices"][2].update(pcie_width=8), "7x generation 5 x16, 1x generation 5 x8"),
    ("gpu.ecc", lambda f: f["gpu"]["devices"][1].update(ecc_mode=0), "1x off, 7x on"),
    ("gpu.row_remapping", lambda f: f["gpu"]["devices"][5].update(remap_failure=1), "1x failed, 7x well"),
    ("gpu.nvml_error", lambda f: f["gpu"].update(nvml_error="GPU_IS_LOST"), "GPU_IS_LOST"),
    ("gpu.kernel_modules", lambda f: f["gpu"].update(kernel_modules=["nvidia"]), "nvidia"),
    ("host.cgroup.memory", lambda f: f["host"]["cgroup"].update(memory_limit_bytes=64 << 30), "64.0 GiB"),
    ("host.numa_balancing", lambda f: f["host"].update(numa_balancing=True), "on"),
    ("host.clock", lambda f: f["host"].update(clock_is_synchronised=False), "not synchronized"),
    (
        "net.cards",
        lambda f: f["net"]["interfaces"][1].update(is_running=False),
        "ib0, ib1, ib2, ib3, ib4, ib5, ib6, ib7",
    ),
]


@pytest.mark.parametrize(("name", "change", "value"), CHANGES, ids=[name for name, _, _ in CHANGES])
def test_a_node_that_differs_in_one_thing_differs_in_one_property(
    name: str, change: Callable[[dict[str, Any]], object], value: str
) -> None:
    good, bad = machine_json("h100x8_sxm_healthy"), machine_json("h100x8_sxm_healthy")
    change(bad)
    here, there = (comparable_properties(decode(Facts, facts)) for facts in (good, bad))
    assert {each for each in {*here, *there} if here.get(each) != there.get(each)} == {name}
    assert there[name] == value


def test_a_missing_gpu_is_one_difference() -> None:
    good, bad = machine_json("h100x8_sxm_healthy"), machine_json("h100x8_sxm_healthy")
    bad["gpu"]["devices"].pop()
    here, there = (comparable_properties(decode(Facts, facts)) for facts in (good, bad))
    unlike = {each for each in {*here, *there} if here.get(each) != there.get(each)}
    assert unlike == {
        "gpu.count",
        "gpu.model",
        "gpu.memory",
    }  # of which the models and sizes are compared without numbers


def test_a_sentence_has_words_for_every_property() -> None:
    names = {name for each in machine_names() for name in comparable_properties(machine(each))}
    assert {name for name in names if not name.startswith("environ.")} <= set(PROPERTY_WORDS)
    assert set(PROPERTY_WORDS) - names <= {"gpu.nvml_error", "host.governor", "host.limits.address_space"}
