"""The tables of `gpus` and `topo`: whole at every width, and unknown is said in words."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from machines import machine

from ddpdoctor.cli.screens import gpus, topo
from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.topo import GpuNode, Link, Pair, Topo

EIGHT = ("h100x8_sxm_healthy", "a100x8_nvlink_down")


@pytest.mark.parametrize("name", EIGHT)
@pytest.mark.parametrize("width", [40, 80, 100])
def test_every_gpu_has_one_line_that_fits(name: str, width: int) -> None:
    lines = gpus.draw(machine(name), width=width, colour=False).splitlines()
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines[-8:]] == [str(i) for i in range(8)]


def test_the_matrix_of_a_pipe_has_one_line_a_gpu() -> None:
    lines = topo.draw(machine("v100x16_dgx2"), width=100, colour=False).splitlines()
    assert lines[0].split("\t")[:17] == ["", *(f"GPU{i}" for i in range(16))]
    assert [line.split("\t")[0] for line in lines[1:17]] == [f"GPU{i}" for i in range(16)]


@pytest.mark.parametrize("name", ["v100x16_dgx2", "h100x8_sxm_healthy", "gb200x4_tray"])
@pytest.mark.parametrize("width", [40, 80, 100])
def test_the_matrix_fits_a_terminal(name: str, width: int) -> None:
    shown = re.sub(r"\033\[\d+m", "", topo.draw(machine(name), width=width, colour=True))
    assert max(map(len, shown.splitlines())) <= width
    facts = machine(name)
    assert facts.topo is not None
    whole = dict.fromkeys((f"GPU{g.index}" for g in facts.topo.gpus), "")
    for line in shown.partition("\n\nLegend")[0].splitlines():
        first, _, rest = line.partition(" ")
        if first in whole:
            whole[first] += f" {rest}"
    for gpu, cells in zip(facts.topo.gpus, facts.topo.matrix(), strict=False):
        assert whole[f"GPU{gpu.index}"].split() == [
            *cells,
            gpu.cpu_affinity or "N/A",
            gpu.numa_affinity or "N/A",
            "N/A" if gpu.gpu_numa_id is None else str(gpu.gpu_numa_id),
        ]


def test_a_terminal_gets_colours_and_narrow_columns() -> None:
    facts = machine("h100x8_fm_down")
    plain, coloured = (topo.draw(facts, width=200, colour=colour) for colour in (False, True))
    assert "\033" not in plain
    row = next(line for line in coloured.splitlines() if line.startswith("GPU0"))
    assert "\033[32mNV18" in row
    assert (
        re.sub(r"\033\[\d+m", "", row).split() == next(x for x in plain.splitlines() if x.startswith("GPU0\t ")).split()
    )


def _of_two(first: int, second: int) -> Facts:
    """Two GPUs whose links end at switches, with these numbers of active links, and whose peer access over NVLink is refused."""
    gpus = tuple(
        GpuNode(index, bus_id=f"0000:{index}b:00.0", cpu_affinity="0-31", numa_affinity="0", links=links)
        for index, count in enumerate((first, second))
        for links in [tuple(Link(i, is_active=True, remote="switch") for i in range(count))]
    )
    facts = machine("h100x8_sxm_healthy")
    return replace(facts, topo=Topo(gpus=gpus, pairs=(Pair(0, 1, level=50, nvlink="NS"),)))


def test_a_pipe_gets_what_nvidia_smi_prints() -> None:
    shown = topo.draw(_of_two(10, 12), width=100, colour=False).splitlines()[:3]
    assert shown == [
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID",
        "GPU0\t X \tNV10\t0-31\t0\t\tN/A",
        "GPU1\tNV12\t X \t0-31\t0\t\tN/A",
    ]


def test_refused_peer_access_does_not_change_the_label_but_the_path_that_is_used() -> None:
    facts = _of_two(12, 12)
    assert facts.topo is not None
    assert facts.topo.matrix() == (("X", "NV12"), ("NV12", "X"))
    assert facts.topo.matrix(is_usable=True) == (("X", "SYS"), ("SYS", "X"))


def test_one_gpu_has_a_matrix() -> None:
    assert topo.draw(machine("t4x1_vm"), width=100, colour=False).splitlines()[1].split() == [
        "GPU0",
        "X",
        "N/A",
        "N/A",
        "N/A",
    ]


def test_links_are_told_with_state_version_speed_end_and_errors() -> None:
    shown = topo.draw(machine("a100x8_nvlink_down"), width=100, colour=False)
    assert "of GPU 0-4, 6-7: links 0-11 up, NVLink 3.0, 25.0 GB/s, to an NVSwitch, 0 new errors" in shown
    assert "of GPU 5: links 0-11 down" in shown
    assert "expected of NVIDIA A100-SXM4-80GB: 12 links, 25.0 GB/s each, 300 GB/s one way" in shown
    assert "read OK, write OK, NVLink NS: GPU 0-5" in shown


@pytest.mark.parametrize(
    ("name", "environ", "expected"),
    [
        ("h100x8_sxm_healthy", {}, "NVLink (NVL): all 28 pairs"),
        (
            "h100x8_sxm_healthy",
            {"NCCL_P2P_DISABLE": "1"},
            "host memory (NVL): all 28 pairs; surprising: NVLink connects them, but a setting",
        ),
        (
            "h100x8_sxm_healthy",
            {"NCCL_P2P_LEVEL": "LOC", "NCCL_SHM_DISABLE": "1"},
            "the network card (NVL): all 28 pairs; surprising",
        ),
        ("h100x8_sxm_healthy", {"CUDA_VISIBLE_DEVICES": "3,5"}, "NVLink (NVL): ranks 0-1"),
        (
            "h100x8_fm_down",
            {},
            "host memory (NVL): all 28 pairs; surprising: NVLink connects them, but NVML reports NS",
        ),
        (
            "a100x8_nvlink_down",
            {},
            "host memory (SYS): ranks 0-5, 1-5, 2-5, 3-5, 5-6, 5-7; surprising: the other pairs have NVLink",
        ),
        ("rtx4090x4_pcie", {}, "host memory (PHB): all 6 pairs"),
        ("v100x8_driver535", {}, "NVLink through another GPU (NVB): ranks"),
    ],
)
def test_the_ways_that_nccl_would_take_between_local_ranks(name: str, environ: dict[str, str], expected: str) -> None:
    lines = topo.draw(machine(name, {"environ": {"variables": environ}}), width=100, colour=False).splitlines()
    assert any(expected in line for line in lines), lines[-6:]


def test_a_gpu_is_shown_with_its_ordinal_and_its_local_rank() -> None:
    patch = {"environ": {"variables": {"CUDA_VISIBLE_DEVICES": "2,0", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}}}
    rows = gpus.draw(machine("h100x8_sxm_healthy", patch), width=100, colour=False).splitlines()
    rows = rows[next(at for at, row in enumerate(rows) if row.startswith("GPU CUDA")) + 1 :]
    assert [row.split()[:4] for row in rows[:3]] == [
        ["0", "1", "-", "nvidia0"],
        ["1", "-", "-", "nvidia1"],
        ["2", "0", "0", "nvidia2"],
    ]


def test_what_nvml_does_not_tell_is_said_in_words() -> None:
    patch = {"gpu": {"gaps": [], "devices": [{"index": 0, "uuid": "GPU-a", "absent": {"minor": "NO_PERMISSION"}}]}}
    shown = gpus.draw(machine("cpu_vm", patch), width=100, colour=False)
    assert "needs root" in next(line for line in shown.splitlines() if line.startswith("0 "))


def test_how_a_gpu_is_comes_with_the_words_for_what_is_not_told() -> None:
    absent = {
        "temperature_celsius": "NO_PERMISSION",
        "power_usage_mw": "NOT_SUPPORTED",
        "sm_clock_mhz": "FUNCTION_NOT_FOUND",
    }
    told = {"ecc_corrected_volatile": 3, "ecc_uncorrected_volatile": 0, "clock_event_reasons": 0x48}
    patch = {"gpu": {"gaps": [], "devices": [{"index": 0, "uuid": "GPU-a", "absent": absent, **told}]}}
    row = gpus.draw(machine("cpu_vm", patch), width=100, colour=False).splitlines()[-1]
    for word in ("needs root", "n/a", "driver too old", "3+0", "heat"):
        assert word in row


def test_a_lost_gpu_is_shown_as_lost() -> None:
    patch = {"gpu": {"gaps": [], "devices": [{"index": 0, "absent": {"handle": "GPU_IS_LOST"}}]}}
    assert "GPU is lost" in gpus.draw(machine("cpu_vm", patch), width=80, colour=False)


def test_other_accelerators_are_named_and_not_judged() -> None:
    patch = {"gpu": {"other_accelerators": ["AMD GPU 74a1 at 0000:03:00.0"]}}
    text = gpus.draw(machine("cpu_vm", patch), width=100, colour=False)
    assert "AMD GPU 74a1 at 0000:03:00.0: not judged by ddpdoctor" in text


def test_the_driver_s_faults_come_with_the_word_of_what_to_do() -> None:
    shown = gpus.draw(machine("a100x8_row_remap_failure"), width=100, colour=False)
    assert "Xid 64 on GPU 3, 10 min ago: reset the GPU; replace the card if it persists" in shown


def test_a_log_that_only_root_may_read_is_said_to_be_unknown() -> None:
    gap = {"path": "gpu.xids", "reason": "needs root", "why": "needs_root"}
    shown = gpus.draw(machine("h200x1_vm", {"gpu": {"xids": None, "gaps": [gap]}}), width=100, colour=False)
    assert "driver's faults: needs root" in shown


def test_a_board_of_a_rack_is_shown_with_its_place_and_a_divided_gpu_with_what_decides() -> None:
    assert "rack: chassis 1820325191045, slot 11, tray 6" in gpus.draw(machine("gb200x4_tray"), width=100, colour=False)
    assert "a process gets the one instance" in gpus.draw(machine("a100x8_mig"), width=120, colour=False)


@pytest.mark.parametrize(
    ("vendor", "way"), [("AuthenticAMD", "PCIe peer-to-peer (SYS)"), ("GenuineIntel", "host memory")]
)
def test_nccl_lets_two_gpus_of_an_amd_machine_reach_each_other_over_any_distance(vendor: str, way: str) -> None:
    patch = {"topo": {"cpu_vendor": vendor}, "environ": {"variables": {}}}
    assert way in topo.draw(machine("l40sx2_cross_numa", patch), width=100, colour=False)
