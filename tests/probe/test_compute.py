"""The probe's compute phase on the CPU: its values are checked, its rates are reported, `--quick` leaves it out."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from commandline import environment

from ddpdoctor.probe.compute import checked_rates, is_wanted
from ddpdoctor.probe.errors import WrongValue

NAMES = {"gemm_tflops", "copy_gb_per_s", "to_gpu_gb_per_s", "from_gpu_gb_per_s"}


def _probe(*words: str, **more: str) -> dict[str, Any]:
    line = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "ddpdoctor.probe", "--hand-over"]
    command = [sys.executable, *line, *words]
    done = subprocess.run(
        command, env={**environment(), **more}, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    facts, _ = json.JSONDecoder().raw_decode(done.stdout)  # of the first rank; the other one prints its own after it
    return dict(facts.get("probe", facts))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("words", "switch", "expected"), [((), "on", NAMES), (("--quick",), "on", set()), ((), "", set())]
)
def test_each_rank_reports_its_rates(words: tuple[str, ...], switch: str, expected: set[str]) -> None:
    probe = _probe(*words, DDPDOCTOR_COMPUTE=switch)
    assert [set(rank.get("rates", {})) for rank in probe["ranks"]] == [expected, expected]
    assert all(rate > 0 for rank in probe["ranks"] for rate in rank.get("rates", {}).values())


@pytest.mark.parametrize(
    ("switch", "has_gpu", "expected"),
    [(None, True, True), (None, False, False), ("on", False, True), ("off", True, False), ("", True, True)],
)
def test_it_runs_on_gpus_unless_it_is_switched(switch: str | None, has_gpu: bool, expected: bool) -> None:
    assert is_wanted(switch, has_gpu) is expected


@pytest.mark.torch
@pytest.mark.parametrize("what", ["mm", "copy_"])
def test_a_wrong_element_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from ddpdoctor.probe.collectives import Stage

    def wrong_product(left: Any, right: Any, *, out: Any) -> Any:
        torch.matmul(left, right, out=out)
        out[17, 5] += 1
        return out

    def wrong_copy(self: Any, other: Any, non_blocking: bool = False) -> Any:
        self[...] = other
        self[-1] += 1
        return self

    stage = Stage(torch, torch.device("cpu"), 0, 1)
    if what == "mm":
        monkeypatch.setattr(torch, "mm", wrong_product)
    else:
        monkeypatch.setattr(torch.Tensor, "copy_", wrong_copy)
    with pytest.raises(WrongValue, match=r"a matrix product .* at element 17|a copy in device memory"):
        list(checked_rates(stage))
