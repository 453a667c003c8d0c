"""Ranks that are set up in different ways: every rank tells which one differs, in what.

Not to be seen by a probe of real ranks on a machine without GPUs, and why: ENV025 needs the interfaces that NCCL would take,
which the meeting compares; NET012 is over before torchrun starts a rank, so the meeting and triage tell it; NET045 and
LOG020 are lines of a log, of which the probe knows more (NET009, NET017, NET023, NET024, PROBE004; LAUNCH023, GPU005).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ranks import free_port, shim, start

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def _told(folder: Path, environs: list[dict[str, str]]) -> list[tuple[str, str, list[int]]]:
    port = free_port()
    ranks = [start(folder, rank, len(environs), port, environ=each) for rank, each in enumerate(environs)]
    for rank in ranks:
        rank.end()
    return [(f["code"], f["message"], f["ranks"]) for f in ranks[0].report["findings"]]


def test_nccl_settings_that_must_agree(tmp_path: Path) -> None:
    ((code, message, ranks),) = _told(tmp_path, [{"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}, {"NCCL_ALGO": "Ring"}])
    assert (code, ranks) == ("ENV031", [1])
    assert "Tree" in message


def test_a_setting_that_one_rank_was_not_given(tmp_path: Path) -> None:
    ((code, message, ranks),) = _told(tmp_path, [{"NCCL_PROTO": "Simple"}, {}, {"NCCL_PROTO": "Simple"}])
    assert (code, ranks) == ("ENV030", [1])
    assert "NCCL_PROTO" in message


def test_a_rank_that_sees_another_number_of_gpus(tmp_path: Path) -> None:
    ((code, message, ranks),) = _told(tmp_path, [shim("gpus", 1)] * 3)
    assert (code, ranks) == ("LAUNCH075", [1])
    assert "the number of GPUs" in message
