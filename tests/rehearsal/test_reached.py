"""What a rehearsal did not come to is named, and what ran is not."""

from __future__ import annotations

import pytest
from rehearsed import FILE, Job

from ddpdoctor.facts.rehearsal import Rehearsal

SCRIPT = """import torch.distributed as dist

def evaluate(model):
    total = model()
    dist.all_reduce(total)
    return total

def main(rank):
    if rank == 5:
        print("far away")
    if rank == 0:
        print("main")
    else:
        dist.barrier()
    loss.backward()
    optimizer.step()
    if epoch == 9:
        torch.save(model, "a.pt")
        optimizer.save()
"""


def rehearsed(*lines: int) -> Rehearsal:
    job = Job(2)
    for rank in (0, 1):
        job.say(rank, "lines", file=FILE, lines=list(lines))
    return job.facts(SCRIPT)


def names(facts: Rehearsal) -> list[tuple[int, str]]:
    return [(each.place.line, each.what) for each in facts.unreached]


def test_calls_and_branches_that_did_not_run() -> None:
    found = names(rehearsed(1, 3, 8, 9, 11, 12, 15, 16, 17))
    assert found == [(5, "all_reduce"), (10, "a branch on `rank == 5`"), (14, "a branch on `rank == 0`"), (18, "save")]


def test_what_ran_is_not_named() -> None:
    assert names(rehearsed(*range(1, 20))) == []


def test_a_function_that_was_no_longer_followed_is_unknown() -> None:
    job = Job(2)
    job.say(0, "lines", file=FILE, lines=[1, 3, 8, 9, 10, 11, 12, 14, 15, 17, 18])
    job.say(0, "unfollowed", file=FILE, first=4, last=6)
    assert names(job.facts(SCRIPT)) == []


@pytest.mark.parametrize("lines", [None, "1", ["a"], [1.5]])
def test_lines_that_are_none_are_left_out(lines: object) -> None:
    job = Job(1).say(0, "lines", file=FILE, lines=lines)
    assert not any(each.place.line == 1 for each in job.facts(SCRIPT).unreached)
