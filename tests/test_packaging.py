"""The wheel: installs into a fresh environment and into one that has torch, and never installs or changes torch."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.packaging


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT))
    (built,) = folder.glob("ddpdoctor-*.whl")
    return built


def _run(*argv: str, code: int = 0) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"{argv}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _would_install(wheel: Path, *options: str) -> set[str]:
    """The distributions that pip would install in addition."""
    plan = _run(sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--report", "-", *options, str(wheel))
    return {item["metadata"]["name"].lower() for item in json.loads(plan)["install"]}


def test_the_wheel_holds_the_package_the_schema_and_the_licence_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "ddpdoctor/render/report.schema.json" in names
    assert "ddpdoctor/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"ddpdoctor"}


def test_a_fresh_environment_gets_no_torch(wheel: Path) -> None:
    wanted = _would_install(wheel, "--ignore-installed")
    assert "ddpdoctor" in wanted
    assert not {name for name in wanted if name.startswith(("torch", "nvidia-cu", "nvidia-nccl", "triton"))}


@pytest.mark.torch
def test_an_environment_with_a_torch_keeps_it_as_it_is(wheel: Path) -> None:
    wanted = _would_install(wheel, "--force-reinstall", "--no-deps")
    assert wanted == {"ddpdoctor"}
    assert "torch" not in _would_install(wheel)


@pytest.mark.torch
def test_the_extra_is_satisfied_by_the_torch_that_is_there(wheel: Path) -> None:
    plan = _run(
        sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--report", "-", f"ddpdoctor[torch] @ file://{wheel}"
    )
    assert "torch" not in {item["metadata"]["name"].lower() for item in json.loads(plan)["install"]}


def test_the_installed_command_works_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    _run(python, "-m", "pip", "install", "-q", str(wheel))
    command = str(tmp_path / "env" / "bin" / "ddpdoctor")
    assert _run(command, "--version").startswith("ddpdoctor ")
    report = json.loads(_run(command, "check", "--format", "json", "--fail-on", "never"))
    assert report["schema"] == "ddpdoctor.report/1"
    assert not report["crashed"]
    assert {s["code"] for s in report["skipped"] if s["code"].startswith("PROBE")}, (
        "without torch no probe can have passed"
    )
