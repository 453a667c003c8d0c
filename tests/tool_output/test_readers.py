"""What the readers make of a text: the values, their lines, and nothing that the text does not show."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpdoctor.facts.partial import Reads
from ddpdoctor.tool_output.driver_branches import cuda_of_driver
from ddpdoctor.tool_output.hosts import by_host
from ddpdoctor.tool_output.merge import Sourced, facts_of
from ddpdoctor.tool_output.parts import parts_of
from ddpdoctor.tool_output.readers import records_of
from ddpdoctor.tool_output.record import bus_id_of, integer
from tests.tool_output import outputs
from tests.tool_output.outputs import nvlink_status, smi_query, smi_table, smi_xml, topology

TEXTS = {
    "table": smi_table(),
    "query": smi_query(),
    "xml": smi_xml(),
    "topology": topology(weak=3),
    "nvlink": nvlink_status(2, down=(1, 3)),
    **{name.lower(): getattr(outputs, name) for name in outputs.__all__ if name.isupper()},
}
EXAMPLES = 200 if os.environ.get("DDPDOCTOR_FULL") == "1" else 12
SECONDS = 2.0
"""A reader is linear: a text of some kilobytes takes milliseconds, also when it was damaged."""


def test_every_value_of_a_query_has_its_line() -> None:
    text = smi_query(2)
    facts = facts_of("", [Sourced(record, "q") for record in records_of(text)])
    lines = text.split("\n")
    for path, words in {
        "gpu.devices[1].remap_failure": "Remapping Failure Occurred",
        "gpu.devices[1].pcie_width_max": "Max                       : 16x",
        "gpu.devices[0].power_limit_mw": "Current Power Limit",
        "gpu.devices[1].ecc_uncorrected_volatile": "Uncorrectable",
        "gpu.driver_version": "Driver Version",
    }.items():
        assert words in lines[facts.places[path].line - 1], path


def test_both_forms_of_a_query_tell_the_same() -> None:
    of_text = facts_of("", [Sourced(record, "q") for record in records_of(smi_query(2))]).facts.gpu
    of_xml = facts_of("", [Sourced(record, "x") for record in records_of(smi_xml(2))]).facts.gpu
    assert of_text is not None
    assert of_xml is not None
    for name in (
        "mig_mode",
        "ecc_mode",
        "remap_pending",
        "pcie_width",
        "performance_state",
        "ecc_uncorrected_volatile",
    ):
        assert [getattr(d, name) for d in of_text.devices] == [getattr(d, name) for d in of_xml.devices], name


def test_what_nvidia_smi_could_not_read_is_absent_and_never_zero() -> None:
    text = smi_query(1).replace("Uncorrectable Error               : 0", "Uncorrectable Error               : N/A")
    text = text.replace("GPU Current Temp                  : 33 C", "GPU Current Temp                  : Unknown Error")
    gpu = facts_of("", [Sourced(record, "q") for record in records_of(text)]).facts.gpu
    assert gpu is not None
    (device,) = gpu.devices
    assert (device.remap_uncorrectable, device.absent["remap_uncorrectable"]) == (None, "NOT_SUPPORTED")
    assert (device.temperature_celsius, device.absent["temperature_celsius"]) == (None, "UNKNOWN")
    assert device.absent["gsp_mode"] == "NOT_IN_FILES"


def test_interfaces_and_limits_are_read_in_the_units_of_the_facts() -> None:
    texts = (outputs.IP_ADDR, outputs.ULIMIT)
    facts = facts_of("", [Sourced(record, "t") for text in texts for record in records_of(text)]).facts
    assert facts.net is not None
    assert facts.host is not None
    shown = [(i.name, i.kind, i.is_running, i.mtu, [a.ip for a in i.addresses]) for i in facts.net.interfaces]
    assert shown == [
        ("lo", "loopback", True, 65536, ["127.0.0.1"]),
        ("eth0", "physical", True, 9000, ["10.0.0.7", "fe80::5054:ff:fe12:3456"]),
        ("ib0", "infiniband", False, 4092, []),
    ]
    limits = facts.host.limits
    assert limits.locked_memory is not None
    assert limits.stack is not None
    assert limits.address_space is not None
    assert (limits.locked_memory.soft, limits.stack.soft, limits.address_space.soft) == (65536, 8 << 20, -1)


def test_a_gpu_in_several_files_is_one_gpu() -> None:
    texts = {"q": smi_query(2), "table": smi_table(2), "links": nvlink_status(2)}
    facts = facts_of("", [Sourced(record, name) for name, text in texts.items() for record in records_of(text)]).facts
    assert facts.gpu is not None
    assert facts.topo is not None
    assert [device.index for device in facts.gpu.devices] == [0, 1]
    assert [gpu.active_links for gpu in facts.topo.gpus] == [18, 18]


def test_a_field_that_no_file_shows_cannot_be_read() -> None:
    reads = Reads()
    machine = facts_of("", [Sourced(record, "t") for record in records_of(smi_table(1))])
    gpu = machine.guarded(reads).gpu
    assert gpu is not None
    assert gpu.devices[0].ecc_uncorrected_volatile == 0
    assert reads.unknown == set()
    assert gpu.devices[0].remap_failure is None
    assert reads.unknown == {"gpu.devices[0].remap_failure"}
    with pytest.raises(Exception, match=r"no file shows gpu\.device_nodes"):
        _ = gpu.device_nodes


@pytest.mark.parametrize(
    ("names", "hosts"),
    [
        (["gpu-07/nvidia-smi.txt", "gpu-08/nvidia-smi.txt"], ["gpu-07", "gpu-08"]),
        (["logs/gpu-07_nvidia-smi-q.txt", "logs/gpu-08_nvidia-smi-q.txt"], ["gpu-07", "gpu-08"]),
        (["nvidia-smi-q.node12.log", "ibstat.node12.log"], ["node12"]),
        (["nvidia-smi.txt", "topo.txt"], [""]),
    ],
)
def test_a_machine_is_named_by_its_file_or_folder(names: list[str], hosts: list[str]) -> None:
    found = by_host([(name, records_of(topology())) for name in names])
    assert sorted(found) == sorted(hosts)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("nvidia-smi\nroot@gpu-07:~# nvidia-smi topo -m\n" + topology(), ["smi_topo"]),
        ("the GPU0 is fine, and ibstat says nothing\n", []),
        ("Epoch 1 step 20 loss 0.3\nGPU memory 12 GiB\n", []),
        ("name, age\nann, 3\n", []),
        ("#!/bin/bash\nnvidia-smi -q > out.txt\n", []),
    ],
)
def test_prose_is_not_taken_for_the_output_of_a_tool(text: str, kinds: list[str]) -> None:
    found = [part.kind for part in parts_of(text) if records_of(text)[0].refusal is None]
    assert found == kinds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("0001:00:00.0", "0001:00:00.0"),
        ("3b:00", "0000:3b:00.0"),
        ("gpu", None),
        ("", None),
    ],
)
def test_bus_ids_have_one_form(text: str, expected: str | None) -> None:
    assert bus_id_of(text) == expected


@pytest.mark.parametrize(
    ("text", "number"),
    [("16x", 16), ("-2 C", -2), ("0x10", 16), ("N/A", None), ("", None), ("9" * 30, None), ("P0", None)],
)
def test_numbers_are_read_with_their_unit(text: str, number: int | None) -> None:
    assert integer(text) == number


@pytest.mark.parametrize(("driver", "cuda"), [("550.90.12", 12040), ("470.82.01", 11040), ("999.1", None), ("x", None)])
def test_a_driver_branch_supports_a_cuda_version(driver: str, cuda: int | None) -> None:
    assert cuda_of_driver(driver) == cuda


@pytest.mark.parametrize("name", TEXTS)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_text_makes_no_reader_fail(name: str, data: st.DataObject) -> None:
    text = TEXTS[name]
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, max(len(text) - 1, 0)))
        size = data.draw(st.sampled_from([0, 1, 3, 40, 400]))
        put = data.draw(
            st.one_of(
                st.text(max_size=6), st.sampled_from(["\n", "|", ":", "N/A", '<gpu id="', "GPU 9: ", "9" * 40, "\0"])
            )
        )
        text = text[:at] + put + text[at + size :]
    started = time.monotonic()
    records = records_of(text)
    for host, own in by_host([("file", [record for record in records if record.refusal is None])]).items():
        machine = facts_of(host, own)
        machine.guarded(Reads())
        assert all(place.line >= 1 for place in machine.places.values())
    assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize(
    "unit", ["\n", " ", "|", "=", "[", "{", "<gpu>", "GPU 0: ", "A: ", "0000:", "a=1\n", "CA '", "-8 ", "\t", '{"a":']
)
def test_long_runs_take_linear_time(unit: str) -> None:
    started = time.monotonic()
    for head in (
        "",
        "==============NVSMI LOG==============\n",
        "<nvidia_smi_log>\n",
        "| Diagnostic | Result |\n",
        '{"DCGM Diagnostic": ',
    ):
        records_of(head + unit * (200_000 // len(unit)))
    assert time.monotonic() - started < 5 * SECONDS


def test_a_kernel_log_of_some_megabytes_is_searched_in_seconds() -> None:
    line = "Jan  5 10:11:12 gpu-07 kernel: [12345.678] something ordinary happened in device 0000:3b:00.0 value=12\n"
    started = time.monotonic()
    assert records_of(line * 40_000) == ()
    assert time.monotonic() - started < 5 * SECONDS
