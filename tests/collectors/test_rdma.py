"""RDMA adapters as sysfs shows them."""

from __future__ import annotations

import ipaddress
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.collectors import rdma
from ddpdoctor.facts.rdma import takes
from ddpdoctor.system.machine import Machine, Root


def adapter(root: Path, name: str, *, layer: str = "InfiniBand", state: str = "4: ACTIVE") -> Path:
    port = root / "sys/class/infiniband" / name / "ports/1"
    (port / "counters").mkdir(parents=True)
    (port.parent.parent / "hca_type").write_text("MT4129\n")
    files = {"state": state, "phys_state": "5: LinkUp", "rate": "200 Gb/sec (2X NDR)", "link_layer": layer}
    for file, text in {**files, "counters/symbol_error": "7", "counters/link_downed": "0"}.items():
        (port / file).write_text(f"{text}\n")
    return port


def gid(port: Path, index: int, address: str, kind: str) -> None:
    for folder in ("gids", "gid_attrs/types"):
        (port / folder).mkdir(parents=True, exist_ok=True)
    (port / "gids" / str(index)).write_text(f"{address}\n")
    (port / "gid_attrs/types" / str(index)).write_text(f"{kind}\n")


def test_a_roce_port_with_its_addresses(tmp_path: Path) -> None:
    port = adapter(tmp_path, "mlx5_0", layer="Ethernet")
    gid(port, 0, "fe80:0000:0000:0000:ba59:9fff:fe00:0001", "IB/RoCE v1")
    gid(port, 1, "0000:0000:0000:0000:0000:0000:0000:0000", "IB/RoCE v1")
    gid(port, 2, "0000:0000:0000:0000:0000:ffff:0a00:0105", "RoCE v2")
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/uverbs0").touch()
    seen = rdma.look(Machine(root=Root(str(tmp_path))))
    (device,) = seen.devices
    (found,) = device.ports
    assert (device.kind, found.state, found.rate_gbit_per_s, found.width) == ("MT4129", "ACTIVE", 200.0, 2)
    assert [g.index for g in found.gids] == [0, 2]
    assert [g.is_routable for g in found.gids] == [False, True]
    assert found.gids[1].address == ipaddress.IPv4Address("10.0.1.5")
    assert seen.device_nodes == ("uverbs0",)
    assert seen.has_library is False


def test_counters_are_read_twice_and_what_is_old_is_no_growth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = adapter(tmp_path, "mlx5_0")
    monkeypatch.setattr(rdma, "SAMPLE_SECONDS", 0.4)
    writer = threading.Timer(0.1, (port / "counters/link_downed").write_text, ["1\n"])
    writer.start()
    (found,) = rdma.look(Machine(root=Root(str(tmp_path)))).devices[0].ports
    writer.join(5)
    assert found.errors == {"symbol_error": 7, "link_downed": 1}
    assert found.growth == {"link_downed": 1}


def test_a_machine_without_adapters_waits_for_nothing(tmp_path: Path) -> None:
    seen = rdma.look(Machine(root=Root(str(tmp_path))))
    assert seen.devices == ()
    assert seen.sample_seconds is None


def test_a_library_and_a_plugin_on_the_path_of_the_loader(tmp_path: Path) -> None:
    adapter(tmp_path, "mlx5_0")
    (tmp_path / "opt/lib").mkdir(parents=True)
    for name in ("libibverbs.so.1", "libnccl-net.so"):
        (tmp_path / "opt/lib" / name).touch()
    machine = Machine(root=Root(str(tmp_path)), environ={"LD_LIBRARY_PATH": "/nowhere:/opt/lib"})
    seen = rdma.look(machine)
    assert seen.has_library is True
    assert seen.plugin == "/opt/lib/libnccl-net.so"
    quiet = Machine(root=Root(str(tmp_path)), environ={"LD_LIBRARY_PATH": "/opt/lib", "NCCL_NET_PLUGIN": "none"})
    assert rdma.look(quiet).plugin is None
    assert rdma.look(quiet).has_plugin is None
    assert seen.has_plugin is True
    named = Machine(root=Root(str(tmp_path)), environ={"LD_LIBRARY_PATH": "/opt/lib", "NCCL_NET_PLUGIN": "ofi"})
    assert rdma.look(named).has_plugin is False


@pytest.mark.parametrize(
    ("spec", "taken"),
    [
        (None, ["mlx5_0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_10:1"]),
        ("mlx5_1", ["mlx5_1:1", "mlx5_1:2", "mlx5_10:1"]),
        ("=mlx5_1", ["mlx5_1:1", "mlx5_1:2"]),
        ("mlx5_1:2", ["mlx5_1:2"]),
        ("=mlx5_0,mlx5_10:1:3", ["mlx5_0:1", "mlx5_10:1"]),
        ("^mlx5_1", ["mlx5_0:1"]),
        ("^=mlx5_1:1", ["mlx5_0:1", "mlx5_1:2", "mlx5_10:1"]),
        ("ib0", []),
    ],
)
def test_nccl_ib_hca_takes_what_nccl_takes(spec: str | None, taken: list[str]) -> None:
    ports = [("mlx5_0", 1), ("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1)]
    assert [f"{name}:{port}" for name, port in ports if takes(spec, name, port)] == taken


@given(st.text(max_size=40), st.text(max_size=10), st.integers(0, 9))
def test_any_value_of_nccl_ib_hca_is_read(spec: str, name: str, port: int) -> None:
    assert isinstance(takes(spec, name, port), bool)
