"""NVIDIA's own nvidia-smi and libnvidia-ml, from Debian's non-free packages, on a machine without the driver."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import doctor

from ddpdoctor.tool_output.smi_fields import FIELDS, SUMS

pytestmark = pytest.mark.slow
CONTROL = Path("/dev/nvidiactl")
SECONDS = 120
NEWER = ("gpu recovery action", "event counters/", "ecc errors/", "fb memory usage/")
"""Labels that drivers after 535, Debian's, print for the first time."""


@contextlib.contextmanager
def _without_leftovers() -> Iterator[None]:
    """Remove the device node that NVIDIA's library makes as root, if it was not there before."""
    was_there = CONTROL.exists()
    try:
        yield
    finally:
        if not was_there and CONTROL.exists():
            CONTROL.unlink()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the packages were unpacked, with apt's own configuration plus the component non-free."""
    folder = tmp_path_factory.mktemp("nvidia")
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)"], capture_output=True, text=True
    )
    sites = [line.split() for line in listed.stdout.splitlines() if "debian" in line and "security" not in line]
    if not sites:
        pytest.skip("apt knows no archive of Debian here")
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    site, release = sites[0][0], sites[0][1].partition("-")[0]
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (folder / "sources.list").write_text(f"deb [signed-by={key}] {site} {release} main contrib non-free\n")
    options = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    for command in (["update"], ["download", "nvidia-smi", "libnvidia-ml1"]):
        done = subprocess.run(
            ["apt-get", *words, *command], cwd=folder, capture_output=True, text=True, timeout=SECONDS
        )
        if done.returncode:
            pytest.skip(f"Debian's non-free packages cannot be reached: {done.stderr.strip()[-200:]}")
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True, timeout=SECONDS)
    return folder


@pytest.fixture(scope="module")
def smi(packages: Path) -> tuple[str, dict[str, str]]:
    """The program, and an environment in which it finds its library."""
    (program,) = [path for path in packages.rglob("nvidia-smi") if path.is_file() and os.access(path, os.X_OK)]
    (library,) = packages.rglob("libnvidia-ml.so.1")
    return str(program), {"LD_LIBRARY_PATH": str(library.parent), "PATH": os.environ["PATH"]}


@pytest.mark.parametrize("words", [(), ("-q",), ("-q", "-x"), ("topo", "-m"), ("--query-gpu=name", "--format=csv")])
def test_what_nvidia_smi_prints_without_a_driver_is_judged(
    smi: tuple[str, dict[str, str]], tmp_path: Path, words: tuple[str, ...]
) -> None:
    with _without_leftovers():
        done = subprocess.run([smi[0], *words], env=smi[1], capture_output=True, text=True, timeout=SECONDS)
    (tmp_path / "nvidia-smi.txt").write_text(done.stdout + done.stderr)
    report = json.loads(doctor("triage", "--format", "json", str(tmp_path / "nvidia-smi.txt")).stdout)
    assert report["verdict"] == "fail"
    assert [finding["code"] for finding in report["findings"]] == ["GPU002"]


def test_ddpdoctor_with_the_library_says_that_no_driver_is_loaded_and_leaves_no_device_node(
    smi: tuple[str, dict[str, str]],
) -> None:
    was_there = CONTROL.exists()
    with _without_leftovers():
        done = doctor("gpus", env={"LD_LIBRARY_PATH": smi[1]["LD_LIBRARY_PATH"]})
        assert CONTROL.exists() == was_there
    assert "driver is not loaded" in done.stdout


def test_nvidia_smi_prints_the_labels_that_we_read(smi: tuple[str, dict[str, str]]) -> None:
    """Short words are merged with longer strings by the compiler; the others stand in the program as they are printed."""
    strings = {text.decode().strip().lower() for text in re.findall(rb"[ -~]{4,}", Path(smi[0]).read_bytes())}
    labels = {path: path.rpartition("/")[2] for path in (*FIELDS, *SUMS) if not path.startswith(NEWER)}
    missing = {path for path, label in labels.items() if len(label) > 12 and label not in strings}
    assert missing == set()
