"""The local probe: one process imports torch, forks the ranks, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from ddpdoctor.collectors.probe import start
from ddpdoctor.facts.probe import Kind
from ddpdoctor.system.machine import Deadline

pytestmark = pytest.mark.torch


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *_descendants(child)]
    return found


def _forks(pid: int) -> list[int]:
    """The workers: grandchildren, forked once torch is imported."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        family = _descendants(pid)
        if len(family) >= 3:
            return family[1:]
        time.sleep(0.005)
    raise AssertionError("no ranks were forked")


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _all_gone(pids: list[int]) -> bool:
    end = time.monotonic() + 3
    while time.monotonic() < end:
        if all(map(_is_gone, pids)):
            return True
        time.sleep(0.05)
    return False


def test_two_ranks_pass_every_phase() -> None:
    probe = start(2, seconds=60).finish(Deadline(60)).probe
    assert probe.observations == ()
    assert [r.phase for r in probe.ranks] == ["done", "done"]
    assert probe.backend == "gloo"
    assert {"barrier", "all_reduce", "broadcast", "all_gather"} <= {m.collective for m in probe.measurements}


def test_a_broken_host_name_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    assert start(2, seconds=60).finish(Deadline(60)).probe.observations == ()


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGKILL, Kind.DIED), (signal.SIGSTOP, Kind.STOPPED)])
def test_a_rank_that_is_hurt_is_named(number: signal.Signals, kind: Kind) -> None:
    running = start(2, seconds=60)
    victim = _forks(running.process.pid)[-1]
    os.kill(victim, number)
    probe = running.finish(Deadline(60)).probe
    (cause,) = [o for o in probe.observations if o.is_cause]
    assert cause.kind is kind
    assert cause.pid == victim
    assert _all_gone([victim])


@pytest.mark.parametrize("moment", [0.05, 0.6, None])
def test_nothing_is_left_when_it_is_stopped(moment: float | None) -> None:
    running = start(2, seconds=60)
    family = []
    if moment is None:
        family = _forks(running.process.pid)
    else:
        time.sleep(moment)
        family = _descendants(running.process.pid)
    running.stop()
    assert _all_gone(family)


def test_nothing_is_left_when_it_is_killed_itself() -> None:
    running = start(2, seconds=60)
    family = _forks(running.process.pid)
    os.kill(running.process.pid, signal.SIGKILL)
    assert _all_gone(family)
    running.stop()
    for stream in (running.process.stdout, running.process.stderr):
        assert stream is not None
        stream.close()
