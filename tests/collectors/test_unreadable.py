"""/proc and /sys that cannot be read: every section is still told, as far as it can be, and no collector fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpdoctor.collectors import SECONDS, collect
from ddpdoctor.engine import judge
from ddpdoctor.rules import load
from ddpdoctor.system.machine import Deadline, Machine, Root

FILES = (
    "proc/meminfo",
    "proc/cpuinfo",
    "proc/mounts",
    "proc/self/cgroup",
    "proc/self/mountinfo",
    "proc/self/status",
    "proc/net/tcp",
    "proc/net/tcp6",
    "proc/net/route",
    "proc/modules",
    "proc/cmdline",
    "proc/driver/nvidia/version",
    "proc/sys/net/core/somaxconn",
    "proc/sys/net/ipv4/ip_local_port_range",
    "proc/sys/kernel/numa_balancing",
    "sys/devices/system/node/online",
    "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/class/net/eth0/mtu",
    "sys/bus/pci/devices/0000:3b:00.0/vendor",
    "sys/class/infiniband/mlx5_0/ports/1/state",
)


def _empty(root: Path) -> None:
    """A machine without /proc and /sys."""


def _folders(root: Path) -> None:
    """Reading raises IsADirectoryError."""
    for name in FILES:
        (root / name).mkdir(parents=True, exist_ok=True)


def _garbage(root: Path) -> None:
    for name in FILES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x00\xff\xfe garbage \n: : :\n" + os.urandom(64))


def _blank(root: Path) -> None:
    for name in FILES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


@pytest.mark.parametrize("spoil", [_empty, _folders, _garbage, _blank])
def test_no_collector_fails_and_no_rule_crashes(spoil: object, tmp_path: Path) -> None:
    assert callable(spoil)
    spoil(tmp_path)
    facts = collect(Machine(root=Root(str(tmp_path)), environ={}, deadline=Deadline(20.0)))
    assert not [gap.reason for gap in facts.gaps if "the collector failed" in gap.reason]
    assert {name for name in SECONDS if getattr(facts, name) is None} <= {gap.path for gap in facts.gaps}
    outcome = judge(facts, [each for each in load() if not {"launch", "probe"} & set(each.needs)])
    assert not outcome.crashed
