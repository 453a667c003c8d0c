"""What a rank reads of nodes that are gone before they have come."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpdoctor.facts.probe import Kind
from ddpdoctor.multinode.results import NodeEnd
from ddpdoctor.probe.node_notices import NodeNotices, read


@pytest.mark.parametrize(
    ("end", "kind"), [(NodeEnd.ENDED, Kind.DIED), (NodeEnd.STOPPED, Kind.STOPPED), (NodeEnd.SILENT, Kind.HOST_LOST)]
)
def test_every_reader_learns_which_node_is_gone_and_how(end: NodeEnd, kind: Kind) -> None:
    news = NodeNotices.open()
    assert news is not None
    assert read(news.fd) is None
    news.tell("node2", 2, (4, 5), end.value)
    news.tell("node1", 1, (2, 3), "ended")
    found = [read(news.fd) for _ in range(2)]
    news.close()
    for each in found:
        assert each is not None
        assert (each.kind, each.host, each.node_rank, each.ranks) == (kind, "node2", 2, (4, 5))
        assert each.message.startswith("node 2 (node2) joined, but ")


def test_a_rank_without_a_node_number_is_called_by_its_rank() -> None:
    news = NodeNotices.open()
    assert news is not None
    news.tell("node1", None, (1,), "ended")
    found = read(news.fd)
    news.close()
    assert found is not None
    assert found.message.startswith("rank 1 on node1 joined, but ")


def test_what_comes_too_late_is_not_written_into_another_file(tmp_path: Path) -> None:
    news = NodeNotices.open()
    assert news is not None
    news.close()
    other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    os.dup2(other, news.fd)
    news.tell("node1", 1, (1,), "ended")
    for number in {other, news.fd}:
        os.close(number)
    assert not (tmp_path / "other").read_bytes()
