"""`lint` accounts for everything that it was given: what was judged, as what, and what was not and why."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from commandline import doctor, inside
from launches import TRAIN

SCRIPT = 'import torch.distributed as dist\n\ndist.init_process_group("gloo")\ndist.destroy_process_group()\n'


def _report(done: subprocess.CompletedProcess[str]) -> tuple[int, dict[str, Any]]:
    return done.returncode, json.loads(done.stdout)


def _lint(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    return _report(inside("lint", "--format", "json", *words, cwd=folder))


def _piped(folder: Path, text: str) -> tuple[int, dict[str, Any]]:
    return _report(doctor("lint", "--format", "json", "-", cwd=folder, stdin=text.encode()))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("foo --bar baz.py", "foo is not a launcher that ddpdoctor knows"),
        ("ft_launcher --nproc_per_node 4 train.py", "NVIDIA's resiliency extension"),
        ("composer -n 4 train.py", "is not judged by ddpdoctor"),
        ("torchx run -s local dist.ddp --script train.py", "is not judged by ddpdoctor"),
        ("bash other.sh", "other.sh is not read: ddpdoctor lint other.sh"),
        ("docker run image", "is given no command"),
        ("sbatch --nodes=2 train.sbatch", "the batch script is not read"),
        ("accelerate config", "`accelerate config` starts no ranks"),
        ("nohup", "is given no command"),
        ("FOO=1", "it contains no command"),
    ],
)
def test_a_line_that_starts_nothing_known_is_not_a_pass(line: str, reason: str, tmp_path: Path) -> None:
    code, report = _lint(tmp_path, "--", *line.split())
    assert (code, report["verdict"], report["findings"]) == (3, "incomplete", [])
    (given,) = report["inputs"]
    assert (given["kind"], given["understood"], given["path"]) == ("launch line", False, line)
    assert reason in given["reason"]


@pytest.mark.parametrize(
    "line",
    [
        "python train.py",
        "./train.py",
        "srun python train.py",
        "flux run -n 2 torchrun train.py",
        "docker run --ipc=host image torchrun train.py",
        "uv run torchrun train.py",
        "ray job submit -- python train.py",
    ],
)
def test_a_line_with_a_known_launcher_or_a_script_is_understood(line: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    code, report = _lint(tmp_path, "--", *line.split())
    assert (code, report["verdict"]) == (0, "pass")
    assert report["inputs"][0]["understood"]


FILES = {
    "any.yaml": ("a: 1\n", "manifest", "no Kubernetes job in it"),
    "lws.yaml": (
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\n",
        "manifest",
        "kind LeaderWorkerSet",
    ),
    "sky.yaml": ("resources:\n  accelerators: H100:8\nrun: ./train.sh\n", "manifest", "SkyPilot"),
    "empty.sh": ("", "unknown", "empty"),
    "empty.py": ("", "script", "empty"),
    "hello.sh": ("echo hello\n", "shell", "no launch"),
    "notes": ("to do\n", "unknown", "neither Python, shell, notebook nor manifest"),
    "data.bin": ("\0\1\2", "unknown", "binary"),
    "broken.yaml": ("a: [1\n", "manifest", "not YAML"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_without_a_launch_is_not_a_pass(name: str, tmp_path: Path) -> None:
    text, kind, reason = FILES[name]
    (tmp_path / name).write_text(text)
    code, report = _lint(tmp_path, name)
    assert (code, report["verdict"], report["findings"]) == (3, "incomplete", [])
    (given,) = report["inputs"]
    assert (given["path"], given["kind"], given["understood"]) == (name, kind, False)
    assert reason in given["reason"]


def test_what_was_not_understood_makes_a_clean_script_incomplete_and_hides_no_error(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(SCRIPT)
    (tmp_path / "bad.sh").write_text("torchrun train.py --nproc_per_node=2\n")
    (tmp_path / "train.py").write_text(TRAIN)
    assert _lint(tmp_path, "good.py", "/etc/hostname")[0] == 3
    assert _lint(tmp_path, "bad.sh", "/etc/hostname")[0] == 1


def test_a_folder_is_judged_whole_and_the_rest_is_told_with_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    for name, text in {
        "train.py": SCRIPT,
        "plain.py": "print(1)\n",
        "broken.py": "def (\n",
        "a.sbatch": "#!/bin/bash\n#SBATCH --nodes=1\ntorchrun train.py --nproc_per_node=2\n",
        "pod.yaml": "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n    - command: [torchrun, --nnodes=0, train.py]\n",
        "config.yaml": "lr: 0.1\n",
        "setup.sh": "echo hello\n",
        "weights.bin": "\0",
    }.items():
        (folder / name).write_text(text)
    (tmp_path / "train.py").write_text(TRAIN)
    code, report = _lint(tmp_path, "jobs")
    assert code == 1
    assert {(f["code"], Path(f["where"]["file"]).name) for f in report["findings"]} == {
        ("LAUNCH001", "a.sbatch"),
        ("LAUNCH047", "pod.yaml"),
    }
    kinds = {each["path"]: each["kind"] for each in report["inputs"] if each["understood"]}
    assert kinds["jobs/train.py"] == "script"
    assert (kinds["jobs/a.sbatch"], kinds["jobs/pod.yaml"]) == ("shell", "manifest")
    skipped = {each["path"]: each["reason"] for each in report["inputs"] if not each["understood"]}
    assert skipped == {
        "jobs/broken.py": "Python syntax error",
        "jobs/plain.py": "no distributed training",
        "jobs/config.yaml": "no launch",
        "jobs/setup.sh": "no launch",
        "jobs/weights.bin": "not a job file",
    }


def test_of_a_large_folder_the_files_that_were_not_judged_are_counted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    for number in range(1005):
        (tmp_path / f"{number}.png").touch()
    _, report = _lint(tmp_path, ".")
    assert len(report["inputs"]) == 1002
    assert report["inputs"][-1]["reason"] == "5 more files that are not listed"


def test_what_a_folder_holds_besides_makes_nothing_incomplete(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "weights.bin").write_bytes(b"\0")
    (tmp_path / "template.yaml").write_text("kind: Pod\nspec: [{{ unclosed\n")
    code, report = _lint(tmp_path, ".")
    assert (code, report["crashed"]) == (0, [])


def test_a_folder_without_anything_to_judge_is_incomplete(tmp_path: Path) -> None:
    code, report = _lint(tmp_path, str(tmp_path))
    assert (code, report["inputs"][0]["reason"]) == (3, "nothing to judge: no files")


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        (SCRIPT, "script", 0),
        ("#!/bin/bash\ntorchrun --nproc_per_nodes=2 train.py\n", "shell", 1),
        ("torchrun --nproc_per_nodes=2 train.py\n", "shell", 1),
        ("#SBATCH --nodes=1\nsrun torchrun --nproc_per_nodes=2 train.py\n", "shell", 1),
        ('{"cells": [], "nbformat": 4}', "notebook", 3),
        (
            "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n    - command: [torchrun, --nnodes=0, t.py]\n",
            "manifest",
            1,
        ),
        ("hello: world\n", "unknown", 3),
        ("some prose about nothing\n", "unknown", 3),
        ("", "unknown", 3),
    ],
)
def test_standard_input_is_what_its_text_is(text: str, kind: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    found, report = _piped(tmp_path, text)
    assert (found, report["inputs"][0]["path"], report["inputs"][0]["kind"]) == (code, "-", kind)
    assert all(each["where"]["file"] in ("-", None) for each in report["findings"])


def test_facts_that_cannot_be_read_are_one_line_and_exit_3(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    code, report = _lint(tmp_path, "--facts", str(tmp_path), "train.py")
    assert code == 3
    assert [(each["kind"], each["understood"]) for each in report["inputs"]] == [("facts", False), ("script", True)]
    assert "a folder" in report["inputs"][0]["reason"]


def test_the_subject_is_one_line(tmp_path: Path) -> None:
    from ddpdoctor.app.lint import LintInputs, lint_inputs
    from ddpdoctor.app.request import Request

    (tmp_path / "a.py").write_text(SCRIPT)
    (tmp_path / "b.py").write_text(SCRIPT)
    (tmp_path / "c.sbatch").write_text("#!/bin/bash\ntorchrun a.py\n")
    files = tuple(str(tmp_path / name) for name in ("a.py", "b.py", "c.sbatch"))
    assert lint_inputs(Request(), LintInputs(files))[0].subject == "1 sbatch file, 2 scripts"
    line = ("torchrun", "--nnodes=2", "--nproc_per_node=4", "--master_addr=a", "--node_rank=0", "train.py")
    assert lint_inputs(Request(launch=line), LintInputs())[0].subject == "torchrun: 2 nodes x 4 ranks, train.py"
    line = ("accelerate", "launch", "--num_processes", "4", "-m", "pkg.train")
    assert lint_inputs(Request(launch=line), LintInputs())[0].subject == "accelerate: 4 ranks, module pkg.train"


@pytest.mark.torch
def test_check_names_its_line_and_its_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("check", "--no-probe", "--format", "json", "--", "torchrn", "train.py")
    code, report = _report(doctor(*words, cwd=tmp_path))
    assert code == 1
    assert [each["code"] for each in report["findings"] if each["severity"] == "error"] == ["LAUNCH520"]
    assert report["inputs"][0]["kind"] == "launch line"
