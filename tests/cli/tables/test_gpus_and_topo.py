"""The tables of `gpus` and `topo`: whole at every width, and unknown is said in words."""

from __future__ import annotations

import pytest
from machines import machine

from ddpdoctor.cli.tables import gpus, topo

EIGHT = ("h100x8_sxm_healthy", "a100x8_nvlink_down")


@pytest.mark.parametrize("name", EIGHT)
@pytest.mark.parametrize("width", [40, 80, 100])
def test_every_gpu_has_one_line_that_fits(name: str, width: int) -> None:
    lines = gpus.draw(machine(name), width=width, colour=False).splitlines()
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines[-8:]] == [str(i) for i in range(8)]


def test_the_matrix_is_the_same_at_every_width() -> None:
    facts = machine("h100x8_sxm_healthy")
    assert topo.draw(facts, width=40, colour=False) == topo.draw(facts, width=100, colour=True)


def test_what_nvml_does_not_tell_is_said_in_words() -> None:
    patch = {"gpu": {"gaps": [], "devices": [{"index": 0, "uuid": "GPU-a", "absent": {"minor": "NO_PERMISSION"}}]}}
    row = gpus.draw(machine("cpu_vm", patch), width=100, colour=False).splitlines()[-1]
    assert "needs root" in row


def test_a_lost_gpu_is_shown_as_lost() -> None:
    patch = {"gpu": {"gaps": [], "devices": [{"index": 0, "absent": {"handle": "GPU_IS_LOST"}}]}}
    assert "GPU is lost" in gpus.draw(machine("cpu_vm", patch), width=80, colour=False)


def test_other_accelerators_are_named_and_not_judged() -> None:
    patch = {"gpu": {"other_accelerators": ["AMD GPU 74a1 at 0000:03:00.0"]}}
    text = gpus.draw(machine("cpu_vm", patch), width=100, colour=False)
    assert "AMD GPU 74a1 at 0000:03:00.0: not judged by ddpdoctor" in text


def test_the_driver_s_faults_come_with_the_word_of_what_to_do() -> None:
    shown = gpus.draw(machine("a100x8_row_remap_failure"), width=100, colour=False)
    assert "Xid 64 on GPU 3, 0.2 h ago: reset the GPU; replace the card if it stays" in shown


def test_a_log_that_only_root_may_read_is_said_to_be_unknown() -> None:
    gap = {"path": "gpu.xids", "reason": "the kernel's log: needs root", "why": "needs_root"}
    shown = gpus.draw(machine("h200x1_vm", {"gpu": {"xids": None, "gaps": [gap]}}), width=100, colour=False)
    assert "driver's faults: the kernel's log: needs root" in shown
