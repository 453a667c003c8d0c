"""NCCL's files: which ones are read, how their lines are read, and which value wins."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpdoctor.collectors import environ as collector
from ddpdoctor.collectors.environ import collect
from ddpdoctor.facts.codec import decode, encode
from ddpdoctor.facts.environ import Environ
from ddpdoctor.system.machine import Machine, Root


def written(folder: Path, files: dict[str, str]) -> Root:
    for path, text in files.items():
        at = folder / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)
    return Root(str(folder))


def collected(folder: Path, files: dict[str, str], **variables: str) -> Environ:
    return collect(Machine(written(folder, files), {"HOME": "/home/me", **variables}))


def test_without_files_nothing_is_added(tmp_path: Path) -> None:
    found = collected(tmp_path, {}, NCCL_DEBUG="WARN")
    assert (found.conf_files, found.paths, found.settings) == ((), (), {"NCCL_DEBUG": "WARN"})


def test_the_environment_goes_before_the_file_of_the_user_and_that_before_the_file_of_the_system(
    tmp_path: Path,
) -> None:
    files = {
        "/home/me/.nccl.conf": "NCCL_DEBUG=INFO\nNCCL_IB_HCA=mlx5\n",
        "/etc/nccl.conf": "NCCL_DEBUG=TRACE\nNCCL_IB_HCA=bnxt\nNCCL_ALGO=Ring\n",
    }
    found = collected(tmp_path, files, NCCL_DEBUG="WARN")
    assert found.settings == {"NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "mlx5", "NCCL_ALGO": "Ring"}
    assert found.source("NCCL_DEBUG") == ("environ.variables.NCCL_DEBUG", None)
    assert found.source("NCCL_IB_HCA") == ("environ.conf_files[0].variables.NCCL_IB_HCA", "/home/me/.nccl.conf")
    assert found.source("NCCL_ALGO") == ("environ.conf_files[1].variables.NCCL_ALGO", "/etc/nccl.conf")
    assert decode(Environ, encode(found)) == found


def test_a_named_file_takes_the_place_of_that_in_the_home_folder(tmp_path: Path) -> None:
    files = {"/home/me/.nccl.conf": "NCCL_ALGO=Tree\n", "/cluster.conf": "NCCL_ALGO=Ring\n"}
    assert collected(tmp_path, files, NCCL_CONF_FILE="/cluster.conf").settings["NCCL_ALGO"] == "Ring"
    missing = collected(tmp_path, {}, NCCL_CONF_FILE="/nowhere.conf")
    assert "NCCL_ALGO" not in missing.settings
    named = missing.named("NCCL_CONF_FILE")
    assert named is not None
    assert not named.exists


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("NCCL_SOCKET_IFNAME==eth0", {"NCCL_SOCKET_IFNAME": "=eth0"}),
        ("#NCCL_DEBUG=INFO", {}),
        (" #NCCL_DEBUG=INFO", {}),
        ("NCCL_DEBUG=INFO # loud", {"NCCL_DEBUG": "INFO # loud"}),
        ('NCCL_NET="IB"', {"NCCL_NET": '"IB"'}),
        ("NCCL_DEBUG = INFO", {"NCCL_DEBUG ": " INFO"}),
        ("export NCCL_DEBUG=INFO", {"export NCCL_DEBUG": "INFO"}),
        ("NCCL_DEBUG=INFO\r", {"NCCL_DEBUG": "INFO"}),
        ("NCCL_DEBUG", {}),
        ("NCCL_DEBUG=INFO\nNCCL_DEBUG=WARN", {"NCCL_DEBUG": "INFO"}),
        ("NCCL_IB_HCA=" + "x" * 2000, {"NCCL_IB_HCA": "x" * 1023}),
        ("EDITOR=vi", {}),
        ("NCCL_TOKEN=abc", {"NCCL_TOKEN": "<removed: looks like a secret>"}),
    ],
)
def test_a_line_is_read_as_nccl_reads_it(tmp_path: Path, line: str, expected: dict[str, str]) -> None:
    (found,) = collected(tmp_path, {"/etc/nccl.conf": line + "\n"}).conf_files
    assert found.variables == expected


def test_a_folder_in_the_place_of_a_file_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "etc" / "nccl.conf").mkdir(parents=True)
    assert collected(tmp_path, {}).conf_files == ()


def test_a_topology_file_tells_its_gpus(tmp_path: Path) -> None:
    xml = (
        '<system version="1"><cpu numaid="0"><pci busid="ffff:ff:01.0" class="0x060400">'
        '<pci busid="0001:00:00.0" class="0x030200" link_width="16"/><pci busid="0101:00:00.0" class="0x020700"/>'
        '</pci><pci class="0x030000" busid="0000:3B:00.0"/></cpu></system>'
    )
    found = collected(tmp_path, {"/topo.xml": xml}, NCCL_TOPO_FILE="/topo.xml").named("NCCL_TOPO_FILE")
    assert found is not None
    assert (found.exists, found.gpu_bus_ids) == (True, ("0001:00:00.0", "0000:3b:00.0"))


def test_a_file_may_name_files_and_the_pipe_of_mps_is_looked_for(tmp_path: Path) -> None:
    files = {"/etc/nccl.conf": "NCCL_GRAPH_FILE=/graph.xml\n", "/mps/control": ""}
    found = collected(tmp_path, files, CUDA_MPS_PIPE_DIRECTORY="/mps")
    assert {each.variable: each.exists for each in found.paths} == {
        "NCCL_GRAPH_FILE": False,
        "CUDA_MPS_PIPE_DIRECTORY": True,
    }


def test_a_home_folder_that_does_not_answer_costs_one_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "FILE_SECONDS", 0.05)
    monkeypatch.setattr(collector, "look", lambda root, environ: time.sleep(0.5))
    found = collected(tmp_path, {}, RANK="0")
    assert found.variables == {"RANK": "0"}
    gap = found.gap("conf_files")
    assert gap is not None
    assert "timed out" in gap.reason


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_no_file_breaks_the_collector(tmp_path: Path, content: bytes) -> None:
    root = written(tmp_path, {"/etc/nccl.conf": ""})
    (tmp_path / "etc" / "nccl.conf").write_bytes(b"NCCL_" + content)
    found = collect(Machine(root, {"NCCL_TOPO_FILE": "/etc/nccl.conf"}))
    assert decode(Environ, encode(found)) == found


def test_the_pipe_of_a_daemon_that_is_gone_has_no_reader(tmp_path: Path) -> None:
    (tmp_path / "mps").mkdir()
    os.mkfifo(tmp_path / "mps/control")
    variables = {"CUDA_MPS_PIPE_DIRECTORY": "/mps"}
    left = collected(tmp_path, {}, **variables).named("CUDA_MPS_PIPE_DIRECTORY")
    assert left is not None
    assert (left.exists, left.is_answered) == (True, False)
    reader = os.open(tmp_path / "mps/control", os.O_RDONLY | os.O_NONBLOCK)
    try:
        served = collected(tmp_path, {}, **variables).named("CUDA_MPS_PIPE_DIRECTORY")
    finally:
        os.close(reader)
    assert served is not None
    assert served.is_answered is True
