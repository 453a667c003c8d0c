"""`lint train.py`, `lint src/`, `lint nb.ipynb`, with and without a launch line, as a user runs them."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from commandline import doctor
from script_runs import RIGHT, WRONG, expected

POSITIONAL = "import torch.distributed as dist\n\ndist.init_process_group('gloo', 0, 2)\ndist.destroy_process_group()\n"
needs_patch = pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")


def _lint(*words: str, cwd: Path, code: int | None = None) -> dict[str, Any]:
    done = doctor("lint", "--format", "json", *words, cwd=cwd)
    assert done.returncode in ((0, 1) if code is None else (code,)), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    if code != 3:
        assert report["crashed"] == []
    return report


def _found(report: dict[str, Any]) -> list[tuple[str, int]]:
    return sorted((f["code"], f["where"]["line"]) for f in report["findings"])


def _of(report: dict[str, Any], path: Path | str) -> list[tuple[str, int]]:
    return sorted((f["code"], f["where"]["line"]) for f in report["findings"] if f["where"]["file"] == str(path))


def notebook(*cells: str, indent: int | None = 1) -> str:
    shown = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": cell.splitlines(keepends=True)} for cell in cells
    ]
    return json.dumps({"cells": shown, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=indent)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One report over all wrong and right forms."""
    return _lint(*map(str, (*WRONG, *RIGHT)), cwd=tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("path", WRONG, ids=lambda p: p.stem)
def test_a_wrong_form_is_found_at_its_line(path: Path, corpus: dict[str, Any]) -> None:
    told = [
        (f["code"], f["where"]["line"], f["message"]) for f in corpus["findings"] if f["where"]["file"] == str(path)
    ]
    assert _of(corpus, path) == expected(path), told


@pytest.mark.parametrize("path", RIGHT, ids=lambda p: p.stem)
def test_a_right_form_is_silent(path: Path, corpus: dict[str, Any]) -> None:
    assert _of(corpus, path) == []


def test_a_finding_has_its_column_and_a_fix(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(POSITIONAL)
    (found,) = _lint("train.py", cwd=tmp_path, code=1)["findings"]
    assert (found["code"], found["where"]["file"], found["where"]["line"]) == ("SCRIPT014", "train.py", 3)
    assert found["where"]["column"] == 1
    assert "rank=" in found["fix"]


def test_the_table_shows_the_line_with_carets(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(POSITIONAL)
    lines = doctor("lint", "train.py", cwd=tmp_path).stdout.splitlines()
    at = lines.index(" 3 | dist.init_process_group('gloo', 0, 2)")
    assert lines[0].startswith("train.py:3:1 error[SCRIPT014]: ")
    assert lines[at + 1].startswith("   | ^")


@pytest.mark.parametrize(
    ("comment", "left"),
    [
        ("# ddpdoctor: ignore[SCRIPT014]", []),
        ("# ddpdoctor: ignore[script014, SCRIPT001]", [("SCRIPT550", 3)]),
        ("# ddpdoctor: ignore[SCRIPT]", []),
        ("# ddpdoctor: ignore", []),
        ("# noqa  # ddpdoctor: ignore[SCRIPT014]", []),
        ("# ddpdoctor: ignore[SCRIPT013]", [("SCRIPT014", 3), ("SCRIPT550", 3)]),
        ("# ddpdoctor: ignore[LAUNCH001]", [("SCRIPT014", 3), ("SCRIPT550", 3)]),
        ("# a comment", [("SCRIPT014", 3)]),
    ],
)
def test_a_comment_silences_on_its_line(comment: str, left: list[tuple[str, int]], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(POSITIONAL.replace("2)", f"2)  {comment}"))
    assert _found(_lint("train.py", cwd=tmp_path)) == left


def test_a_comment_for_a_rule_that_was_not_judged_is_not_called_idle(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(POSITIONAL.replace("2)", "2)  # ddpdoctor: ignore[SCRIPT013]"))
    assert _found(_lint("train.py", "--ignore", "SCRIPT013", cwd=tmp_path)) == [("SCRIPT014", 3)]


def test_a_notebook_is_told_by_its_cells(tmp_path: Path) -> None:
    (tmp_path / "nb.ipynb").write_text(notebook("%matplotlib inline\n!pip install torch\nimport os", POSITIONAL))
    (found,) = _lint("nb.ipynb", cwd=tmp_path)["findings"]
    assert (found["code"], found["where"]["file"], found["where"]["line"]) == ("SCRIPT014", "nb.ipynb", 3)
    assert found["message"].startswith("cell 2: ")


def test_a_cell_that_is_no_python_leaves_the_others_judged(tmp_path: Path) -> None:
    (tmp_path / "nb.ipynb").write_text(notebook("import os\ndef f(:\n    pass", POSITIONAL))
    found = _lint("nb.ipynb", cwd=tmp_path)["findings"]
    places = {f["code"]: (f["message"][:6], f["where"]["line"]) for f in found}
    assert places == {"SCRIPT500": ("cell 1", 2), "SCRIPT014": ("cell 2", 3)}


def test_what_is_too_long_is_said_not_to_be_judged(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "long.py").write_bytes(b"import torch.distributed\nx = 1\n" + b"#" * (17 << 20))
    (tmp_path / "src" / "null.py").write_bytes(BROKEN["null.py"])
    found = {Path(f["where"]["file"]).name: f for f in _lint("src", cwd=tmp_path)["findings"]}
    assert {name: (f["code"], f["severity"]) for name, f in found.items()} == {
        "long.py": ("SCRIPT500", "note"),
        "null.py": ("SCRIPT500", "error"),
    }
    assert "file not checked: larger than 16 MiB" in found["long.py"]["message"]


def test_a_folder_is_searched_as_git_would(tmp_path: Path) -> None:
    for name in ("src/train.py", "src/deep/nested.py", "src/old/train.py", "src/.venv/x.py", "src/build/x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(POSITIONAL)
    (tmp_path / "src" / ".gitignore").write_text("old/\n")
    (tmp_path / "src" / "nb.ipynb").write_text(notebook(POSITIONAL))
    report = _lint("src", cwd=tmp_path)
    assert sorted(f["where"]["file"] for f in report["findings"]) == [
        "src/deep/nested.py",
        "src/nb.ipynb",
        "src/train.py",
    ]


BROKEN = {
    "python2.py": b"import torch.distributed\nprint 'rank'\n",
    "syntax.py": b"import torch.distributed\ndef f(:\n",
    "latin1.py": b"import torch.distributed\nx = '\xe9'\n",
    "utf16.py": "import torch.distributed\n".encode("utf-16"),
    "null.py": b"import torch.distributed\n\0",
    "deep.py": b"import torch.distributed\nx = " + b"(" * 5000 + b")" * 5000 + b"\n",
    "chain.py": b"import torch.distributed\nx = " + b"not " * 20000 + b"1\n",
    "elifs.py": b"import torch.distributed\nif x == 0:\n    pass\n"
    + b"".join(b"elif x == %d:\n    pass\n" % i for i in range(3000)),
    "broken.ipynb": b'{"cells": [torch.distributed',
}
FINE = {
    "empty.py": b"",
    "bom.py": b"\xef\xbb\xbfimport torch.distributed\n",
    "declared.py": b"# coding: latin-1\nimport torch.distributed\nx = '\xe9'\n",
    "windows.py": b"import torch.distributed\r\nx = 1\r\n",
    "contexts.py": b"import torch.distributed\ndef f():\n    with "
    + b",".join([b"a"] * 2000)
    + b":\n        torch.distributed.barrier()\nf()\n",
}


def test_what_cannot_be_judged_is_a_finding_and_never_stops_the_rest(tmp_path: Path) -> None:
    for name, data in {**BROKEN, **FINE}.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "train.py").write_text(POSITIONAL)
    report = _lint(*BROKEN, *FINE, "train.py", cwd=tmp_path, code=1)
    told: dict[str, set[str]] = {}
    for finding in report["findings"]:
        told.setdefault(finding["where"]["file"], set()).add(finding["code"])
    assert set(told) == {*BROKEN, "train.py"}
    assert told.pop("train.py") == {"SCRIPT014"}
    assert all(code >= "SCRIPT500" for codes in told.values() for code in codes), told


def test_a_file_that_is_not_there_ends_with_3_and_the_rest_is_judged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(POSITIONAL)
    report = _lint("missing.py", "train.py", cwd=tmp_path, code=3)
    assert _found(report) == [("SCRIPT014", 3)]
    assert "missing.py" in report["crashed"][0]["error"]


def test_modules_beside_the_script_are_read(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text(
        "import torch.distributed as dist\n\n\ndef is_main():\n    return dist.get_rank() == 0\n"
    )
    text = (
        "import torch.distributed as dist\nfrom utils import is_main\n\n\n"
        "def save():\n    if is_main():\n        dist.barrier()\n"
    )
    (tmp_path / "train.py").write_text(text)
    assert _found(_lint("train.py", cwd=tmp_path)) == [("SCRIPT024", 7)]
    assert _found(_lint(str(tmp_path / "train.py"), cwd=Path("/"))) == [("SCRIPT024", 7)]


def test_the_launch_line_decides_what_is_certain(tmp_path: Path) -> None:
    text = (
        "import torch.distributed as dist\nimport torch.multiprocessing as mp\n\n\ndef run(rank, size):\n"
        "    dist.init_process_group('gloo', init_method='tcp://127.0.0.1:29501', rank=rank, world_size=size)\n"
        "    dist.destroy_process_group()\n\n\nif __name__ == '__main__':\n    mp.spawn(run, args=(2,), nprocs=2)\n"
    )
    (tmp_path / "train.py").write_text(text)
    assert _found(_lint("train.py", cwd=tmp_path)) == []
    assert _found(_lint("--", "python", "train.py", cwd=tmp_path)) == []
    under = _lint("--", "torchrun", "--nproc-per-node=2", "train.py", cwd=tmp_path, code=1)
    codes = [f["code"] for f in under["findings"]]
    assert "LAUNCH056" in codes


def test_a_shell_script_names_the_script_that_is_judged_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(POSITIONAL)
    (tmp_path / "run.sh").write_text("torchrun --nproc-per-node=2 train.py\n")
    for files in (("run.sh",), ("run.sh", "train.py"), ("train.py", "run.sh")):
        report = _lint(*files, cwd=tmp_path)
        assert _of(report, "train.py") == [("SCRIPT014", 3)], files


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (("torchrun", "--nproc-per-node=2"), "SCRIPT009"),
        (("torchrun", "--nproc-per-node=4"), None),
        (("python",), None),
    ],
)
def test_a_world_size_of_the_script_is_held_against_the_line(
    line: tuple[str, ...], code: str | None, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nimport torch.distributed as dist\n\n"
        "dist.init_process_group('gloo', rank=int(os.environ['RANK']), world_size=4)\ndist.destroy_process_group()\n"
    )
    found = [f["code"] for f in _lint("--", *line, "train.py", cwd=tmp_path)["findings"]]
    assert [c for c in found if c.startswith("SCRIPT")] == ([] if code is None else [code])


def test_check_judges_the_script_against_this_machine_too(tmp_path: Path) -> None:
    text = POSITIONAL.replace("gloo", "nccl")
    (tmp_path / "train.py").write_text(text)
    done = doctor("check", "--no-probe", "--format", "json", "--", "torchrun", "train.py", cwd=tmp_path)
    found = _found(json.loads(done.stdout))
    assert ("SCRIPT014", 3) in found
    has_gpu = any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))
    assert (("SCRIPT023", 3) in found) != has_gpu
    assert "SCRIPT023" not in [f["code"] for f in _lint("--", "torchrun", "train.py", cwd=tmp_path)["findings"]]


def _patched(folder: Path, *files: str, unsafe: bool = False) -> subprocess.CompletedProcess[bytes]:
    options = ("--diff", "--unsafe") if unsafe else ("--diff",)
    done = doctor("lint", *options, *files, cwd=folder, shell='"$@" > patch.diff 2> told.txt; true')
    assert done.returncode == 0
    command = ["patch", "-p1", "--batch", "-i", "patch.diff"]
    for option in ("-p0", "-p1"):
        assert (
            subprocess.run(
                ["patch", option, "--batch", "--dry-run", "-i", "patch.diff"],
                cwd=folder,
                timeout=30,
                check=False,
                capture_output=True,
            ).returncode
            == 0
        )
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=30, check=False)


@needs_patch
@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("plain.py", POSITIONAL.encode()),
        ("windows.py", POSITIONAL.replace("\n", "\r\n").encode()),
        ("no_last_newline.py", b"import torch.distributed as dist\ndist.init_process_group('gloo', 0, 2)"),
        ("marked.py", b"\xef\xbb\xbf" + POSITIONAL.encode()),
        ("latin.py", b"# coding: latin-1\ns = '\xe9'\n" + POSITIONAL.encode()),
        ("src/wide.py", "s = '漢字'; ".encode() + POSITIONAL.encode()),
        ("nb.ipynb", notebook("%cd /tmp\ns = 'é'", POSITIONAL).encode()),
    ],
)
def test_the_patch_applies_and_mends(name: str, before: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(before)
    applied = _patched(tmp_path, name)
    assert applied.returncode == 0, applied.stdout
    assert path.read_bytes() != before
    assert b"rank=0" in path.read_bytes()
    assert not [f for f in _lint(name, cwd=tmp_path)["findings"] if f["code"] == "SCRIPT014"]


@needs_patch
def test_all_corrections_of_the_wrong_forms_go_together(tmp_path: Path) -> None:
    for path in WRONG:
        shutil.copy(path, tmp_path)
    before = {path.name: (tmp_path / path.name).read_text() for path in WRONG}
    for unsafe in (False, True):
        applied = _patched(tmp_path, ".", unsafe=unsafe)
        assert applied.returncode == 0, applied.stdout
    changed = [name for name, text in before.items() if (tmp_path / name).read_text() != text]
    assert len(changed) > len(WRONG) // 3
    for name in changed:
        ast.parse((tmp_path / name).read_text())


def test_a_patch_stands_alone_on_standard_output(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(POSITIONAL)
    done = doctor("lint", "--diff", "train.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("--- ./train.py\n+++ ./train.py\n@@ ")
    assert done.stderr.startswith("ddpdoctor: 1 of 1 findings corrected")
    assert (tmp_path / "train.py").read_text() == POSITIONAL
    assert doctor("lint", "--diff", "--format", "json", "train.py", cwd=tmp_path).returncode == 2


def test_nothing_to_correct_is_an_empty_patch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    done = doctor("lint", "--diff", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


def test_many_files_are_judged_by_several_processes_and_end_in_time(tmp_path: Path) -> None:
    for number in range(120):
        (tmp_path / f"a{number:03}.py").write_text(POSITIONAL)
    report = _lint(".", cwd=tmp_path, code=1)
    assert [f["where"]["file"] for f in report["findings"]] == [f"a{n:03}.py" for n in range(120)]
    report = _lint(".", "--timeout", "0.05", cwd=tmp_path, code=3)
    assert "--timeout ran out" in report["crashed"][-1]["error"]
