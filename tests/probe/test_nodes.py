"""The doctor's own launcher as a function, as `check` uses it: two nodes on one machine, with unlike numbers of ranks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ranks import free_port

from ddpdoctor.collectors.machine import Deadline
from ddpdoctor.collectors.probe import Node, launch

pytestmark = pytest.mark.torch


def test_two_nodes_with_unlike_numbers_of_ranks_pass() -> None:
    port = free_port()
    first = launch(Node(1, 3, "127.0.0.1", port, 0, 0, 2), os.environ, 20.0, 90.0)
    second = launch(Node(2, 3, "127.0.0.1", port, 1, 1, 2), os.environ, 20.0, 90.0)
    answers = [running.finish(Deadline(90.0)) for running in (first, second)]
    assert [answer.probe.observations for answer in answers] == [(), ()]
    assert [answer.is_head for answer in answers] == [True, False]
    assert [report.rank for report in answers[1].probe.ranks] == [0, 1, 2]


def test_a_node_that_never_comes_is_named() -> None:
    alone = launch(Node(1, 2, "127.0.0.1", free_port(), 0, 0, 2), os.environ, 1.0, 60.0)
    (seen,) = alone.finish(Deadline(60.0)).probe.observations
    assert (seen.ranks, seen.node_rank) == ((1,), 1)
