"""Tests leave no trace: the environment and the threads are as before after every test."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


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
