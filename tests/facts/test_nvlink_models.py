"""The models whose NVLinks are known, by the names that NVML gives them."""

from __future__ import annotations

import pytest

from ddpdoctor.facts.nvlink_models import nvlink_model


@pytest.mark.parametrize(
    ("name", "links", "is_bridged"),
    [
        ("Tesla P100-SXM2-16GB", 4, False),
        ("Tesla V100-SXM2-32GB", 6, False),
        ("NVIDIA A100-SXM4-40GB", 12, False),
        ("NVIDIA A800-SXM4-80GB", 8, False),
        ("NVIDIA A100-PCIE-40GB", 12, True),
        ("NVIDIA A100 80GB PCIe", 12, True),
        ("NVIDIA A30", 4, True),
        ("NVIDIA RTX A6000", 4, True),
        ("NVIDIA GeForce RTX 3090", 4, True),
        ("NVIDIA H100 80GB HBM3", 18, False),
        ("NVIDIA H100 PCIe", 12, True),
        ("NVIDIA H100 NVL", 12, True),
        ("NVIDIA H200", 18, False),
        ("NVIDIA H800", 8, False),
        ("NVIDIA H20", 18, False),
        ("NVIDIA GH200 480GB", 18, False),
        ("NVIDIA B200", 18, False),
        ("NVIDIA GB300", 18, False),
    ],
)
def test_a_model_with_nvlink(name: str, links: int, is_bridged: bool) -> None:
    model = nvlink_model(name)
    assert model is not None
    assert (model.links, bool(model.bridge_links)) == (links, is_bridged)


@pytest.mark.parametrize(
    "name",
    ["Tesla T4", "NVIDIA A10", "NVIDIA A10G", "NVIDIA L4", "NVIDIA L40S", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 5090",
     "Tesla V100-PCIE-16GB", "NVIDIA RTX 6000 Ada Generation", "NVIDIA T400 4GB", "GRID A100X-10C", "", None],
)  # fmt: skip
def test_a_model_without_nvlink(name: str | None) -> None:
    assert nvlink_model(name) is None


@pytest.mark.parametrize(
    ("name", "published"),
    [("NVIDIA H100 80GB HBM3", "450 GB/s"), ("NVIDIA B200", "900 GB/s"), ("NVIDIA A100-SXM4-80GB", "")],
)
def test_the_line_rate_is_told_with_the_published_bandwidth(name: str, published: str) -> None:
    model = nvlink_model(name)
    assert model is not None
    assert published in model.published
    assert bool(model.published) == bool(published)
