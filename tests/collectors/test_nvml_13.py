"""What NVML 13 reports in addition, what an older driver answers instead, and the node that nvmlInit leaves behind."""

# ruff: noqa: N802 - the methods are named after the functions of NVML

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from fakes import library
from fakes.ctypes_library import CtypesLibrary, Refusal

from ddpdoctor.collectors.nvml import __main__ as asking
from ddpdoctor.collectors.nvml import results
from ddpdoctor.collectors.nvml.results import Answers

GRAPHICS = 0
CLOCKS = {"nvmlDeviceGetApplicationsClock": 1200, "nvmlDeviceGetDefaultApplicationsClock": 1980}
BITS = {219: 12, 220: 0x0102, 221: 3, 222: 0x0103}


class Newer(CtypesLibrary):
    """A driver with the functions of NVML 13, whose application clocks are those of the graphics domain."""

    def _nvmlDeviceGetRepairStatus(self, handle: Any, out: Any) -> None:
        self._at(handle)
        out._obj.bChannelRepairPending, out._obj.bTpcRepairPending = 1, 0

    def _nvmlDeviceGetUnrepairableMemoryFlag_v1(self, handle: Any, out: Any) -> None:
        self._at(handle)
        out._obj.unrepairableMemory = 1

    def _nvmlDeviceGetAddressingMode(self, handle: Any, out: Any) -> None:
        self._at(handle)
        out._obj.value = 2

    def _nvmlDeviceGetNvlinkBwMode(self, handle: Any, out: Any) -> None:
        self._at(handle)
        out._obj.bIsBest, out._obj.bwMode = 0, 3

    def __getattr__(self, name: str) -> Callable[..., int]:
        usual = super().__getattr__(name)
        return (lambda *args: self._clock(usual, CLOCKS[name], *args)) if name in CLOCKS else usual

    def _clock(self, usual: Callable[..., int], mhz: int, handle: Any, domain: Any, out: Any) -> int:
        if int(getattr(domain, "value", domain)) != GRAPHICS:
            return usual(handle, 3, out)
        out._obj.value = mhz
        return 0

    def _field(self, index: int, number: int, scope: int) -> int:
        return BITS.get(number) or super()._field(index, number, scope)


def _ask(fake: CtypesLibrary, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Answers:
    monkeypatch.setattr(pynvml, "nvmlLib", fake)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(asking, "SAMPLE_SECONDS", 0.0)
    capfd.readouterr()
    asking.main()
    return results._fold(capfd.readouterr().out.encode())


def test_the_new_functions_are_read(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    found = _ask(Newer(library.profile("h100x2_nvl")), monkeypatch, capfd)
    facts = found.facts["0"]
    assert (facts["channel_repair_pending"], facts["tpc_repair_pending"], facts["memory_unrepairable"]) == (1, 0, 1)
    assert (facts["addressing_mode"], facts["nvlink_bandwidth_mode"]) == (2, 3)


def test_the_clock_of_the_graphics_domain_stands_in_for_that_of_the_sms(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    facts = _ask(Newer(library.profile("h100x2_nvl")), monkeypatch, capfd).facts["0"]
    assert (facts["app_clock_mhz"], facts["app_clock_default_mhz"]) == (1200, 1980)


def test_bit_errors_of_links_are_read(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    found = _ask(Newer(library.profile("h100x2_nvl")), monkeypatch, capfd)
    links = [facts for subject, facts in found.facts.items() if subject.startswith("0 link") and facts.get("is_active")]
    assert links
    assert {(f["effective_errors"], f["effective_ber"], f["symbol_errors"], f["symbol_ber"]) for f in links} == {
        (12, 258, 3, 259)
    }


def test_an_older_driver_costs_only_these_facts(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = _ask(CtypesLibrary(library.profile("h100x2_nvl")), monkeypatch, capfd)
    assert found.codes["0"]["memory_unrepairable"] == "FUNCTION_NOT_FOUND"
    assert "memory_unrepairable" not in found.facts["0"]
    assert found.facts["0"]["uuid"]


@pytest.mark.parametrize(("was_there", "is_left"), [(False, False), (True, True)])
def test_a_node_that_nvml_made_is_removed_again(
    was_there: bool, is_left: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    node = tmp_path / "nvidiactl"
    if was_there:
        node.touch()

    class WithoutModule(CtypesLibrary):
        def _nvmlInitWithFlags(self, flags: Any) -> None:
            node.touch()
            raise Refusal(9)

    monkeypatch.setattr(asking, "CONTROL_NODE", node)
    found = _ask(WithoutModule(library.profile("h100x2_nvl")), monkeypatch, capfd)
    assert found.codes["node"]["init"] == "DRIVER_NOT_LOADED"
    assert node.exists() is is_left
