"""Job files as a whole: what was not examined is said, and corrections of a file are complete and proved."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
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


HEAD = "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
NODES = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n"
STATIC = (
    "torchrun --nnodes=2 --nproc-per-node=4 --node-rank=$SLURM_NODEID --master-addr=$HEAD --master-port=29500 train.py"
)
CORRECTED = {
    "wrapped, with the variable exported": (
        f"HEAD={HEAD}\nsrun {STATIC}\n",
        f"export HEAD={HEAD}\nsrun bash -c '{STATIC}'\n",
    ),
    "escaped inside double quotes, which keep the other variables": (
        f'HEAD={HEAD}\nsrun bash -c "{STATIC}"\n',
        f'HEAD={HEAD}\nsrun bash -c "{STATIC}"\n'.replace("$SLURM_NODEID", "\\$SLURM_NODEID"),
    ),
    "in the assignment from which the value comes": (
        f"export HEAD=localhost\nsrun bash -c '{STATIC}'\n",
        f"export HEAD={HEAD}\nsrun bash -c '{STATIC}'\n",
    ),
    "three mistakes at once": (
        f"HEAD=127.0.0.1\nsrun bash -c '{STATIC}' &\n",
        f"export HEAD={HEAD}\nsrun bash -c '{STATIC}' &\nwait\n",
    ),
}


@pytest.mark.parametrize("what", CORRECTED)
def test_one_correction_of_the_file_removes_all_its_mistakes(what: str, tmp_path: Path) -> None:
    wrong, right = CORRECTED[what]
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "job.sbatch").write_text(NODES + wrong)
    patch = inside("lint", "--diff", "job.sbatch", cwd=tmp_path).stdout
    subprocess.run(["patch", "-p1"], input=patch, text=True, cwd=tmp_path, check=True)
    assert (tmp_path / "job.sbatch").read_text() == NODES + right
    assert inside("lint", "job.sbatch", cwd=tmp_path).returncode == 0


def test_nothing_is_proposed_that_execution_does_not_prove(tmp_path: Path) -> None:
    """The address stands in no file: only the user knows it."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "run.sh").write_text(
        'for h in "$@"; do\n  ssh $h "torchrun --nnodes=2 --node-rank=0 --master-addr=$M /data/train.py" &\ndone\nwait\n'
    )
    assert inside("lint", "--diff", "run.sh", cwd=tmp_path).stdout == ""


def test_a_finding_says_how_to_get_the_corrected_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "job.sbatch").write_text(NODES + f"HEAD={HEAD}\nsrun bash -c '{STATIC}'\n")
    report = json.loads(inside("lint", "job.sbatch", "--format", "json", cwd=tmp_path).stdout)
    assert [(f["code"], f["fix_command"]) for f in report["findings"]] == [
        ("ENV030", "ddpdoctor lint --diff job.sbatch | patch -p1")
    ]


HOSTILE = {
    "anchors.yaml": "a0: &a0 [x, x]\n"
    + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    + "kind: Job\nmetadata: {name: a}\nspec: *a39\n",
    "deep.yaml": "kind: Job\nspec: " + "{a: " * 2_000 + "1" + "}" * 2_000,
    "loops.sh": "while :; do for i in {1..9999}; do f() { f; f; }; f; done; done\ntorchrun train.py\n" * 20,
    "doubling.sh": "A=xx\n" + "A=$A$A\n" * 60 + "torchrun --nproc-per-node=2 train.py $A\n",
    "braces.sh": "torchrun train.py {a,b}{c,d}" + "{e,f}" * 40 + "\n",
    "nested.sh": "if a; then\n" * 3_000 + "torchrun train.py\n" + "fi\n" * 3_000,
    "lines.sh": "torchrun --nproc_per_node=2 --master_port=29500 train.py &\n" * 1_500 + "wait\n",
    "heredoc.sh": "cat > x.sh <<E\n" + "torchrun --nproc_per_node=2 train.py $A\n" * 4_000 + "E\nbash x.sh\n",
    "steps.sbatch": "#SBATCH -N 64 --ntasks-per-node=8\n" + "srun python train.py &\n" * 40,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_ends_with_what_was_understood(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / name).write_text(HOSTILE[name])
    started = time.process_time()
    report = json.loads(inside("lint", name, "--format", "json", cwd=tmp_path).stdout)
    assert time.process_time() - started < 20  # seconds; a bound against endless work, not a measurement
    assert [each["error"] for each in report["crashed"] if each["code"] != "ddpdoctor"] == []
    assert report["inputs"]


def test_launch_lines_that_are_not_read_are_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "run.sh").write_text("torchrun --standalone train.py\n" * 301)
    report = json.loads(inside("lint", "run.sh", "--format", "json", cwd=tmp_path).stdout)
    assert "run.sh: only the first 300 launch lines are read" in report["inputs"][0]["left_out"]


def test_a_script_that_is_not_there_is_not_taken_for_one_of_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(TRAIN)
    (tmp_path / "job.sge").write_text(
        "#!/bin/bash\n#$ -pe smp 16\n#$ -l gpu=2\ntorchrun --standalone --nproc_per_node=$NSLOTS missing.py\n"
    )
    report = json.loads(inside("lint", "job.sge", "--format", "json", cwd=tmp_path).stdout)
    assert [each["code"] for each in report["findings"]] == ["LAUNCH023", "LAUNCH003"]
