"""Trackers that do nothing: for the user's own imports, not for libraries that look whether one is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from ddpdoctor.rehearsal.hook import trackers

PROGRAM = """
import json, sys
sys.path.insert(0, {repository!r})
from ddpdoctor.rehearsal.hook import channel, trackers
said = []
channel.RecordChannel.say = lambda self, kind, **fields: said.append((kind, fields.get("what")))
sys.meta_path.insert(0, trackers.TrackerFinder())
import importlib.util
asked = importlib.util.find_spec("wandb")
import wandb
run = wandb.init(project="p")
run.config["a"] = 1
wandb.log({{"loss": run.summary.best}})
with wandb.Run() as other:
    other.finish()
print(json.dumps([asked is None, said, str(run.name), list(run.history), len(run)]))
"""


def test_the_users_own_import_gets_a_module_that_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.format(repository=str(Path(trackers.__file__).parents[3])))
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    expected = '[true, [["standin", "wandb"], ["tracker", "wandb.init"]], "rehearsal", [], 0]'
    assert done.stdout.strip() == expected, done.stderr


def test_other_modules_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [trackers.TrackerFinder(), *sys.meta_path])
    assert importlib.util.find_spec("json") is not None
    assert importlib.util.find_spec("a_module_that_nobody_has") is None
