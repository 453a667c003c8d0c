"""Headlines of findings about logs name who and what, on one line."""

from __future__ import annotations

import pytest

from ddpdoctor.rules.log.headlines import LONGEST_HEADLINE, clipped, headline, names_of, place_name, who


@pytest.mark.parametrize(
    ("ranks", "hosts", "text"),
    [
        ((3,), ("gpu-07",), "rank 3 on gpu-07"),
        ((1, 2), (), "ranks 1, 2"),
        (range(8), (), "ranks 0-7"),
        ((1, 2, 5, 7), (), "ranks 1, 2, 5, 7"),
        ((1, 2, 5, 7, 9), (), "ranks 1, 2, 5, and 2 more"),
        ((), ("n1", "n2"), "n1, n2"),
        ((), (), "a process"),
    ],
)
def test_many_ranks_are_counted(ranks: tuple[int, ...], hosts: tuple[str, ...], text: str) -> None:
    assert names_of(ranks, hosts) == text
    assert who(ranks, hosts) == ("" if text == "a process" else text)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/home/u/train.py", "train.py:10"),
        ("/home/u/proj/src/net.py", "src/net.py:10"),
        ("models/a/net.py", "a/net.py:10"),
        ("train.py", "train.py:10"),
    ],
)
def test_a_place_keeps_one_folder_at_most(file: str, name: str) -> None:
    assert place_name(file, 10) == name


def test_a_line_is_quoted_only_if_all_of_it_fits() -> None:
    assert headline("rank 3", "The disk is full.", "OSError") == "rank 3: the disk is full: OSError"
    assert headline("rank 3", "NCCL failed", "x" * LONGEST_HEADLINE) == "rank 3: NCCL failed"
    assert clipped("x" * 70).endswith("…")
    assert len(clipped("x" * 70)) == 60
