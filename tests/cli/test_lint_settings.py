"""Variables that a launch line sets, corrected in the line itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commandline import doctor, inside


def findings(cwd: Path, *words: str, env: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
    (cwd / "train.py").write_text("import torch\n")
    command = ("lint", "--format", "json", "--", *words)
    done = inside(*command, cwd=cwd) if env is None else doctor(*command, cwd=cwd, env=env)
    assert done.returncode in (0, 1), done.stderr
    return {f["code"]: f for f in json.loads(done.stdout)["findings"]}


@pytest.mark.parametrize(
    ("word", "code", "right"),
    [
        ("NCCL_SHM_DISABLE=1", "ENV033", ""),
        ("NCCL_IB_DISABLE=true", "ENV051", "NCCL_IB_DISABLE=1 "),
        ("NCLL_DEBUG=INFO", "ENV050", "NCCL_DEBUG=INFO "),
        ("CUDA_VISIBLE_DEVICE=0,1", "ENV510", "CUDA_VISIBLE_DEVICES=0,1 "),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "ENV052", ""),
    ],
)
def test_the_line_is_corrected(tmp_path: Path, word: str, code: str, right: str) -> None:
    found = findings(tmp_path, "OMP_NUM_THREADS=4", word, "torchrun", "--nproc_per_node=2", "train.py")
    assert found[code]["fix_command"] == f"OMP_NUM_THREADS=4 {right}torchrun --nproc_per_node=2 train.py"
    assert found[code]["where"]["column"] == 19


def test_a_variable_of_the_shell_is_corrected_in_the_shell(tmp_path: Path) -> None:
    found = findings(tmp_path, "torchrun", "train.py", env={"NCCL_SHM_DISABLE": "1"})
    assert found["ENV033"]["fix_command"] == "unset NCCL_SHM_DISABLE"


def test_the_value_of_an_option_is_not_taken_from_it(tmp_path: Path) -> None:
    words = ["mpirun", "-np", "2", "-x", "NCCL_SHM_DISABLE=1", "-x", "NCCL_IB_DISABLE=yes", "python", "train.py"]
    found = findings(tmp_path, *words)
    assert found["ENV033"]["fix_command"] == "unset NCCL_SHM_DISABLE"
    assert found["ENV051"]["fix_command"] == " ".join(words).replace("yes", "1")


def test_another_variable_that_helps_is_not_put_in_its_place(tmp_path: Path) -> None:
    words = ["NCCL_DEBUG=INFO", "torchrun", "--nnodes=16", "--nproc_per_node=8", "--node_rank=0", "train.py"]
    found = findings(tmp_path, *words)
    assert found["ENV038"]["fix_command"] == "export NCCL_DEBUG_FILE=nccl.%h.%p.log"
