"""Where NVSwitches are, and whether their service runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.collectors import fabric_manager
from ddpdoctor.system.machine import Machine, Root


@pytest.mark.parametrize("sign", ["dev/nvidia-nvswitchctl", "proc/driver/nvidia-nvswitch/devices/0000:05:00.0", "pci"])
def test_every_sign_of_a_switch_counts(sign: str, tmp_path: Path) -> None:
    if sign == "pci":
        for name, value in (("class", "0x068000"), ("vendor", "0x10de")):
            (tmp_path / "sys/bus/pci/devices/0000:05:00.0").mkdir(parents=True, exist_ok=True)
            (tmp_path / "sys/bus/pci/devices/0000:05:00.0" / name).write_text(f"{value}\n")
    else:
        (tmp_path / sign).parent.mkdir(parents=True)
        (tmp_path / sign).touch()
    service, gaps = fabric_manager.look(Machine(root=Root(str(tmp_path))))
    assert not gaps
    assert service is not None
    assert not service.is_running


def test_without_a_switch_there_is_no_service(tmp_path: Path) -> None:
    service, (gap,) = fabric_manager.look(Machine(root=Root(str(tmp_path))))
    assert service is None
    assert "no NVSwitch" in gap.reason
