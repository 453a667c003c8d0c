"""Job files as a whole: what was not examined is said, and corrections of a file are complete and proved."""

from __future__ import annotations

import json
from pathlib import Path

from commandline import inside

TRAIN = "import os, torch\ntorch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"


def test_what_of_a_job_file_was_not_examined_is_listed_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "job.sh").write_text(
        "#!/bin/bash\nwhile true; do x=$((x+1)); done\ntorchrun --standalone --nproc_per_node=2 train.py\n"
    )
    done = inside("lint", "job.sh", "--format", "json", cwd=tmp_path)
    report = json.loads(done.stdout)
    (examined,) = [each for each in report["inputs"] if each["kind"] == "shell"]
    assert examined["left_out"] == ["job.sh:2: a loop of more than 1100 rounds"]
    assert (done.returncode, report["findings"], report["crashed"]) == (0, [], [])  # never an error by itself
    assert "not examined: job.sh:2: a loop of more than 1100 rounds" in inside("lint", "job.sh", cwd=tmp_path).stdout
