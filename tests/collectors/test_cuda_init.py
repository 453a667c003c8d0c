"""What CUDA itself answers, through a libcuda.so.1 of a few lines: its error, its multicast, and no answer at all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ddpdoctor.collectors import cuda_init
from ddpdoctor.facts.gaps import Gap
from ddpdoctor.system.machine import Machine, Root

SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int cuInit(unsigned flags) { const char *s = getenv("FAKE_CUDA"); if (!strcmp(s, "hang")) for (;;) pause(); return atoi(s); }
int cuDeviceGetCount(int *n) { *n = 3; return 0; }
int cuDeviceGetPCIBusId(char *s, int n, int d) { snprintf(s, n, "0000:%02X:00.0", 0x1b + d); return 0; }
int cuDeviceGetAttribute(int *has, int which, int d) { if (which != 132 || d == 2) return 1; *has = d == 0; return 0; }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cuda")
    (place / "cuda.c").write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "libcuda.so.1", "cuda.c"], cwd=place, check=True, timeout=60)
    return place


def ask(folder: Path, answer: str) -> tuple[int | None, dict[str, bool], tuple[Gap, ...]]:
    environ = {"LD_LIBRARY_PATH": str(folder), "FAKE_CUDA": answer, "CUDA_VISIBLE_DEVICES": ""}
    return cuda_init.cuda(Machine(root=Root(str(folder)), environ=environ))


def test_multicast_is_told_for_each_gpu_that_cuda_says_it_of(folder: Path) -> None:
    assert ask(folder, "0") == (0, {"0000:1b:00.0": True, "0000:1c:00.0": False}, ())


@pytest.mark.parametrize("code", [2, 100, 802, 999])
def test_an_error_of_cuinit_is_its_number(code: int, folder: Path) -> None:
    assert ask(folder, str(code)) == (code, {}, ())


def test_a_cuinit_that_hangs_is_no_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_init, "SECONDS", 0.3)
    assert ask(folder, "hang") == (None, {}, (Gap("gpu.cuda_error", "cuInit timed out after 0.3 s"),))


def test_without_the_library_nothing_is_started(tmp_path: Path) -> None:
    assert ask(tmp_path, "0") == (None, {}, ())
