"""`triage bad/ --good good/`: what only the failed run has, beside the cause."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from commandline import doctor

from ddpdoctor.render import json as json_report

FAILURE = """[rank5]: Traceback (most recent call last):
[rank5]:   File "train.py", line 9, in <module>
[rank5]:     step()
[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB
srun: error: node09: task 5: Exited with exit code 1
"""


def _log(batch: int, end: str, extra: str = "") -> str:
    steps = "".join(f"step {step} loss {2 - step / 100:.3f}\n" for step in range(100))
    token = "export WANDB_API_KEY=" + "0123456789abcdef" * 2
    return f"{token}\nexport NCCL_DEBUG=WARN\ntorchrun train.py --batch-size {batch}\n{steps}{extra}{end}"


BAD = _log(64, FAILURE, "warning: sequences of 9000 tokens are not found in the cache\n")
GOOD = _log(32, "Training completed successfully\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("bad/slurm-102.out", BAD), ("good/slurm-100.out", GOOD), ("good/slurm-101.out", GOOD)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_the_screen_shows_them_below_the_cause(folder: Path) -> None:
    done = doctor("triage", "bad", "--good", "good", cwd=folder)
    assert done.returncode == 1
    cause, _, section = done.stdout.partition("only in the failed run, not in good (evidence, not causes):")
    assert "CAUSE[LOG012]" in cause
    assert "setting --batch-size: 64, otherwise 32 (bad/slurm-102.out:3)" in section
    assert "sequences of 9000 tokens" in section
    assert "WANDB" not in section


def test_they_are_in_the_report(folder: Path) -> None:
    report = json.loads(doctor("triage", "bad", "--good", "good", "--format", "json", cwd=folder).stdout)
    schema = json.loads((Path(json_report.__file__).parent / "report.schema.json").read_text())
    jsonschema.validate(report, schema)
    assert report["compared_with"] == "good"
    assert report["differences"][0]["name"] == "--batch-size"
    markdown = doctor("triage", "bad", "--good", "good", "--format", "markdown", cwd=folder).stdout
    assert "only in the failed run" in markdown
    assert "64, otherwise 32" in markdown


def test_a_folder_with_completed_jobs_of_the_same_name_needs_no_option(folder: Path) -> None:
    (folder / "bad" / "slurm-102.out").rename(folder / "good" / "slurm-102.out")
    report = json.loads(doctor("triage", "good", "--format", "json", cwd=folder).stdout)
    assert report["compared_with"] == "the completed slurm-100, slurm-101"
    assert [each["name"] for each in report["differences"]][:1] == ["--batch-size"]


def test_a_report_without_a_good_run_is_as_before(folder: Path) -> None:
    done = doctor("triage", "bad", "--format", "json", cwd=folder)
    assert "differences" not in json.loads(done.stdout)


def test_a_good_run_that_is_not_there_or_failed_is_named(folder: Path) -> None:
    missing = doctor("triage", "bad", "--good", "nowhere", cwd=folder)
    assert missing.returncode == 3
    assert "read nowhere of --good: no such file" in missing.stdout
    same = doctor("triage", "bad", "--good", "bad", cwd=folder)
    assert "these are the logs of the failed run" in same.stdout
    (folder / "other.out").write_text(BAD)
    failed = doctor("triage", "bad", "--good", "other.out", cwd=folder)
    assert "other.out (which failed too: 1 cause, LOG012)" in " ".join(failed.stdout.split())
