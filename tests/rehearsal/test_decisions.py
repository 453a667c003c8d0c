"""Conditions on values that differ between ranks, and what of them is legal."""

from __future__ import annotations

import pytest
from rehearsed import FILE, Job

from ddpdoctor.facts.rehearsal import ObservationKind

HEAD = "def main():\n    for step in range(9):\n        train()\n"


def decided(body: str, *, line: int = 3, **values: tuple[object, object]) -> list[tuple[int, str]]:
    """The conditions that are found, after both ranks called a collective in line 3."""
    job = Job(2)
    for rank in (0, 1):
        variables = {name.replace("__", "."): repr(each[rank]) for name, each in values.items()}
        job.say(rank, "locals", place=[FILE, line], count=1, frames=[[FILE, "main", 1, variables]])
        job.call(rank, "backward", line)
    kinds = [each for each in job.facts(HEAD + body).observations if each.kind is ObservationKind.LOCAL_DECISION]
    return [(each.places[0].line, each.values["name"]) for each in kinds]


@pytest.mark.parametrize(
    "body",
    [
        "        if loss > 3:\n            break\n",
        "        if loss > 3:\n            return\n",
        "        if late(loss):\n            break\n\ndef late(value):\n    return value > 3\n",
        "        if math.isnan(loss):\n            break\n",
        "        if loss > 3:\n            pass\n        else:\n            break\n",
    ],
)
def test_a_loop_that_a_local_value_ends(body: str) -> None:
    assert decided(body, loss=(1.0, 2.0)) == [(4, "loss")]


def test_an_attribute_decides() -> None:
    assert decided("        if self.bad > 3:\n            break\n", self__bad=(1, 2)) == [(4, "self.bad")]


def test_a_counter_that_a_local_value_raises() -> None:
    body = "        if loss > best:\n            waited += 1\n        if waited > 3:\n            break\n"
    assert decided(body, loss=(1.0, 2.0), waited=(0, 0)) == [(6, "loss")]


def test_what_a_function_makes_of_the_rank_decides() -> None:
    source = "def main():\n    first = resume(path, rank)\n    for step in range(first, 9):\n        train()\n"
    job = Job(2)
    for rank in (0, 1):
        job.say(rank, "locals", place=[FILE, 4], count=1, frames=[[FILE, "main", 1, {"first": str(rank)}]])
        job.call(rank, "backward", 4)
    text = source + "\ndef resume(path, rank):\n    return 0\n"
    assert [each.place.line for each in job.facts(text).observations if each.place is not None] == [3]


def test_a_range_that_differs() -> None:
    source = "def main():\n    for step in range(first, 9):\n        train()\n"
    job = Job(2)
    for rank in (0, 1):
        job.say(rank, "locals", place=[FILE, 3], count=1, frames=[[FILE, "main", 1, {"first": str(rank)}]])
        job.call(rank, "backward", 3)
    kinds = [each.place.line for each in job.facts(source).observations if each.place is not None]
    assert kinds == [2]


@pytest.mark.parametrize(
    ("body", "values"),
    [
        ("        if loss > 3:\n            break\n", {"loss": (1.0, 1.0)}),
        ("        if loss > 3:\n            print(loss)\n", {"loss": (1.0, 2.0)}),
        ("        if rank == 0:\n            break\n", {"rank": (0, 1)}),
        ("        if rank == 0 and loss > 3:\n            break\n", {"loss": (1.0, 2.0)}),
        ("        first = rank * 4\n        if step < first:\n            continue\n", {"first": (0, 4)}),
        ("        if loss > 3:\n            raise ValueError\n", {"loss": (1.0, 2.0)}),
        ("        if loss > 3:\n            continue\n", {"loss": (1.0, 2.0)}),
        ("        for x in loss:\n            if loss > 3:\n                break\n", {"loss": (1.0, 2.0)}),
        ("        if late(loss):\n            break\n", {"loss": (1.0, 2.0)}),
        (
            "        if late(loss):\n            break\n\ndef late(x):\n    dist.all_reduce(x)\n    return x > 3\n",
            {"loss": (1.0, 2.0)},
        ),
        ("    if loss > 3:\n        return\n", {"loss": (1.0, 2.0)}),
    ],
)
def test_what_decides_about_no_collective(body: str, values: dict[str, tuple[object, object]]) -> None:
    assert decided(body, **values) == []


@pytest.mark.parametrize(
    ("text", "divisor", "expected"),
    [
        ("loss = loss / world\n", 2.0, 1),
        ("loss = loss / accum / world_size\n", 4.0, 1),
        ("loss.div_(dist.get_world_size())\n", 2.0, 1),
        ("loss = loss / accum\n", 2.0, 0),
        ("loss = loss / world\n", 3.0, 0),
        ("loss = loss * dist.get_world_size() / left.item()\n", 2.0, 0),
    ],
)
def test_a_loss_divided_by_the_number_of_ranks(text: str, divisor: float, expected: int) -> None:
    job = Job(2)
    for rank in (0, 1):
        job.say(rank, "loss_divided", divisor=divisor, at=[[FILE, 1, "main"]])
    found = [each for each in job.facts(text).observations if each.kind is ObservationKind.DIVIDED_TWICE]
    assert len(found) == expected
