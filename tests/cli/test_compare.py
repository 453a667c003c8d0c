"""`ddpdoctor compare`, and the node lists: what differs, one line each, worst first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from machines import machine_json

from ddpdoctor.app.node_lists import NodeLists, sort_nodes
from ddpdoctor.app.request import UsageError
from ddpdoctor.facts.nodes import Node, Nodes
from ddpdoctor.findings import Finding, Severity, Where


def save(folder: Path, host: str, **changes: Any) -> str:
    """Collected facts of a node of eight GPUs, with single fields changed: versions__torch="2.4.0"."""
    facts = machine_json("h100x8_sxm_healthy") | {"hostname": host}
    for path, value in changes.items():
        section, _, name = path.partition("__")
        facts[section] = {**facts[section], name: value}
    (folder / f"{host}.json").write_text(json.dumps(facts))
    return str(folder / f"{host}.json")


def compare(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "ddpdoctor", "compare", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


def test_nodes_that_are_alike_have_no_difference(tmp_path: Path) -> None:
    done = compare(*(save(tmp_path, f"gpu{n}") for n in range(3)))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "no difference")


def test_the_minority_is_to_blame_and_the_worst_stands_first(tmp_path: Path) -> None:
    good = [save(tmp_path, f"gpu{n}", environ__variables={"NCCL_ALGO": "Ring"}) for n in range(2)]
    bad = save(tmp_path, "gpu2", environ__variables={"NCCL_ALGO": "Tree"}, versions__torch="2.4.0", host__kernel="5.4")
    done = compare(*good, bad)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert [line.split()[0] for line in lines[1:-1]] == ["error", "warning", "note"]
    assert "gpu0, gpu1: Ring; gpu2: Tree" in lines[1]
    report = json.loads(compare(*good, bad, "--format", "json").stdout)
    assert report["findings"][0]["where"]["host"] == "gpu2"
    assert report["command"] == "compare"


def test_names_of_cards_that_differ_are_a_note(tmp_path: Path) -> None:
    files = [save(tmp_path, f"gpu{n}", environ__variables={"NCCL_IB_HCA": f"mlx5_{n}"}) for n in (1, 2)]
    files.append(save(tmp_path, "gpu3", environ__variables={"NCCL_SOCKET_IFNAME": "eth1", "NCCL_IB_HCA": "mlx5_1"}))
    lines = compare(*files).stdout.splitlines()[1:-1]
    assert [line.split()[:2] for line in lines] == [["note", "ENV031"], ["note", "ENV030"]]


def test_what_names_the_node_itself_is_no_difference(tmp_path: Path) -> None:
    files = [save(tmp_path, f"gpu{n}", environ__variables={"TORCH_HOME": f"/scratch/gpu{n}/torch"}) for n in (1, 2)]
    assert compare(*files).stdout.splitlines()[-1] == "no difference"


def test_a_port_that_is_down_is_one_difference(tmp_path: Path) -> None:
    rdma = machine_json("h100x8_sxm_healthy")["net"]["rdma"]
    first, *others = rdma["devices"]
    down = {**first, "ports": [{**port, "state": "DOWN"} for port in first["ports"]]}
    good = [save(tmp_path, f"gpu{n}") for n in range(2)]
    bad = save(tmp_path, "gpu2", net__rdma={**rdma, "devices": [down, *others]})
    (line,) = compare(*good, bad).stdout.splitlines()[1:-1]
    assert line.endswith("the number of active RDMA ports: gpu0, gpu1: 8; gpu2: 7")


def test_of_two_nodes_both_are_named(tmp_path: Path) -> None:
    files = [save(tmp_path, "good"), save(tmp_path, "bad", versions__torch="2.4.0")]
    report = json.loads(compare(*files, "--format", "json", "--fail-on", "warning").stdout)
    first = report["findings"][0]
    assert first["where"]["host"] is None
    assert "good: " in first["message"]
    assert "bad: 2.4.0" in first["message"]


def test_two_files_of_one_host_are_told_apart_by_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    first = save(tmp_path, "gpu0")
    Path(first).rename(tmp_path / "before.json")
    second = save(tmp_path, "gpu0", versions__torch="2.4.0")
    done = compare(str(tmp_path / "before.json"), second)
    assert "before.json" in done.stdout


def test_one_file_is_wrong_use_and_a_broken_one_is_told(tmp_path: Path) -> None:
    good = [save(tmp_path, f"gpu{n}") for n in range(2)]
    (tmp_path / "broken.json").write_text("{")
    assert compare(good[0]).returncode == 2
    done = compare(*good, str(tmp_path / "broken.json"))
    assert done.returncode == 3
    assert "broken.json" in done.stdout


def test_a_blamed_host_is_bad_and_so_are_both_ends_of_a_broken_link() -> None:
    nodes = Nodes(nodes=tuple(Node(f"gpu{n}", node_rank=n) for n in range(5)), missing_hosts={"5": "gpu5"})
    findings = [
        Finding("", where=Where(host="gpu1"), severity=Severity.ERROR),
        Finding("", where=Where(host="gpu2", peer="gpu3"), severity=Severity.ERROR),
        Finding("", where=Where(host="gpu4"), severity=Severity.WARNING),
    ]
    assert sort_nodes(nodes, findings) == (["gpu0", "gpu4"], ["gpu1", "gpu2", "gpu3", "gpu5"])


@pytest.mark.parametrize("given", ["good.txt", "a,b,c", "same,same", ",bad.txt", "/nowhere/good,bad"])
def test_the_lists_need_two_files_that_can_be_written(given: str) -> None:
    with pytest.raises(UsageError):
        NodeLists.of(given)
