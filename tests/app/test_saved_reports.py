"""Reports that were written as JSON, read again: by `triage`, alone, several at a time, beside logs, from standard input."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddpdoctor.app.request import Request
from ddpdoctor.app.triage import triaged
from ddpdoctor.findings import Report
from ddpdoctor.render.json import as_dict, findings_in, write

LOG = Path(__file__).parents[2] / "fixtures" / "situations" / "logs" / "oom_on_one_of_four.txt"


def _report_of(*paths: Path) -> Report:
    return triaged([str(path) for path in paths], Request(), started=time.monotonic())[0]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "report.json"
    path.write_text(write(_report_of(LOG)))
    return path


@pytest.mark.parametrize("name", ["!sorted before every absolute path.txt", "~sorted behind.txt"])
def test_a_saved_report_tells_its_findings_again_in_their_order(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(LOG.read_bytes())
    Path("report.json").write_text(write(_report_of(Path(name))))
    told = as_dict(_report_of(Path("report.json")))["findings"]
    assert told == json.loads(Path("report.json").read_text())["findings"]


def test_what_a_report_and_its_log_say_alike_is_told_once(saved: Path) -> None:
    assert len(_report_of(saved, LOG).findings) == len(_report_of(LOG).findings)


def test_a_report_of_a_machine_names_it(saved: Path) -> None:
    report = json.loads(saved.read_text())
    report |= {"command": "check", "host": "gpu-b07"}
    for each in report["findings"]:
        each["where"]["host"] = None
    assert {each.where.host for each in findings_in(json.dumps(report))} == {"gpu-b07"}


@pytest.mark.parametrize(
    "damage", [lambda t: t[:300], lambda t: t.replace('"message"', '"massage"'), lambda t: t + "x"]
)
def test_a_damaged_report_is_said_to_be_one(saved: Path, tmp_path: Path, damage: object) -> None:
    path = tmp_path / "report.json"
    path.write_text(damage(saved.read_text()))  # type: ignore[operator]
    report = _report_of(path)
    assert report.verdict.value == "incomplete"
    assert [each.path for each in report.not_understood] == [str(path)]
    assert report.not_understood[0].reason


def test_a_report_on_standard_input_is_read(saved: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ddpdoctor", "triage", "-", "--format", "json"],
        input=saved.read_bytes(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["findings"][0]["code"] == "LOG012"
