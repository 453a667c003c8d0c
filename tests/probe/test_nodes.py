"""The doctor's own launcher as a function, as `check` uses it: two nodes on one machine, with unlike numbers of ranks."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ranks import free_port

from ddpdoctor.collectors.probe import NodeRanks, Template, launch
from ddpdoctor.probe.proc import read_stat
from ddpdoctor.system.machine import Deadline

pytestmark = pytest.mark.torch


def test_two_nodes_with_unlike_numbers_of_ranks_pass_whoever_imports_torch_for_them() -> None:
    port, template = free_port(), Template(2, os.environ)
    first = launch(NodeRanks(1, 3, "127.0.0.1", port, 0, 0, 2), os.environ, 20.0, 90.0)
    second = launch(NodeRanks(2, 3, "127.0.0.1", port, 1, 1, 2), os.environ, 20.0, 90.0, template=template)
    answers = [running.finish(Deadline(90.0)) for running in (first, second)]
    assert [answer.probe.observations for answer in answers] == [(), ()]
    assert [answer.is_head for answer in answers] == [True, False]
    ranks = answers[1].probe.ranks
    assert [report.rank for report in ranks] == [0, 1, 2]
    template.stop()
    assert all(_is_gone(report.pid or 0) for report in ranks)


def test_a_node_that_never_comes_is_named() -> None:
    alone = launch(NodeRanks(1, 2, "127.0.0.1", free_port(), 0, 0, 2), os.environ, 1.0, 60.0)
    (seen,) = alone.finish(Deadline(60.0)).probe.observations
    assert (seen.ranks, seen.node_rank) == ((1,), 1)


def _is_gone(pid: int) -> bool:
    """Whether the process ends within a while; who buries it may take his time."""
    end = time.monotonic() + 20
    while (stat := read_stat(pid)) is not None and stat.state != "Z" and time.monotonic() < end:
        time.sleep(0.02)
    return stat is None or stat.state == "Z"
