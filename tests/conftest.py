"""Tests leave no trace, are deterministic, and never skip silently."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

FULL = bool(os.environ.get("DDPDOCTOR_FULL"))
"""The full numbers of examples (`make test-all`)."""

settings.register_profile("quick", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("full", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("full" if FULL else "quick")

ONE_IN = int(os.environ.get("DDPDOCTOR_ONE_IN", "1"))
"""Run one in so many cases of each test function, at least one: further Pythons in CI need no more."""

_skipped: list[str] = []


@pytest.fixture(autouse=True)
def no_trace() -> Iterator[None]:
    """Fail a test that leaks an environment variable or a thread that is not a daemon."""
    before = _environment()
    threads = set(threading.enumerate())
    yield
    after = _environment()
    for name in after.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    left = [t.name for t in set(threading.enumerate()) - threads if t.is_alive() and not t.daemon]
    assert after == before, f"the test changed the environment: {set(after.items()) ^ set(before.items())}"
    assert not left, f"the test left threads: {left}"


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all but one in so many cases of each test function, and report it."""
    if ONE_IN == 1:
        return
    seen: Counter[str] = Counter()
    kept, left_out = [], []
    for item in items:
        function = item.nodeid.partition("[")[0]
        (left_out if seen[function] % ONE_IN else kept).append(item)
        seen[function] += 1
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, with the reason, what this machine cannot run."""
    if item.get_closest_marker("torch") and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root")
    if item.get_closest_marker("gpu") and not os.path.exists("/dev/nvidiactl"):
        pytest.skip("gpu: no NVIDIA driver here")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember skips: CI allows only those without a GPU."""
    if report.skipped and "gpu" not in report.keywords:
        _skipped.append(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skipped test fails the run: "skipped" is never "passed"."""
    if os.environ.get("CI") and _skipped and session.exitstatus == 0:
        print(f"\nCI allows no skips but GPU ones: {', '.join(_skipped)}", file=sys.stderr)
        session.exitstatus = 1
