"""What is measured with a clock: every rank decides alike, and one that is slow is not asked for more."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from ddpdoctor.probe import collectives

SMALL, MIDDLE, LARGE = collectives.CPU_SIZES


class Clock:
    """Collectives of a rank that take as long as `seconds` says; what this rank alone sees is another time each run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, device: str, seconds: Callable[[str, int], float]) -> None:
        self.seconds = seconds
        own = itertools.count(1)
        monkeypatch.setattr(collectives, "_operation", lambda stage, name, size: (name, size))
        monkeypatch.setattr(collectives, "_common_seconds", lambda stage, operation: seconds(*operation))
        monkeypatch.setattr(collectives, "_seconds", lambda stage, operation: next(own) * 1.0)
        monkeypatch.setattr(collectives, "_sizes_with_room", lambda stage: collectives.GPU_SIZES)
        self.stage = SimpleNamespace(world_size=2, device=SimpleNamespace(type=device), barrier=None)

    def measured(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for each in collectives.measure(self.stage):
            found.setdefault(each["collective"], []).append(each["size_bytes"])
        return found


def test_a_fast_network_is_measured_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "CPU_SECONDS", 10.0)
    found = Clock(monkeypatch, "cpu", lambda name, size: 1e-4).measured()
    assert found == {"barrier": [0], **{name: [SMALL, MIDDLE, LARGE] for name in ("all_reduce", *collectives.OTHERS)}}


def test_a_slow_network_is_measured_at_small_sizes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Clock(monkeypatch, "cpu", lambda name, size: 1e-3 + size / 2e6).measured()
    assert found["all_reduce"] == [SMALL, MIDDLE]
    assert all(found[name] == [SMALL] for name in collectives.OTHERS)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_one_slow_collective_is_not_tried_at_larger_sizes(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(collectives, "CPU_SECONDS", 1e6)
    found = Clock(monkeypatch, device, lambda name, size: 2.0 if name == "broadcast" else 1e-3).measured()
    sizes = list(collectives.CPU_SIZES if device == "cpu" else collectives.GPU_SIZES)
    assert found["broadcast"] == sizes[:1]
    assert found["all_gather"] == sizes


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_collective_that_the_backend_has_not_is_asked_for_once(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    asked: list[int] = []

    def seconds(name: str, size: int) -> float:
        if name == "all_to_all":
            asked.append(size)
            raise RuntimeError("Backend gloo does not support alltoall_base")
        return 1e-3

    assert "all_to_all" not in Clock(monkeypatch, device, seconds).measured()
    assert asked == [SMALL]
