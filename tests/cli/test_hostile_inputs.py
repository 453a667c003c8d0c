"""Inputs that would block, grow or crash: every command ends in bounded time and memory, with a report and a reason."""

from __future__ import annotations

import json
import os
import pickle
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commandline import doctor, environment

MOST_BYTES = 1400 << 20
"""Address space: what Python and its libraries map, and the budget of one engine."""
SECONDS = 60.0


def _doctor(*words: str, cwd: Path, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """Run the doctor with a limited address space; it must end in time, without a bug."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))

    command = [sys.executable, "-m", "ddpdoctor", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment(), timeout=seconds, preexec_fn=limit, input=""
    )
    assert "internal error" not in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done


def _anchors() -> str:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, 10)]
    return "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\n" + "\n".join(rows) + "\nspec: *a9\n"


def _variables() -> str:
    rows = "".join(
        f"    - {{name: A{at}, value: $(A{at - 1})$(A{at - 1})$(A{at - 1})$(A{at - 1})}}\n" for at in range(1, 40)
    )
    head = (
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - name: c\n    env:\n    - {name: A0, value: xxxxxxxxxx}\n"
    )
    return head + rows + "    command: [torchrun, '$(A39)']\n"


BOMBS = {
    "anchors.yaml": _anchors(),
    "variables.yaml": _variables(),
    "doubles.sh": "A=xxxxxxxxxx\n" + "A=$A$A\n" * 60 + "torchrun train.py $A\n",
    "printf.sh": "printf -v A '%1000000000d' 5\ntorchrun train.py $A\n",
    "braces.sh": "torchrun train.py {1..100}{1..100}{1..100}{1..100}{1..100}\n",
    "cases.sh": "case $X in\n"
    + "".join(f"a{at}) torchrun --nproc-per-node {at} t.py;;\n" for at in range(20000))
    + "esac\n",
    "nested.sh": "echo " + "$(" * 5000 + "torchrun t.py" + ")" * 5000 + "\n",
    "returns.sh": "echo hi\r" * 100_000 + "torchrun t.py\r",
    "numbers.py": "import torch.distributed as dist\ndist.init_process_group('nccl')\nx = [0] * 10**9\ny = '%1000000000d' % 5\n"
    "z = f'{5:>1000000000}'\nw = 'a' * 10**10\nr = 10**10**8\ns = 1 << 10**10\n"
    "if dist.get_rank() == 0:\n    dist.all_reduce(x)\n",
    "deep.py": "import torch.distributed as dist\nx = "
    + "(" * 3000
    + "1"
    + ")" * 3000
    + "\ny = "
    + "+".join(["x"] * 20000)
    + "\n",
    "magics.ipynb": json.dumps(
        {"cells": [{"cell_type": "code", "source": ["%magic x\n", "!ls\n"] * 100_000, "metadata": {}, "outputs": []}]}
    ),
    "worksheets.ipynb": '{"worksheets": 5, "nbformat": 3}',
    "punycode.py": "# -*- coding: punycode -*-\nimport torch\n",
    "undefined.py": "# -*- coding: undefined -*-\nimport torch\n",
}


QUICK = ("nested.sh", "deep.py", "worksheets.ipynb", "punycode.py", "undefined.py")
"""Those that end before their budget of 10 s or more."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in BOMBS])
def test_a_file_that_grows_is_left_out_with_a_reason(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(BOMBS[name])
    started = time.monotonic()
    done = _doctor("lint", "--format", "json", name, cwd=tmp_path, seconds=2 * SECONDS)
    report = json.loads(done.stdout)
    assert [each["path"] for each in report["inputs"]][:1] == [name]
    assert time.monotonic() - started < 2 * SECONDS


@pytest.mark.parametrize("command", ["triage", "lint", "env", "check", "hang", "compare"])
def test_a_pipe_that_nobody_writes_to_ends_every_command(command: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    words = {"triage": ["pipe"], "lint": ["pipe"], "compare": ["pipe", "pipe"]}.get(command, ["--facts", "pipe"])
    done = _doctor(command, *words, "--format", "json", cwd=tmp_path)
    assert done.returncode == 3, done.stdout
    report = json.loads(done.stdout)
    assert report["verdict"] == "incomplete"


def test_pipes_sockets_and_links_to_themselves_in_a_folder_are_passed_over(tmp_path: Path) -> None:
    import socket

    folder = tmp_path / "logs"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    os.mkfifo(folder / "pipe.py")
    os.symlink("self", folder / "self")
    os.symlink(".", folder / "loop")
    (folder / "rank0.log").write_text("[rank0]: RuntimeError: CUDA error: an illegal memory access was encountered\n")
    with socket.socket(socket.AF_UNIX) as listening:
        os.chdir(folder)
        listening.bind("s")
        os.chdir("/")
        for words in (["triage", "logs"], ["lint", "logs"]):
            done = _doctor(*words, "--format", "json", cwd=tmp_path)
            assert json.loads(done.stdout)["inputs"]


@pytest.mark.parametrize(
    "facts", ["", "[", "[" * 100_000, '{"schema": "x/9"}', "\x00", '{"schema": "ddpdoctor.facts/1"}']
)
@pytest.mark.parametrize("command", ["hang", "env", "check"])
def test_unreadable_facts_are_named(facts: str, command: str, tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text(facts)
    done = _doctor(command, "--facts", "facts.json", "--format", "json", cwd=tmp_path)
    assert done.returncode == 3
    assert "facts.json" in done.stdout + done.stderr


@pytest.mark.parametrize("facts", ["/dev/zero", "folder", "large.json", "bytes.json", "other.json"])
@pytest.mark.parametrize("command", ["hang", "check"])
def test_facts_that_are_no_file_too_large_or_of_another_kind_are_named(
    facts: str, command: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(1 << 31)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{\x00")
    (tmp_path / "other.json").write_text('{"schema": "ddpdoctor.facts/1", "hostname": "n", "hang": {"processes": [5]}}')
    done = _doctor(command, "--facts", facts, "--format", "json", cwd=tmp_path)
    assert done.returncode == 3
    assert json.loads(done.stdout)["verdict"] == "incomplete"
    assert facts in done.stdout + done.stderr


def test_integers_beyond_64_bits_are_refused(tmp_path: Path) -> None:
    for name, number in (("a", "1" * 400), ("b", "1e999"), ("c", "9" * 5000)):
        text = (
            '{"schema":"ddpdoctor.facts/1","collected_at":"","hostname":"n","host":{"memory_total_bytes":'
            + number
            + "}}"
        )
        (tmp_path / f"{name}.json").write_text(text)
    done = _doctor("compare", "a.json", "b.json", "c.json", cwd=tmp_path)
    assert done.returncode == 3


@pytest.mark.parametrize(
    "frame", [b"\x28\xb5\x2f\xfd\xa0\xff\xff\xff\x7f", b"\x28\xb5\x2f\xfd\x00\xff", b"\x28\xb5\x2f\xfd"]
)
def test_a_broken_zstd_frame_is_an_unreadable_input(frame: bytes, tmp_path: Path) -> None:
    (tmp_path / "job.log.zst").write_bytes(frame)
    done = _doctor("triage", "job.log.zst", "--format", "json", cwd=tmp_path)
    assert done.returncode == 3
    assert not json.loads(done.stdout)["inputs"][0]["understood"]


def test_an_output_file_is_created_anew_and_never_through_a_link_of_another_user(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        os.symlink("/etc/hostname", tmp_path / "unused")  # only root can make a link that belongs to somebody else
        assert os.lstat(tmp_path / "unused").st_uid == os.getuid()
        return
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (tmp_path / "target").write_text("mine\n")
    os.symlink(tmp_path / "target", shared / "report.json")
    os.lchown(shared / "report.json", 12345, 12345)
    done = _doctor("lint", "--output", str(shared / "report.json"), "--", "torchrun", "t.py", cwd=tmp_path)
    assert done.returncode == 3
    assert "another user made this link" in done.stderr
    assert (tmp_path / "target").read_text() == "mine\n"
    own = shared / "own.json"
    os.symlink(tmp_path / "target", own)
    _doctor("lint", "--output", str(own), "--", "torchrun", "t.py", cwd=tmp_path)
    assert own.is_symlink()
    assert "torchrun" in (tmp_path / "target").read_text()
    assert [each.name for each in shared.iterdir() if each.name.startswith(".")] == []


EVIL = "\x1b]0;evil\x07\u202e[red]x[/red]"


@pytest.mark.parametrize("form", ["table", "json", "markdown", "junit", "sarif", "github", "concise"])
def test_what_strangers_wrote_never_steers_a_terminal(form: str, tmp_path: Path) -> None:
    known = {"schema": "ddpdoctor.facts/1", "collected_at": "", "hostname": "a"}
    files = {
        "key.json": {**known, "host": {EVIL: 1}},
        "schema.json": {**known, "schema": EVIL},
        "a.json": {**known, "hostname": "a" + EVIL, "environ": {"variables": {"NCCL_DEBUG": "a" + EVIL}}},
        "b.json": {**known, "hostname": "b" + EVIL, "environ": {"variables": {"NCCL_DEBUG": "b" + EVIL}}},
    }
    for name, facts in files.items():
        (tmp_path / name).write_text(json.dumps(facts, ensure_ascii=False))
    for words in (
        ["check", "--facts", "key.json"],
        ["env", "--facts", "schema.json"],
        ["compare", "a.json", "b.json"],
        ["lint", "--", "torchrun", "--nnodes", "2", f"{EVIL}.py", "--nproc_per_node", "4"],
    ):
        own, launch = (words[: words.index("--")], words[words.index("--") :]) if "--" in words else (words, [])
        done = _doctor(*own, "--format", form, *launch, cwd=tmp_path)
        assert "\x1b]" not in done.stdout + done.stderr
        assert "\u202e" not in done.stdout + done.stderr


def test_a_script_is_judged_within_its_memory(tmp_path: Path) -> None:
    """A list of 2.5 million numbers took 2.4 GiB and, one second for each of the rules, more than two minutes."""
    head = "import torch.distributed as dist\ndist.init_process_group('nccl')\n"
    (tmp_path / "train.py").write_text(f"{head}x = [{'1,' * 2_000_000}]\n")
    command = [sys.executable, "-m", "ddpdoctor", "lint", "train.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        told = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert "memory" in told
    assert used.ru_maxrss < 700 << 10  # KiB: the budget, and the interpreter


def test_a_dump_is_read_where_less_memory_is_allowed_than_it_may_need(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"version": "2.5", "pg_config": {}, "entries": []}))
    done = doctor("triage", "nccl_trace_rank_0", cwd=tmp_path, shell='ulimit -v 1048576; "$@"')
    assert "ValueError" not in done.stdout + done.stderr
    assert "internal error" not in done.stderr
