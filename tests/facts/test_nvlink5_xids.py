"""NVIDIA's table of the NVLink 5 Xids, and the catalogue's actions of all others."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from ddpdoctor.app.request import Request
from ddpdoctor.app.triage import triaged
from ddpdoctor.facts.nvlink5_xids import NvlinkAction, nvlink_fault, rules
from ddpdoctor.facts.xids import action, meaning, xid_in
from ddpdoctor.findings import Report, Role

LOST_LINK = "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
HARMLESS = "SAW_MVB  Nonfatal   XC0 i0 Link 00 (0x00000021 0x00000004 0x00000000 0x00000000 0x00000000 0x00000000)"
OPEN = "RLW_REMAP  Nonfatal   XC1 i0 Link -1 (0x00000004 0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)"


def _line(code: int, text: str, bus: str = "0009:01:00") -> str:
    return f"[171167.620236] NVRM: Xid (PCI:{bus}): {code}, {text}\n"


def _triaged(folder: Path, text: str) -> Report:
    (folder / "dmesg.txt").write_text(text)
    report, _ = triaged([str(folder / "dmesg.txt")], Request(), started=time.monotonic())
    assert not report.crashed
    return report


def test_the_table_has_all_rules_of_nvidia() -> None:
    counted = Counter(rule.action for rule in rules())
    assert counted == {NvlinkAction.IGNORE: 45, NvlinkAction.RESET: 42, NvlinkAction.WITH_154: 8}
    assert {rule.code for rule in rules()} == set(range(144, 151))


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        (149, LOST_LINK, NvlinkAction.RESET),
        (149, LOST_LINK.replace("NETIR_LINK_EVT", "NETIR_LINK_DOWN"), NvlinkAction.RESET),
        (149, LOST_LINK.replace("0x021425c6", "0x026425c6"), NvlinkAction.IGNORE),
        (149, "NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x021425c6]", NvlinkAction.RESET),
        (149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00000226 0x00000002 0x0)", NvlinkAction.IGNORE),
        (144, HARMLESS, NvlinkAction.IGNORE),
        (144, HARMLESS.replace("0x00000004", "0x00000010"), NvlinkAction.RESET),
        (145, OPEN, NvlinkAction.WITH_154),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 05 (0x000000c2 0x00000001 0x0)", NvlinkAction.IGNORE),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 05 (0x000004c2 0x00000001 0x0)", NvlinkAction.RESET),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 05 (0x00000086 0x00000001 0x0)", NvlinkAction.RESET),
        (146, "TLW_TX_PIPE1 Fatal XC0 i0 Link 05 (0x0000000d 0x00000004 0x0)", NvlinkAction.RESET),
        (150, "MSE_WATCHDOG Fatal XC0 i0 Link -1 (0x00000000 0x00000000 0x0)", NvlinkAction.RESET),
        (147, "TREX Nonfatal XC0 i0 Link 02 (0x0000000e 0x00000007 0x0)", NvlinkAction.UNKNOWN),
    ],
)
def test_a_line_gets_the_action_of_its_rule(code: int, text: str, expected: NvlinkAction) -> None:
    fault = nvlink_fault(code, text)
    assert fault is not None
    assert fault.action is expected


def test_a_fatal_link_event_is_an_error_with_its_unit_and_link(tmp_path: Path) -> None:
    (found,) = [f for f in _triaged(tmp_path, _line(149, LOST_LINK)).findings if f.role is Role.CAUSE]
    assert (found.code, found.worst.value) == ("TOPO014", "error")
    assert "a fatal NVLink error in NETIR_LINK_EVT on link 1" in found.text
    assert "reset the GPU" in found.text


def test_what_nvidia_says_to_ignore_is_a_note(tmp_path: Path) -> None:
    report = _triaged(tmp_path, _line(144, HARMLESS))
    assert [(f.code, f.worst.value) for f in report.findings] == [("TOPO014", "note")]
    assert "reset" not in report.findings[0].fix
    assert report.verdict.value == "pass"


def test_what_waits_for_xid_154_is_a_warning(tmp_path: Path) -> None:
    report = _triaged(tmp_path, _line(145, OPEN))
    assert [(f.code, f.worst.value) for f in report.findings] == [("TOPO014", "warning")]
    assert "Xid 154" in report.findings[0].text


def test_a_harmless_line_after_a_fatal_one_does_not_hide_it(tmp_path: Path) -> None:
    (found,) = _triaged(tmp_path, _line(149, LOST_LINK) + _line(144, HARMLESS)).findings
    assert found.worst.value == "error"


@pytest.mark.parametrize("code", [46, 62, 109, 167, 168, 169])
def test_faults_that_a_reset_clears_say_so(code: int) -> None:
    xid = xid_in(f"NVRM: Xid (PCI:0000:3b:00): {code}, pid=7, name=python3")
    assert xid is not None
    assert action(xid) == "reset the GPU"


@pytest.mark.parametrize("code", [8, 11, 25, 75, 76, 77, 85, *range(126, 136)])
def test_faults_of_a_program_say_that_it_is_restarted(code: int) -> None:
    xid = xid_in(f"NVRM: Xid (PCI:0000:3b:00): {code}, pid=7, name=python3")
    assert xid is not None
    assert action(xid) == "restart the application"


@pytest.mark.parametrize("code", [171, 172])
def test_details_of_xid_48_are_of_the_same_cause(code: int, tmp_path: Path) -> None:
    xid = xid_in(f"NVRM: Xid (PCI:0000:3b:00): {code}, pid=7")
    assert xid is not None
    assert "a detail of Xid 48" in meaning(xid).words
    report = _triaged(tmp_path, _line(48, "DBE (double bit error)") + _line(code, "an uncorrectable error"))
    assert [f.code for f in report.findings if f.role is Role.CAUSE] == ["GPU018"]


def test_a_program_s_exception_is_the_cause_of_the_timeout_after_it(tmp_path: Path) -> None:
    text = _line(13, "pid=7, Graphics SM Warp Exception") + _line(109, "pid=7, CTX SWITCH TIMEOUT").replace(
        "67.62", "69.62"
    )
    report = _triaged(tmp_path, text)
    assert [f.code for f in report.findings if f.role is Role.CAUSE] == ["GPU043"]
    assert [f.code for f in report.findings if f.role is Role.CONSEQUENCE] == ["GPU040"]
