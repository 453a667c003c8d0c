"""NVML as a command line meets it: a library that answers, fails, is missing, or never returns."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes import library

from ddpdoctor.collectors import collect
from ddpdoctor.facts.gaps import Why
from ddpdoctor.facts.record import Facts
from ddpdoctor.system.machine import Deadline, Machine, Root

CODE = re.compile(r"\b(?:HANDLE|G|guard)\(\"?(nvml\w+)\"?\)|(?:ONE|INDEXED)\((nvml\w+),")
FUNCTIONS = sorted({a or b for a, b in CODE.findall((Path(library.__file__).parent / "nvml.c").read_text())})


class Libraries(dict[str, Path]):
    """The library of each profile, compiled when it is first asked for."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        super().__init__()
        self.folders = folders

    def __missing__(self, name: str) -> Path:
        self[name] = library.build(library.profile(name), self.folders.mktemp(name))
        return self[name]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    return Libraries(tmp_path_factory)


def look(folder: Path, *, seconds: float = 30.0, **environ: str) -> Facts:
    known = {**os.environ, "LD_LIBRARY_PATH": str(folder), **environ}
    return collect(Machine(environ=known, deadline=Deadline(seconds)), ("gpu", "topo"))


def ddpdoctor(*words: str, folder: Path | None, **environ: str) -> subprocess.CompletedProcess[str]:
    path = {} if folder is None else {"LD_LIBRARY_PATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", "ddpdoctor", *words],
        env={**os.environ, **path, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_machine_without_nvidia_says_so_and_starts_no_process(tmp_path: Path) -> None:
    for folder in ("proc/1", "sys/module", "dev/shm"):
        (tmp_path / folder).mkdir(parents=True)
    facts = collect(Machine(root=Root(str(tmp_path)), environ={}), ("gpu", "topo"))
    assert facts.gpu is not None
    assert facts.gpu.nvml_error == "LIBRARY_NOT_FOUND"
    assert {g.why for g in facts.gpu.gaps} == {Why.NOT_HERE}
    assert "no NVIDIA GPU" in facts.gpu.gaps[0].reason


def test_amd_and_intel_accelerators_are_named_and_an_integrated_display_is_not(tmp_path: Path) -> None:
    for bus_id, vendor, kind in (
        ("0000:03:00.0", "0x1002", "0x038000"),
        ("0000:04:00.0", "0x8086", "0x038000"),
        ("0000:00:02.0", "0x8086", "0x030000"),
    ):
        place = tmp_path / "sys/bus/pci/devices" / bus_id
        place.mkdir(parents=True)
        for name, value in (("vendor", vendor), ("class", kind), ("device", "0x74a1")):
            (place / name).write_text(value + "\n")
    facts = collect(Machine(root=Root(str(tmp_path)), environ={}), ("gpu",))
    assert facts.gpu is not None
    assert [w.split()[0] for w in facts.gpu.other_accelerators] == ["Intel", "AMD"] or [
        w.split()[0] for w in facts.gpu.other_accelerators
    ] == ["AMD", "Intel"]


OFTEN = ("h100x8_sxm_healthy", "l40sx2_cross_numa", "h200x1_vm", "no_driver")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(p.stem, marks=() if p.stem in OFTEN else pytest.mark.slow)
        for p in sorted(library.PROFILES.glob("*.json"))
    ],
)
def test_the_collector_still_says_what_the_recorded_machine_says(name: str, libraries: Libraries) -> None:
    facts = look(libraries[name])
    recorded = json.loads((library.PROFILES.parent / "machines" / name / "gpu.json").read_text())
    assert facts.gpu is not None
    assert [d.uuid for d in facts.gpu.devices] == [d["uuid"] for d in recorded.get("devices", [])]
    assert facts.gpu.nvml_error == recorded.get("nvml_error")


@pytest.mark.parametrize(
    ("code", "words", "exit_code"),
    [
        (4, "no permission", 0),
        (9, "not loaded", 0),  # the machine has no NVIDIA PCI device
        (18, "different versions", 1),
        (999, "nvmlInit failed: UNKNOWN", 0),
        (4711, "nvmlInit failed: CODE_4711", 0),
    ],
)
def test_an_init_error_is_one_clear_line(code: int, words: str, exit_code: int, libraries: Libraries) -> None:
    done = ddpdoctor("gpus", folder=libraries["h200x1_vm"], FAKE_NVML_FAIL=f"nvmlInit_v2={code}")
    assert words in done.stdout
    assert "pass: " not in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == exit_code


def test_a_wedged_call_is_named_and_leaves_no_process(libraries: Libraries) -> None:
    begin = time.monotonic()
    done = ddpdoctor("gpus", "--timeout", "10", folder=libraries["h200x1_vm"], FAKE_NVML_HANG="nvmlDeviceGetName")
    assert time.monotonic() - begin < 40  # seconds of a loaded machine; the command was given 10
    assert "NVML timed out after" in done.stdout
    assert "nvmlDeviceGetName" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert not _children_that_ask(libraries["h200x1_vm"])


def _children_that_ask(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            if b"ddpdoctor.collectors.nvml" in words and str(folder).encode() in (process / "environ").read_bytes():
                found.append(process.name)
        except OSError:
            continue  # it ended while we looked
    return found


@pytest.mark.parametrize("code", [3, 4, 13, 15, 16, 25, 999, 4711])
def test_any_function_may_fail_alone(code: int, libraries: Libraries) -> None:
    for function in ("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetP2PStatus", "nvmlDeviceGetMemoryInfo_v2"):
        facts = look(libraries["l40sx2_cross_numa"], FAKE_NVML_FAIL=f"{function}={code}")
        assert facts.gpu is not None
        assert facts.topo is not None
        assert [d.minor for d in facts.gpu.devices] == [0, 1]
        assert not facts.gaps
    device = look(libraries["l40sx2_cross_numa"], FAKE_NVML_FAIL=f"nvmlDeviceGetTotalEccErrors={code}").gpu
    assert device is not None
    assert device.devices[0].ecc_uncorrected_volatile is None
    assert device.devices[0].absent["ecc_uncorrected_volatile"] not in ("", "0", "OK")


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_may_fail_with_one_code_or_another(function: str, libraries: Libraries) -> None:
    """Through the C library with one code each; with every code through the object below pynvml, which is quicker."""
    code = (3, 4, 13, 15, 16, 25, 999)[FUNCTIONS.index(function) % 7]
    facts = look(libraries["l40sx2_cross_numa"], FAKE_NVML_FAIL=f"{function}={code}")
    assert facts.gpu is not None
    assert not facts.gaps
    assert not [g for g in facts.gpu.gaps if "ended with" in g.reason], facts.gpu.gaps


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_may_hang(function: str, libraries: Libraries) -> None:
    begin = time.monotonic()
    look(libraries["h200x1_vm"])
    usual = time.monotonic() - begin
    facts = look(libraries["h200x1_vm"], seconds=3 * usual, FAKE_NVML_HANG=function)
    assert facts.gpu is not None
    assert facts.topo is not None
    for gap in (facts.gpu.gap("nvml"), facts.topo.gap("gpus")):
        assert gap is None or "NVML timed out after" in gap.reason
    assert not _children_that_ask(libraries["h200x1_vm"])


def test_memory_of_an_old_driver_is_read_with_its_reserved_part_unknown(libraries: Libraries) -> None:
    facts = look(libraries["h200x1_vm"], FAKE_NVML_FAIL="nvmlDeviceGetMemoryInfo_v2=13")
    assert facts.gpu is not None
    device = facts.gpu.devices[0]
    assert device.memory_used_bytes == 629145600
    assert device.memory_reserved_bytes is None
    assert device.says("memory_reserved_bytes") == "driver too old"


def test_topo_prints_one_whole_line_a_gpu_in_a_pipe(libraries: Libraries) -> None:
    done = ddpdoctor("topo", folder=libraries["h100x8_sxm_healthy"], COLUMNS="40")
    lines = done.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("\tGPU0"))
    assert lines[start].split()[:8] == [f"GPU{i}" for i in range(8)]
    for i, line in enumerate(lines[start + 1 : start + 9]):
        cells = line.split()
        assert cells[0] == f"GPU{i}"
        assert cells[1:9] == ["X" if i == j else "NV18" for j in range(8)]
        assert cells[-3:] == (["0-55,112-167", "0", "N/A"] if i < 4 else ["56-111,168-223", "1", "N/A"])
    assert done.returncode == 0


def test_check_finds_the_fault_on_its_gpu(libraries: Libraries) -> None:
    done = ddpdoctor(
        "check", "--no-probe", "--select", "GPU,TOPO", "--format", "json", folder=libraries["a100x8_nvlink_down"]
    )
    report = json.loads(done.stdout)
    assert [(f["code"], f["where"]["gpu"]) for f in report["findings"]] == [("TOPO011", 5)]
    assert done.returncode == 1
    assert not report["crashed"]


def test_gpus_says_what_cuda_visible_devices_does(libraries: Libraries) -> None:
    done = ddpdoctor("gpus", folder=libraries["h100x8_sxm_healthy"], CUDA_VISIBLE_DEVICES="2,9,0")
    assert "the list ends at 9 (this node has no GPU 9): 1 of 8 GPUs visible" in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith("2 "))
    assert row.split()[:4] == ["2", "0", "0", "nvidia2"]
