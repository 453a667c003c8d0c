"""Two stand-ins for NVML that must agree, the mutations of one of them, and independent readers of the other."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest
from fakes import library
from fakes.ctypes_library import CtypesLibrary, HungError

from ddpdoctor.cli.screens.gpus import draw as draw_gpus
from ddpdoctor.cli.screens.topo import draw as draw_topo
from ddpdoctor.collectors import collect
from ddpdoctor.collectors.nvml import __main__ as asking
from ddpdoctor.collectors.nvml import results
from ddpdoctor.collectors.nvml.results import Answers
from ddpdoctor.engine import judge
from ddpdoctor.rules import Rule, load
from ddpdoctor.system.machine import Machine, Root
from ddpdoctor.system.process import Done, LateError

FULL = bool(os.environ.get("DDPDOCTOR_FULL"))
FEW = ("h100x8_fm_down", "v100x8_driver535", "gh200x1", "wsl_rtx3090", "no_driver")
PROFILES = sorted(p.stem for p in library.PROFILES.glob("*.json"))
CODES = (2, 3, 4, 13, 15, 16, 21, 25, 999, 4711)


def ask(fake: CtypesLibrary, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Answers:
    """What the child process would say, in this process, through pynvml and the object instead of the library."""
    monkeypatch.setattr(pynvml, "nvmlLib", fake)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(asking, "SAMPLE_SECONDS", 0.0)
    capfd.readouterr()
    asking.main()
    return results._fold(capfd.readouterr().out.encode())


def steady(found: Answers) -> tuple[dict[str, object], dict[str, object]]:
    """Without what differs from run to run."""
    facts = {subject: dict(said) for subject, said in found.facts.items() if subject != "?"}
    facts.get("node", {}).pop("sample_seconds", None)
    return facts, dict(found.codes)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FEW else pytest.mark.slow) for n in PROFILES])
def test_pynvml_reads_the_same_from_the_object_and_from_the_c_library(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    node = library.profile(name)
    folder = library.build(node, tmp_path)
    child = subprocess.run(
        [sys.executable, "-m", "ddpdoctor.collectors.nvml"],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        timeout=60,
        check=True,
    )
    ours = steady(ask(CtypesLibrary(node), monkeypatch, capfd))
    theirs = steady(results._fold(child.stdout))
    assert ours[0] == theirs[0]
    assert ours[1] == theirs[1]


@pytest.mark.parametrize(
    ("name", "codes"),
    [("l40sx2_cross_numa", CODES if FULL else (4, 13, 999)), ("h100x2_nvl", CODES if FULL else (4, 15))],
)
def test_every_function_with_every_code_costs_its_own_facts_only(
    name: str, codes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    node = library.profile(name)
    healthy = CtypesLibrary(node)
    whole, _ = steady(ask(healthy, monkeypatch, capfd))
    functions = sorted(
        set(healthy.calls) - {"nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"}
    )
    assert len(functions) > 40
    for function in functions:
        for code in codes:
            found = ask(CtypesLibrary(node, fail={function: code}), monkeypatch, capfd)
            told, _ = steady(found)
            lost = {(s, f) for s, facts in whole.items() for f in facts if f not in told.get(s, {})}
            said = {(s, f) for s, facts in found.codes.items() for f in facts}
            # A fact that is gone has a code in its place; links that end early have theirs under the GPU.
            links = {(s, f) for s, f in lost if " link " in s}
            assert lost - links <= said | {("0", "fabric"), ("1", "fabric")}, (function, code)
            wrong = {
                (s, f) for s, facts in told.items() for f in facts if facts[f] != whole.get(s, {}).get(f, facts[f])
            }
            assert {f for _, f in wrong} <= {"memory_used_bytes", "health_mask", "fabric"}, (function, code, wrong)


def test_functions_that_an_old_driver_lacks_are_told_as_such(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    missing = ("nvmlDeviceGetMarginTemperature", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetMemoryInfo_v2")
    found = ask(CtypesLibrary(library.profile("h100x2_nvl"), missing=missing), monkeypatch, capfd)
    assert found.codes["0"]["temperature_margin_celsius"] == "FUNCTION_NOT_FOUND"
    assert found.codes["0"]["memory_reserved_bytes"] == "FUNCTION_NOT_FOUND"
    assert found.facts["0"]["memory_total_bytes"] == library.profile("h100x2_nvl")["gpus"][0]["memory"]["total"]


GPUSTAT = """
import gpustat
for gpu in gpustat.GPUStatCollection.new_query():
    print(gpu.index, gpu.uuid, gpu.name, gpu.memory_total, gpu.temperature, gpu.power_limit, sep="|")
"""
NVITOP = """
from nvitop import Device
for gpu in Device.all():
    print(gpu.index, gpu.uuid(), gpu.name(), gpu.memory_total() >> 20, gpu.temperature(), gpu.power_limit() // 1000, sep="|")
"""


@pytest.mark.parametrize(("witness", "script"), [("gpustat", GPUSTAT), ("nvitop", NVITOP)])
@pytest.mark.parametrize("name", ["h100x8_sxm_healthy", "rtx4090x4_pcie"])
def test_other_programs_read_from_the_c_library_what_we_read(
    witness: str, script: str, name: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec(witness) is None:
        pytest.skip(f"{witness} is not installed")
    folder = library.build(library.profile(name), tmp_path)
    environ = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    gpu = collect(Machine(environ=environ), ("gpu",)).gpu
    assert gpu is not None
    ours = [
        f"{d.index}|{d.uuid}|{d.name}|{(d.memory_total_bytes or 0) >> 20}|{d.temperature_celsius}|"
        f"{(d.power_limit_mw or 0) // 1000}"
        for d in gpu.devices
    ]
    assert done.stdout.split("\n")[:-1] == ours


@pytest.mark.parametrize("codes", [(3, 4, 13, 15, 16, 25, 999) if FULL else (999,)])
def test_a_healthy_node_stays_healthy_whichever_question_fails(
    codes: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    node, rules = library.profile("h100x2_nvl"), load(("gpu", "topo"))
    whole = CtypesLibrary(node)
    usual = _judged(ask(whole, monkeypatch, capfd), tmp_path, rules)
    for function in sorted(set(whole.calls) - {"nvmlInitWithFlags", "nvmlDeviceGetCount_v2"}):
        for code in codes:
            found = _judged(ask(CtypesLibrary(node, fail={function: code}), monkeypatch, capfd), tmp_path, rules)
            allowed = {15: {"GPU007"}, 16: {"GPU008"}}.get(code, set())
            if function == "nvmlDeviceGetHandleByIndex_v2":
                allowed |= {"GPU004"}
            assert found - usual <= allowed, (function, code)


@pytest.mark.parametrize(
    "name",
    ["h100x2_nvl", *(pytest.param(n, marks=pytest.mark.slow) for n in ("l40sx2_cross_numa", "a100x4_sxm_direct"))],
)
def test_a_hang_in_any_function_is_named_and_what_came_before_it_is_kept(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    node, rules = library.profile(name), load(("gpu", "topo"))
    whole = CtypesLibrary(node)
    usual = _judged(ask(whole, monkeypatch, capfd), tmp_path, rules)
    monkeypatch.setattr(results, "_is_installed", lambda machine: True)
    for function in sorted(set(whole.calls)):

        def run(*_: object, hangs: str = function, **__: object) -> Done:
            try:
                ask(CtypesLibrary(node, hang=hangs), monkeypatch, capfd)
            except HungError:
                raise LateError("python", 0.3, capfd.readouterr().out.encode()) from None
            pytest.fail(f"{hangs} was not called")

        monkeypatch.setattr(results, "run", run)
        facts = collect(Machine(root=Root(str(tmp_path))), ("environ", "gpu", "topo"))
        assert facts.gpu is not None
        assert facts.topo is not None
        for gap in (facts.gpu.gap("nvml"), facts.topo.gap("gpus")):
            assert gap is not None
            assert function.removesuffix("_v2").removesuffix("_v3").removesuffix("WithFlags") in gap.reason
        outcome = judge(facts, rules)
        assert not outcome.crashed
        assert {finding.code for finding in outcome.findings} <= usual, function
        assert draw_gpus(facts, width=100, colour=False)
        assert draw_topo(facts, width=100, colour=False)


def _judged(found: Answers, root: Path, rules: tuple[Rule, ...]) -> set[str]:
    machine = Machine(root=Root(str(root)))
    machine.once("nvml", lambda: found)
    outcome = judge(collect(machine, ("environ", "gpu", "topo")), rules)
    assert not outcome.crashed
    return {finding.code for finding in outcome.findings}
