"""`lint FILE`: wrong files get their findings at their places, legal ones silence; broken ones never stop the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cases import SITUATIONS, Case, all_cases
from commandline import inside

TRAIN = "import os, torch\ntorch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
LEGAL = [*sorted((SITUATIONS / "job_files").iterdir()), *sorted((SITUATIONS / "manifests").iterdir())]
CASES = all_cases("job-file")


def _lint(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    (folder / "train.py").write_text(TRAIN)
    done = inside("lint", *arguments, "--format", "json", "--torch", "2.13", cwd=folder)
    return done.returncode, json.loads(done.stdout)


def _found(report: dict[str, Any]) -> list[tuple[Any, ...]]:
    return sorted((f["code"], f["where"]["line"], f["where"]["column"]) for f in report["findings"])


def _text(case: Case) -> str:
    """The file's text, with a carriage return at the end of the lines that `carriage-returns` numbers."""
    marked = {int(number) for number in case.keys.get("carriage-returns", "").split()}
    rows = enumerate(case.text.splitlines(keepends=True), start=1)
    return "".join(row.replace("\n", "\r\n") if number in marked else row for number, row in rows)


def _expected(case: Case) -> list[tuple[Any, ...]]:
    """The findings of a case, as (code, line, column)."""
    at = case.keys.get("at", "").split()
    pairs = [(case.code, each) for each in at] or [
        each.split() for each in case.keys.get("expect", "").split(", ") if each
    ]
    return sorted((code, *map(int, place.split(":"))) for code, place in pairs)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_a_job_file_has_its_findings_at_their_places(case: Case, tmp_path: Path) -> None:
    file = case.keys["file"]
    for name, text in {**case.files, file: _text(case)}.items():
        (tmp_path / name).write_text(text, newline="")
    code, report = _lint(tmp_path, file)
    assert bool(_expected(case)) is case.fires, f"{case.source}: a case that fires has `at: LINE:COLUMN`"
    assert _found(report) == _expected(case), [f["message"] for f in report["findings"]]
    assert all(f["where"]["file"] == file for f in report["findings"])
    assert "fix" not in case.keys or case.keys["fix"] in [f["fix_command"] for f in report["findings"]]
    errors = [each["error"] for each in report["crashed"]]
    assert code == (3 if errors else 1 if report["verdict"] == "fail" else 0)
    assert [e.startswith(case.keys.get("fails", "-")) for e in errors] == [True] * ("fails" in case.keys)


def test_legal_files_are_silent(tmp_path: Path) -> None:
    assert len(LEGAL) >= 25
    code, report = _lint(tmp_path, *map(str, LEGAL))
    assert [(f["code"], f["where"], f["message"]) for f in report["findings"]] == []
    not_judged = {Path(each["path"]).name for each in report["inputs"] if not each["understood"]}
    assert not_judged == NOT_JUDGED
    assert (code, report["verdict"]) == (3, "incomplete")


NOT_JUDGED = {
    *(
        "branches.sh",
        "not_about_training.sh",
        "arguments_of_an_entrypoint.yaml",
        "chart_template.yaml",
    ),
    "not_about_training.yml",
}
"""Legal files in which no launch can be read: the program is known to a shell or to an image only."""


def test_every_code_stands_in_one_place_of_the_report(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("torchrun -nproc_per_node=2 train.py\n")
    (tmp_path / "b.sh").write_text("torchrun --nproc_per_node=2 train.py\n")
    _, report = _lint(tmp_path, "a.sh", "b.sh")
    codes = [*report["passed"], *{f["code"] for f in report["findings"]}, *(s["code"] for s in report["skipped"])]
    assert len(codes) == len(set(codes))


def test_an_unreadable_file_does_not_stop_the_rest(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("a: [1\n")
    (tmp_path / "blob.sh").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "run.sh").write_text("torchrun -nproc_per_node=2 train.py\n")
    code, report = _lint(tmp_path, "missing.sh", "bad.yaml", "blob.sh", "run.sh")
    assert code == 3
    assert _found(report) == [("LAUNCH013", 1, 10)]
    assert {e["error"].split(":")[0] for e in report["crashed"]} == {"missing.sh", "bad.yaml"}


@pytest.mark.parametrize(
    ("comment", "is_silent"),
    [
        ("# ddpdoctor: ignore[LAUNCH013]", True),
        ("# ddpdoctor: ignore[ENV, LAUNCH013]", True),
        ("# ddpdoctor: ignore", True),
        ("# ddpdoctor: ignore[LAUNCH014]", False),
        ("# ddpdoctor: ignore[]", False),
    ],
)
def test_a_comment_silences_on_its_line(comment: str, is_silent: bool, tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(f"torchrun -nproc_per_node=2 train.py {comment}\n")
    (tmp_path / "b.sh").write_text(f"torchrun \\\n  -nproc_per_node=2 \\\n  train.py {comment}\n")
    (tmp_path / "c.yaml").write_text(
        "kind: Pod\nspec:\n  containers:\n  - command:\n    - torchrun\n"
        f"    - -nproc_per_node=2 {comment}\n    - train.py\n"
    )
    (tmp_path / "d.sh").write_text(f"{comment}\ntorchrun -nproc_per_node=2 train.py\n")
    _, report = _lint(tmp_path, "a.sh", "b.sh", "c.yaml", "d.sh")
    files = [f["where"]["file"] for f in report["findings"]]
    assert files == (["d.sh"] if is_silent else ["a.sh", "b.sh", "c.yaml", "d.sh"])


def test_a_node_line_and_a_file_are_judged_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("torchrun -nproc_per_node=2 train.py\n")
    _, report = _lint(tmp_path, "a.sh", "--node", "torchrun --nproc_per_nodes=2 train.py")
    assert {(f["code"], f["where"]["file"], f["where"]["node"]) for f in report["findings"]} == {
        ("LAUNCH013", "a.sh", None),
        ("LAUNCH009", None, 0),
    }


def test_pods_of_a_pytorchjob_are_compared_with_the_nodes_that_its_values_ask_for(tmp_path: Path) -> None:
    """With nprocPerNode the operator's WORLD_SIZE counts processes: 32 nodes of which there are four."""
    role = (
        "{replicas: 1, template: {spec: {containers: [{name: pytorch, "
        "command: [bash, -c, 'torchrun --nnodes=$WORLD_SIZE --node-rank=$RANK train.py']}]}}}"
    )
    workers = role.replace("replicas: 1", "replicas: 3")
    spec = f'nprocPerNode: "8", pytorchReplicaSpecs: {{Master: {role}, Worker: {workers}}}'
    text = f"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: bert}}\nspec: {{{spec}}}\n"
    (tmp_path / "job.yaml").write_text(text)
    _, report = _lint(tmp_path, "job.yaml")
    assert [(f["code"], f["where"]["line"]) for f in report["findings"]] == [("LAUNCH085", 4), ("LAUNCH085", 4)]
    assert "4 pods" in report["findings"][0]["message"]
