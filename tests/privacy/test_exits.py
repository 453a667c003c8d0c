"""Hundreds of secrets of every kind through every exit of ddpdoctor: files, pipes, other nodes, the store. None may leave."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from commandline import doctor, environment, inside
from machines import machine_json
from planted import COPIES, KINDS, Kind, Secret, planted

from ddpdoctor.render import FORMATS

NAMED = tuple(kind for kind in KINDS if kind.name and not kind.name.startswith("-"))
OPTIONS = tuple(kind for kind in KINDS if kind.name.startswith("-"))
SHAPED = tuple(kind for kind in KINDS if not kind.name)


def leaked(secrets: Iterable[Secret], text: str) -> list[str]:
    """What can be read in a text, by kind."""
    plain = text.replace("\\/", "/")
    return [f"{each.kind.title}: {each.value}" for each in secrets if each.value in plain or each.value in text]


def launch_words(secrets: Iterable[Secret]) -> tuple[list[str], list[str]]:
    """Variables before a launcher, and arguments of its script, that hold the secrets."""
    before, after = [], []
    for each in secrets:
        if each.kind.name.startswith("-"):
            after += [each.kind.name, each.value]
        elif each.kind.name:
            before.append(f"{each.kind.name}={each.value}")
        else:
            after.append(f"--note={each.line.strip()}")
    return before, after


def batches(secrets: list[Secret], size: int = 60) -> Iterable[list[Secret]]:
    """As many as one long launch line has."""
    return (secrets[at : at + size] for at in range(0, len(secrets), size))


def sown(seed: int, kinds: Iterable[Kind] = KINDS, copies: int = COPIES) -> list[Secret]:
    """The planted secrets; a quarter of them by default, another one at each exit, and all with DDPDOCTOR_FULL=1."""
    secrets = planted(seed, kinds, copies)
    return secrets if os.environ.get("DDPDOCTOR_FULL") == "1" else secrets[seed % 4 :: 4]


def test_there_are_enough_kinds() -> None:
    assert len({kind.title for kind in KINDS}) >= 150
    assert len(planted(0)) >= 400


@pytest.mark.parametrize("form", FORMATS)
def test_no_format_of_a_linted_line_holds_a_secret(form: str, tmp_path: Path) -> None:
    for secrets in batches(sown(FORMATS.index(form), copies=COPIES if form == "json" else 1)):
        before, after = launch_words(secrets)
        line = [*before, "torchrun", "--nnodes", "2", "train.py", *after, "--nproc_per_node", "4"]
        done = inside("lint", "--format", form, "--output", str(tmp_path / "report"), "--", *line, cwd=tmp_path)
        written = (tmp_path / "report").read_text()
        assert "LAUNCH001" in written
        assert leaked(secrets, done.stdout + done.stderr + written) == []


def test_a_piped_table_and_the_lines_of_nodes_hold_no_secret(tmp_path: Path) -> None:
    for secrets in batches(sown(20, copies=1)):
        before, after = launch_words(secrets)
        line = shlex.join([*before, "torchrun", "--nnodes", "2", "train.py", *after, "--nproc_per_node", "4"])
        done = inside("lint", "--verbose", "--node", line, "--node", line, cwd=tmp_path)
        assert "LAUNCH001" in done.stdout
        assert leaked(secrets, done.stdout + done.stderr) == []


def test_imagined_processes_hold_no_secret(tmp_path: Path) -> None:
    secrets = sown(21, copies=1)
    before, after = launch_words(secrets)
    job = tmp_path / "job.sh"
    job.write_text(
        "\n".join(f"export {word}" for word in map(shlex.quote, before)) + f"\ntorchrun train.py {shlex.join(after)}\n"
    )
    for form in ("table", "json"):
        done = inside("lint", "--show-processes", "--format", form, str(job), cwd=tmp_path)
        assert "train.py" in done.stdout
        assert leaked(secrets, done.stdout + done.stderr) == []


def _script(secrets: Iterable[Secret]) -> str:
    """A training script in which a finding points at every secret's line."""
    lines = ["import os", "import torch.distributed as dist", "import wandb", "dist.init_process_group('nccl')"]
    for number, each in enumerate(secrets):
        value = repr(each.value if each.kind.name else each.line)
        name = each.kind.name.strip("-").replace("-", "_").lower() or f"note{number}"
        lines += [f"if dist.get_rank() == 0: {name} = {value}; dist.all_reduce(grad)"]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("form", ["table", "json", "sarif", "markdown"])
def test_a_linted_script_keeps_its_secrets(form: str, tmp_path: Path) -> None:
    secrets = sown(30, copies=1)
    (tmp_path / "train.py").write_text(_script(secrets))
    done = inside("lint", "--verbose", "--format", form, "train.py", cwd=tmp_path)
    assert "SCRIPT" in done.stdout
    assert leaked(secrets, done.stdout + done.stderr) == []


def test_a_notebook_keeps_its_secrets(tmp_path: Path) -> None:
    secrets = sown(31, copies=1)
    cell = {"cell_type": "code", "source": _script(secrets).splitlines(keepends=True), "metadata": {}, "outputs": []}
    (tmp_path / "train.ipynb").write_text(
        json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    done = inside("lint", "--verbose", "train.ipynb", cwd=tmp_path)
    assert "SCRIPT" in done.stdout
    assert leaked(secrets, done.stdout + done.stderr) == []


def test_a_patch_keeps_the_secrets_of_its_context(tmp_path: Path) -> None:
    secrets = sown(32, copies=1)
    lines = ["import os", "import torch", "import torch.distributed as dist", "dist.init_process_group('nccl')"]
    for number, each in enumerate(secrets):
        name = each.kind.name.strip("-").replace("-", "_").lower() or f"note{number}"
        value = repr(each.value if each.kind.name else each.line)
        wrapped = f"model{number} = torch.nn.parallel.DistributedDataParallel(net, device_ids=[dist.get_rank()])"
        lines += [f"{name} = {value}", "step = 0", wrapped, *["step += 1"] * 8]
    (tmp_path / "train.py").write_text("\n".join(lines) + "\n")
    done = inside("lint", "--diff", "--unsafe", "train.py", cwd=tmp_path)
    assert "device_ids" in done.stdout
    assert leaked(secrets, done.stdout + done.stderr) == []


@pytest.mark.parametrize("name", ["job.sh", "job.yaml"])
def test_a_job_file_keeps_its_secrets(name: str, tmp_path: Path) -> None:
    secrets = sown(33, copies=1)
    before, after = launch_words(secrets)
    if name == "job.sh":
        text = "#!/bin/bash\n" + "\n".join(f"export {shlex.quote(word)}" for word in before)
        text += (
            "\n"
            + "\n".join(
                f"torchrun --nnodes 2 train.py {shlex.join(after[at : at + 2])} --nproc_per_node 4"
                for at in range(0, len(after), 2)
            )
            + "\n"
        )
    else:
        env = "".join(
            f"            - name: {each.kind.name}\n              value: {json.dumps(each.value)}\n"
            for each in secrets
            if each.kind in NAMED
        )
        args = json.dumps(["torchrun", "--nnodes", "2", "train.py", *after, "--nproc_per_node", "4"])
        text = (
            "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata:\n  name: job\nspec:\n  pytorchReplicaSpecs:\n    Master:\n"
            "      replicas: 1\n      template:\n        spec:\n          containers:\n          - name: pytorch\n"
            f"            image: x\n            command: {args}\n            env:\n{env}"
        )
    (tmp_path / name).write_text(text)
    done = inside("lint", "--verbose", name, cwd=tmp_path)
    assert "LAUNCH" in done.stdout
    assert leaked(secrets, done.stdout + done.stderr) == []


@pytest.mark.parametrize("form", ["table", "json", "junit"])
def test_check_keeps_the_secrets_of_its_line_and_environment(form: str, tmp_path: Path) -> None:
    secrets = sown(40, copies=1)
    before, after = launch_words(secrets)
    own = sown(41, NAMED, 1)
    line = [*before, "torchrun", "--nnodes", "1", "missing.py", *after, "--nproc_per_node", "4"]
    done = doctor(
        *("check", "--no-probe", "--no-meet", "--format", form, "--output", str(tmp_path / "report"), "--", *line),
        env={each.kind.name: each.value for each in own},
        cwd=tmp_path,
    )
    written = (tmp_path / "report").read_text()
    assert "LAUNCH" in written
    assert leaked((*secrets, *own), done.stdout + done.stderr + written) == []


def test_collected_facts_hold_no_secret_of_a_rank_or_of_its_environment(tmp_path: Path) -> None:
    secrets = sown(50)
    before, after = launch_words(secrets)
    variables = dict(word.split("=", 1) for word in before)
    gathered = {f"NCCL_NOTE_{at}": each.line for at, each in enumerate(secrets) if not each.kind.name}
    gathered |= {f"TORCH_{name}": value for name, value in variables.items()}
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29599"}
    (tmp_path / "train.py").write_text("import time\ntime.sleep(60)\n")
    child = subprocess.Popen(
        [sys.executable, "train.py", *after], env=environment({**variables, **gathered, **rank}), cwd=tmp_path
    )
    try:
        done = doctor("collect", "-o", "facts.json", env={**variables, **gathered}, cwd=tmp_path)
    finally:
        child.kill()
        child.wait()
    facts = (tmp_path / "facts.json").read_text()
    assert str(child.pid) in facts
    assert "NCCL_NOTE_" in facts
    assert leaked(secrets, facts + done.stdout + done.stderr) == []
    for words in (
        ("compare", "facts.json", "facts.json"),
        ("env", "--facts", "facts.json", "--verbose"),
        ("hang", "--facts", "facts.json"),
    ):
        told = inside(*words, "--format", "json", cwd=tmp_path)
        assert leaked(secrets, told.stdout + told.stderr) == []


def test_facts_that_somebody_wrote_by_hand_are_shown_without_their_secrets(tmp_path: Path) -> None:
    secrets = sown(51, copies=1)
    facts = machine_json("cpu_vm")
    for at, name in enumerate(("a", "b")):
        mine = secrets[at::2]
        facts["hostname"] = name
        facts["environ"]["variables"] = {f"NCCL_NOTE_{number}": each.line for number, each in enumerate(mine)}
        (tmp_path / f"{name}.json").write_text(json.dumps(facts))
    for form in ("table", "json"):
        told = inside("compare", "--verbose", "--format", form, "a.json", "b.json", cwd=tmp_path)
        assert told.returncode != 2, told.stderr
        assert leaked(secrets, told.stdout + told.stderr) == []
        told = inside("env", "--verbose", "--format", form, "--facts", "a.json", cwd=tmp_path)
        assert "NCCL_NOTE" in told.stdout or form != "table"
        assert leaked(secrets, told.stdout + told.stderr) == []


@pytest.mark.parametrize("form", FORMATS)
def test_triage_keeps_the_secrets_of_a_log(form: str, tmp_path: Path) -> None:
    secrets = sown(60 + FORMATS.index(form), copies=1)[::2]
    for at, each in enumerate(secrets):
        folder = tmp_path / "logs" / f"job-{at}"
        folder.mkdir(parents=True)
        (folder / f"slurm-{1000 + at}.out").write_text(
            'Traceback (most recent call last):\n  File "/w/train.py", line 3, in <module>\n    login()\n'
            f"RuntimeError: login failed: {each.line.strip()}\n"
        )
    done = inside("triage", "--verbose", "--format", form, "logs", cwd=tmp_path)
    assert "login failed" in done.stdout
    assert leaked(secrets, done.stdout + done.stderr) == []


def test_run_keeps_no_secret_of_the_output_of_a_job(tmp_path: Path) -> None:
    secrets = sown(70)
    text = "\n".join(each.line for each in secrets)
    (tmp_path / "out.txt").write_text(text)
    (tmp_path / "job.py").write_text("print(open('out.txt').read(), flush=True)\nraise RuntimeError('login failed')\n")
    command = [sys.executable, "-m", "ddpdoctor", "run", "--no-check", "--", sys.executable, "job.py"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment({"TMPDIR": str(tmp_path)}), cwd=tmp_path, timeout=100
    )
    told = done.stderr.partition("ddpdoctor: the job ended")[2]
    kept = list(tmp_path.glob("ddpdoctor_output_*/*"))
    assert len(kept) == 1
    assert kept[0].stat().st_mode & 0o077 == 0
    assert "login failed" in kept[0].read_text()
    assert leaked(secrets, kept[0].read_text() + told) == []
    assert leaked(secrets, done.stdout) != []  # the job's own output is the user's


def test_equal_secrets_have_equal_marks_in_one_run_only(tmp_path: Path) -> None:
    line = [
        "lint",
        "--format",
        "json",
        "--",
        "A_TOKEN=Falcon77meadow",
        "B_TOKEN=Harbor12silver",
        "torchrun",
        "--nnodes=2",
        "t.py",
    ]
    line += ["--token", "Falcon77meadow", "--nproc_per_node", "4"]
    marks = []
    for _ in range(2):
        report = json.loads(doctor(*line, cwd=tmp_path).stdout)
        fixed = next(each["fix_command"] for each in report["findings"] if each["code"] == "LAUNCH001")
        words = shlex.split(fixed)
        first, second = (
            next(w for w in words if w.startswith(name)).partition("=")[2] for name in ("A_TOKEN", "B_TOKEN")
        )
        assert first != second
        assert words[words.index("--token") + 1] == first
        marks.append(first)
    assert marks[0] != marks[1]


def test_kinds_stand_for_themselves() -> None:
    assert {type(kind) for kind in KINDS} == {Kind}
    assert len(SHAPED) + len(NAMED) + len(OPTIONS) == len(KINDS)
    assert os.sep == "/"
