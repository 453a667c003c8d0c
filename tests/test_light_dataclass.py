"""`light_dataclass.dataclass` behaves as the standard library's does, in everything that the classes here use."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ddpdoctor import light_dataclass

LIGHT: Callable[..., Any] = vars(light_dataclass)["dataclass"]
BOTH = pytest.mark.parametrize("dataclass", [LIGHT, dataclasses.dataclass], ids=["light", "standard"])
OPTIONS = [
    {"frozen": frozen, "slots": slots, "eq": eq}
    for frozen in (True, False)
    for slots in (True, False)
    for eq in (True, False)
]


def _point(dataclass: Callable[..., Any], **options: bool) -> Any:
    @dataclass(**options)
    class Point:
        x: int
        label: str = "p"
        tags: list[str] = dataclasses.field(default_factory=list)
        note: str = dataclasses.field(default="", compare=False, repr=False)

        def moved(self) -> Any:
            return dataclasses.replace(self, x=self.x + 1)  # type: ignore[type-var]

    return Point


@light_dataclass.dataclass(frozen=True, slots=True)
class Kept:
    """At module level, where pickle finds it."""

    number: int
    name: str = "n"


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@BOTH
def test_instances(dataclass: Callable[..., Any], options: dict[str, bool]) -> None:
    point = _point(dataclass, **options)
    one, other = point(1, note="first"), point(x=1, note="second")
    assert repr(one).endswith("Point(x=1, label='p', tags=[])")
    assert (one == other) is options["eq"]
    assert one != point(2)
    assert one != (1, "p", [])
    assert one.tags is not other.tags
    assert point.__match_args__ == ("x", "label", "tags", "note")
    assert [field.name for field in dataclasses.fields(point)] == ["x", "label", "tags", "note"]
    assert dataclasses.is_dataclass(one)
    assert one.moved().x == 2
    assert one.moved().note == "first"
    assert copy.copy(one).x == 1
    assert hasattr(one, "__dict__") is not options["slots"]


@pytest.mark.parametrize("slots", [True, False])
@BOTH
def test_frozen(dataclass: Callable[..., Any], slots: bool) -> None:
    one = _point(dataclass, frozen=True, slots=slots)(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        one.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del one.x


@BOTH
def test_hashes(dataclass: Callable[..., Any]) -> None:
    @dataclass(frozen=True, slots=True)
    class Key:
        name: str
        note: str = dataclasses.field(default="", compare=False)

    @dataclass
    class Changing:
        name: str

    @dataclass(frozen=True)
    class Own:
        name: str

        def __hash__(self) -> int:
            return 7

    assert len({Key("a", "1"), Key("a", "2"), Key("b")}) == 2
    assert hash(Own("a")) == 7
    with pytest.raises(TypeError, match="unhashable"):
        hash(Changing("a"))


@BOTH
def test_wrong_arguments(dataclass: Callable[..., Any]) -> None:
    point = _point(dataclass)
    with pytest.raises(TypeError, match=r"Point.__init__\(\) missing 1 required positional argument: 'x'"):
        point()
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        point(1, z=2)


@BOTH
def test_post_init(dataclass: Callable[..., Any]) -> None:
    @dataclass(slots=True)
    class Doubled:
        number: int

        def __post_init__(self) -> None:
            self.number *= 2

    assert [Doubled(2).number, Doubled(3).number] == [4, 6]


@BOTH
def test_no_fields(dataclass: Callable[..., Any]) -> None:
    @dataclass(frozen=True)
    class Empty:
        """Nothing."""

    assert Empty() == Empty()
    assert repr(Empty()).endswith("Empty()")


@BOTH
def test_refused_declarations(dataclass: Callable[..., Any]) -> None:
    def changing() -> None:
        @dataclass
        class Changing:
            names: list[str] = []  # noqa: RUF012

    def unordered() -> None:
        @dataclass
        class Unordered:
            one: int = 1
            two: int

    for declare, error in ((changing, ValueError), (unordered, TypeError)):
        with pytest.raises(error):
            declare()


def test_what_is_not_supported_is_refused() -> None:
    with pytest.raises(TypeError, match="use the standard library's"):

        @LIGHT
        class Shared:
            count: dataclasses.InitVar[int]


def test_pickle() -> None:
    assert pickle.loads(pickle.dumps(Kept(3))) == Kept(3)


def test_first_instances_in_several_threads() -> None:
    for _ in range(50):
        point, made = _point(LIGHT, frozen=True, slots=True), []
        threads = [threading.Thread(target=lambda n=n, p=point, m=made: m.append(p(n).x)) for n in range(4)]  # type: ignore[misc]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(made) == [0, 1, 2, 3]
