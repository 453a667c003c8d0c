"""`ddpdoctor lint` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commandline import doctor, inside
from launches import TRAIN


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def _report(*words: str, cwd: Path, env: dict[str, str] | None = None) -> dict[str, Any]:
    words = ("lint", "--format", "json", *words)
    done = inside(*words, cwd=cwd) if env is None else doctor(*words, cwd=cwd, env=env)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def test_a_wrong_line_ends_with_1_and_the_line_to_paste(job: Path) -> None:
    done = doctor("lint", "--", "torchrun", "train.py", "--nproc_per_node=2", cwd=job)
    assert done.returncode == 1
    assert "\ntorchrun --nproc_per_node=2 train.py\n" in done.stdout
    assert "LAUNCH001" in done.stdout


def test_a_caret_counts_cells_where_tabs_and_wide_characters_stand(job: Path) -> None:
    (job / "wide.sh").write_text('\tNAME="漢字"\ttorchrun\t--nproc_per_nodes=2 train.py\n')
    done = inside("lint", "wide.sh", cwd=job)
    shown, carets = (line for line in done.stdout.splitlines() if " | " in line)
    assert shown == ' 1 | NAME="漢字" torchrun --nproc_per_nodes=2 train.py'
    assert carets.startswith("   | " + " " * 21 + "^" * len("--nproc_per_nodes=2"))


def test_a_caret_stands_under_the_word(job: Path) -> None:
    done = inside("lint", "--", "torchrun", "train.py", "--nproc_per_node=2", cwd=job)
    lines = done.stdout.splitlines()
    at = lines.index("  | torchrun train.py --nproc_per_node=2")
    assert lines[at + 1].startswith("  | " + " " * 18 + "^" * 18)


def test_a_right_line_ends_with_0(job: Path) -> None:
    done = inside("lint", "--", "torchrun", "--standalone", "--nproc-per-node=2", "train.py", "--lr", "1", cwd=job)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("torchrun: 1 node x 2 ranks, train.py\npass")


def test_the_report_has_the_place_and_the_command(job: Path) -> None:
    (found,) = _report("--", "torchrun", "--nproc_per_node", "0", "train.py", cwd=job)["findings"]
    assert found["code"] == "LAUNCH021"
    assert found["fix_command"] == "torchrun --nproc_per_node 1 train.py"
    assert found["where"]["column"] == len("torchrun --nproc_per_node ") + 1
    assert found["evidence"][0]["path"] == "launch.argv[2]"


def test_one_line_a_node(job: Path) -> None:
    line = "torchrun --nnodes=3 --master_addr=a --node_rank={} --rdzv_id={} train.py"
    nodes = [word for i, x in enumerate("aab") for word in ("--node", line.format(i, x))]
    (found,) = _report(*nodes, cwd=job)["findings"]
    assert (found["code"], found["where"]["node"]) == ("LAUNCH039", 2)
    assert found["fix_command"] == line.format(2, "a")


def test_torch_decides_how_a_line_is_read(job: Path) -> None:
    words = ("--", "torchrun", "--nproc-per-node=2", "train.py")
    assert _report("--torch", "2.0", *words, cwd=job)["verdict"] == "pass"
    assert _report("--torch", "1.13", *words, cwd=job)["findings"][0]["code"] == "LAUNCH009"


def test_the_environment_is_the_launchs(job: Path) -> None:
    report = _report("--", "torchrun", "train.py", cwd=job, env={"PET_NNODES": "2"})
    assert {f["code"] for f in report["findings"]} == {"ENV009", "LAUNCH025"}
    assert _report("--", "torchrun", "--nnodes=1", "train.py", cwd=job, env={"PET_NNODES": "2"})["verdict"] == "pass"


def test_a_whole_line_in_one_word_is_read_as_shell_text(job: Path) -> None:
    report = _report("--", "cd . && torchrun --nproc=2 train.py", cwd=job)
    assert report["findings"][0]["fix_command"] == "cd . && torchrun --nproc-per-node=2 train.py"


@pytest.mark.parametrize("words", [(), ("--torch", "new", "--", "torchrun", "a.py"), ("--torch", "1.9", "--", "x")])
def test_wrong_use_ends_with_2(words: tuple[str, ...], job: Path) -> None:
    assert inside("lint", *words, cwd=job).returncode == 2


@pytest.mark.parametrize("name", ["github", "sarif", "junit", "markdown"])
def test_every_format_can_show_it(name: str, job: Path) -> None:
    done = inside("lint", "--format", name, "--", "torchrun", "--nproc=2", "train.py", cwd=job)
    assert done.returncode == 1
    assert "LAUNCH010" in done.stdout


def test_a_launch_that_cannot_work_is_not_probed(job: Path) -> None:
    done = doctor("check", "--format", "json", "--", "torchrun", "--nproc_per_node=0", "train.py", cwd=job)
    report = json.loads(done.stdout)
    assert "LAUNCH021" in {f["code"] for f in report["findings"]}
    assert not any(code.startswith("PROBE") for code in report["passed"])


def test_causes_of_machines_are_selected_and_ignored_like_all_others(job: Path) -> None:
    line = ("--", "docker", "run", "--gpus", "all", "img", "torchrun", "--nproc_per_node=8", "train.py")
    for words, codes in (((), ["HOST001"]), (("--select", "HOST"), ["HOST001"]), (("--ignore", "HOST"), [])):
        assert [f["code"] for f in _report(*words, *line, cwd=job)["findings"]] == codes


def test_a_correction_names_the_mistake_that_it_uncovers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    done = doctor("lint", "--format", "json", "--", "pyhton", "train.py", cwd=tmp_path)
    (found,) = json.loads(done.stdout)["findings"]
    assert found["code"] == "LAUNCH520"
    assert found["fix"].startswith("Correct this and LAUNCH054 (launched-without-launcher).")
    assert "torchrun" in found["fix_command"]
