"""The RDMA ports in `ddpdoctor net`."""

from __future__ import annotations

import pytest
from machines import machine

from ddpdoctor.cli.screens.net import draw

MACHINE = "h100x8_sxm_healthy"


@pytest.mark.parametrize("width", [40, 80, 100])
def test_every_port_has_a_row_that_fits(width: int) -> None:
    lines = draw(machine(MACHINE), width=width, colour=False).splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.startswith("mlx5_") and line.rstrip().endswith("NCCL")]
    assert [row.split()[0] for row in rows] == [f"mlx5_{i}:1" for i in range(8)]


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"environ": {"variables": {"NCCL_IB_HCA": "=mlx5_1,mlx5_2"}}}, "NCCL would use mlx5_1:1, mlx5_2:1"),
        ({"environ": {"variables": {"NCCL_IB_HCA": "ib0"}}}, "NCCL would use TCP: it uses none of these ports"),
        ({"environ": {"variables": {"NCCL_IB_DISABLE": "1"}}}, "NCCL would use TCP: NCCL_IB_DISABLE=1"),
        ({"net": {"rdma": {"device_nodes": []}}}, "NCCL would use TCP: /dev/infiniband has no uverbs device"),
        ({"net": {"rdma": {"has_library": False}}}, "NCCL would use TCP: libibverbs.so.1 was not found"),
    ],
)
def test_it_says_what_nccl_would_do_and_why(patch: dict[str, object], words: str) -> None:
    assert words in draw(machine(MACHINE, patch), width=200, colour=False)


def test_a_machine_without_adapters_shows_nothing_of_rdma() -> None:
    assert "RDMA" not in draw(machine("cpu_vm"), width=80, colour=False)
