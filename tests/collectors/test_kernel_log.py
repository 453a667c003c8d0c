"""What the NVIDIA driver wrote into the kernel's log."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.collectors import kernel_log
from ddpdoctor.facts.gaps import Why
from ddpdoctor.system.machine import Machine, Root

LINES = """6,1,100000000,-;usb 1-1: new device
3,2,200000000,-;NVRM: Xid (PCI:0000:4e:00): 94, pid=2121, name=python3, Contained: SM (0x1). RST: No, D-RST: No
3,3,300000000,-;nvidia-nvswitch2: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 28 LTSSM Fault Up
3,4,400000000,-;NVRM: Xid (0000:3B:00): 79, GPU has fallen off the bus.
"""


def machine(tmp_path: Path, log: str | None) -> Machine:
    (tmp_path / "proc").mkdir()
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc/uptime").write_text("1000.00 1.00\n")
    if log is not None:
        (tmp_path / "dev/kmsg").write_text(log)
    return Machine(root=Root(str(tmp_path)))


def test_xids_and_sxids_come_with_their_age_and_place(tmp_path: Path) -> None:
    xids, gaps = kernel_log.read_xids(machine(tmp_path, LINES))
    assert not gaps
    assert xids is not None
    assert [(x.code, x.bus_id, x.age_seconds, x.is_switch) for x in xids] == [
        (94, "0000:4e:00", 800.0, False),
        (20034, "0000:05:00", 700.0, True),
        (79, "0000:3b:00", 600.0, False),
    ]
    assert xids[0].text.startswith("pid=2121, name=python3")
    assert xids[1].text.startswith("Fatal")


def test_a_log_that_is_not_there_is_unknown_and_not_empty(tmp_path: Path) -> None:
    xids, gaps = kernel_log.read_xids(machine(tmp_path, None))
    assert xids is None
    assert gaps[0].why is Why.NOT_HERE


def test_a_log_for_root_alone_is_unknown_and_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(machine: Machine, word: str) -> list[str]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(kernel_log, "_records", refuse)
    xids, gaps = kernel_log.read_xids(machine(tmp_path, LINES))
    assert xids is None
    assert gaps[0].why is Why.NEEDS_ROOT
    assert "needs root" in gaps[0].reason


@given(st.text(max_size=120), st.floats(0, 1e9))
def test_any_record_is_read(record: str, now: float) -> None:
    kernel_log._xid(record, now)
    kernel_log._xid(f"3,4,5,-;NVRM: Xid (PCI:{record}): 79{record}", now)


def test_without_the_right_to_the_kernel_s_own_log_syslog_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(machine: Machine, word: str) -> list[str]:
        raise PermissionError(1, "Operation not permitted")

    now = time.time()
    stamps = [time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(now - ago)) for ago in (9000, 7200, 600)]
    (tmp_path / "var/log").mkdir(parents=True)
    (tmp_path / "var/log/kern.log").write_text(
        f"{stamps[0]} n1 kernel: NVRM: Xid (PCI:0000:4e:00): 79, pid=1, name=a, GPU has fallen off the bus.\n"
        f"{stamps[1]} n1 kernel: Linux version 6.8.0\n"
        f"{stamps[2]} n1 kernel: NVRM: Xid (PCI:0000:3b:00): 94, pid=1, name=a, Contained\n"
    )
    monkeypatch.setattr(kernel_log, "_records", refuse)
    xids, gaps = kernel_log.read_xids(machine(tmp_path, LINES))
    assert not gaps
    assert xids is not None
    assert [(x.code, x.restarts) for x in xids] == [(79, 1), (94, 0)]
    assert 590 < (xids[1].age_seconds or 0) < 700
