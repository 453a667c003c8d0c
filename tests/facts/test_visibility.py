"""CUDA's reading of CUDA_VISIBLE_DEVICES: documented cases, and torch's reading as the oracle."""

from __future__ import annotations

import os
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.facts.device import Device, MigInstance
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.visibility import visible

UUIDS = ("GPU-5ec6dada-1", "GPU-f86a71c6-2", "GPU-f86b0000-3", "GPU-be1fd673-4")
NODE = Gpu(devices=tuple(Device(i, uuid=u, name="A100", bus_id=f"0000:0{i}:00.0") for i, u in enumerate(UUIDS)))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0,2", (0, 2)),
        ("3,1", (3, 1)),
        ("1,1", ()),
        ("0,9,2", (0,)),
        ("0,-1,1", (0,)),
        ("0gpu,1", (0, 1)),
        (" 0", (0,)),
        ("", ()),
        ("-1", ()),
        ("GPU-5ec6,GPU-f86b", (0, 2)),
        ("GPU-f86", ()),
        ("GPU-be,0", (3,)),
        ("0,GPU-be", (0,)),
        ("NoDevFiles", ()),
        ("0,1,", (0, 1)),
    ],
)
def test_the_list_is_read_as_cuda_reads_it(value: str, expected: tuple[int, ...]) -> None:
    assert visible({"CUDA_VISIBLE_DEVICES": value}, NODE).devices == expected


def test_an_unset_variable_shows_all() -> None:
    assert visible({}, NODE).devices == (0, 1, 2, 3)


def test_the_entry_that_ends_the_list_is_named() -> None:
    seen = visible({"CUDA_VISIBLE_DEVICES": "0,9,2"}, NODE)
    assert (seen.stopped_at, seen.dropped) == ("9", 2)
    assert "no GPU 9" in seen.why


def test_unlike_gpus_have_no_known_order_unless_it_is_by_bus() -> None:
    mixed = Gpu(devices=(NODE.devices[0], Device(1, uuid="GPU-x", name="T4", bus_id="0000:09:00.0")))
    assert visible({}, mixed).ordinal(0) is None
    assert visible({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, mixed).ordinal(1) == 1
    assert visible({"CUDA_VISIBLE_DEVICES": "GPU-x"}, mixed).ordinal(1) == 0


def test_a_process_gets_its_first_mig_device_only() -> None:
    gpu = Gpu(
        devices=(Device(0, uuid="GPU-a", mig_instances=(MigInstance("MIG-1", 7, 0), MigInstance("MIG-2", 8, 0))),)
    )
    seen = visible({"CUDA_VISIBLE_DEVICES": "MIG-2,MIG-1"}, gpu)
    assert (seen.count, seen.dropped) == (1, 1)
    assert visible({"CUDA_VISIBLE_DEVICES": "MIG-GPU-a/7/0"}, gpu).count == 1


ENTRIES = st.one_of(
    st.integers(-2, 6).map(str),
    st.sampled_from([*UUIDS, "GPU-f86", "GPU-", "GPU-5", "gpu", "", " 1", "2 ", "1x", "+2", "0x1", "-"]),
)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Failed to initialize NumPy")
@settings(max_examples=300, deadline=None)
@given(st.lists(ENTRIES, max_size=5).map(",".join))
def test_torch_reads_the_same(value: str) -> None:
    from torch.cuda import _parse_visible_devices, _transform_uuid_to_ordinals

    with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": value}):
        try:
            wanted = _parse_visible_devices()
        except ValueError:
            return  # torch itself trips over a lone sign
    if wanted and isinstance(wanted[0], str):
        wanted = _transform_uuid_to_ordinals(wanted, list(UUIDS))
    else:
        beyond = next((at for at, number in enumerate(wanted) if number >= len(UUIDS)), len(wanted))
        wanted = wanted[:beyond]
    assert list(visible({"CUDA_VISIBLE_DEVICES": value}, NODE).devices) == wanted
