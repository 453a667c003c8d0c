"""The collector of the environment: only what matters, no secrets, and the programs above us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpdoctor.collectors.environ import collect
from ddpdoctor.facts.codec import encode
from ddpdoctor.facts.environ import REMOVED, Environ
from ddpdoctor.system.machine import Machine, Root

ME = 100


def tree(folder: Path, *programs: tuple[str, str], maps: dict[int, str] | None = None, first: str = "") -> Root:
    """A /proc with this process at pid 100 and `programs` above it, nearest first, as (comm, command line)."""
    pids = [ME, *range(50, 50 - len(programs) + 1, -1), 1][: len(programs) + 1]
    for pid, parent, (comm, line) in zip(pids, [*pids[1:], 0], [("python", "python"), *programs], strict=True):
        here = folder / "proc" / str(pid)
        here.mkdir(parents=True)
        (here / "stat").write_text(f"{pid} ({comm} (x) S 9) S {parent} 1 1 0 -1")
        (here / "comm").write_text(comm + "\n")
        (here / "cmdline").write_text("\0".join(line.split()) + "\0")
        (here / "maps").write_text((maps or {}).get(pid, "7f00 r-xp /usr/lib/libc.so.6\n"))
        (here / "environ").write_text(first if pid == 1 else "")
    (folder / "proc" / "self").mkdir()
    (folder / "proc" / "self" / "stat").write_text((folder / "proc" / str(ME) / "stat").read_text())
    return Root(str(folder))


BASH = ("bash", "-bash")
INIT = ("systemd", "/sbin/init")
LEFT = {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True"}


def test_only_variables_that_matter_are_gathered_and_secrets_are_replaced(tmp_path: Path) -> None:
    given = {
        "RANK": "0",
        "HOME": "/root",
        "HF_TOKEN": "hf_abc",
        "NCCL_TOKEN": "abc",
        "PET_RDZV_ENDPOINT": "tcp://me:pw@h:1",
    }
    environ = collect(Machine(Root(str(tmp_path)), given))
    assert environ.variables == {"NCCL_TOKEN": REMOVED, "PET_RDZV_ENDPOINT": "tcp://***@h:1", "RANK": "0"}


def test_variables_that_frameworks_and_tempfile_read_are_gathered(tmp_path: Path) -> None:
    given = {"PL_TORCH_DISTRIBUTED_BACKEND": "nccl", "DISTRIBUTED_BACKEND": "nccl", "TEMP": "/x", "TMP": "/y"}
    assert collect(Machine(Root(str(tmp_path)), given)).variables == given


def test_bytes_that_are_no_text_can_still_be_written(tmp_path: Path) -> None:
    environ = collect(Machine(Root(str(tmp_path)), {"MASTER_ADDR": os.fsdecode(b"\xff\xfe")}))
    json.dumps(encode(environ), ensure_ascii=False).encode("utf-8")


def test_without_proc_the_parents_are_a_gap_and_no_guess(tmp_path: Path) -> None:
    environ = collect(Machine(Root(str(tmp_path)), LEFT))
    assert environ.ancestors is None
    assert environ.has_elastic_agent is None
    assert {g.path for g in environ.gaps} == {"environ.ancestors", "environ.has_elastic_agent"}


def test_programs_are_named_without_their_arguments(tmp_path: Path) -> None:
    script = ("python3", "/usr/bin/python3 -X dev -u /srv/train.py --api-key abc")
    module = ("python3", "python3 -m torch.distributed.run --nproc-per-node 2 train.py")
    root = tree(tmp_path, script, module, ("pt_elastic", "python /opt/bin/torchrun train.py"), BASH, INIT)
    environ = collect(Machine(root, {}))
    assert environ.ancestors == ("train.py", "torch.distributed.run", "torchrun (pt_elastic)", "bash", "systemd")
    assert environ.has_elastic_agent is None, "not asked for: no TORCHELASTIC_* variable is set"


@pytest.mark.parametrize(
    "agent",
    [
        ("pt_elastic", "python3 /opt/bin/torchrun train.py"),
        ("python3", "python3 -m torch.distributed.launch train.py"),
        ("accelerate", "python3 /opt/bin/accelerate launch train.py"),
    ],
)
def test_an_agent_above_us_is_found(tmp_path: Path, agent: tuple[str, str]) -> None:
    assert collect(Machine(tree(tmp_path, BASH, agent, INIT), LEFT)).has_elastic_agent is True


def test_shells_alone_are_no_agent(tmp_path: Path) -> None:
    assert collect(Machine(tree(tmp_path, BASH, ("tmux", "tmux"), INIT), LEFT)).has_elastic_agent is False


def test_a_program_that_uses_the_launcher_api_may_be_the_agent(tmp_path: Path) -> None:
    root = tree(
        tmp_path, ("python3", "python3 notebook.py"), INIT, maps={50: "7f00 r-xp /x/torch/lib/libtorch_cpu.so\n"}
    )
    assert collect(Machine(root, {**LEFT, "TORCHELASTIC_ERROR_FILE": "/tmp/e.json"})).has_elastic_agent is True
    assert collect(Machine(root, LEFT)).has_elastic_agent is False, "an agent always sets the error file"


def test_a_python_whose_memory_may_not_be_read_is_unknown(tmp_path: Path) -> None:
    root = tree(tmp_path, ("python3", "python3 notebook.py"), INIT)
    (tmp_path / "proc" / "50" / "maps").unlink()
    assert collect(Machine(root, {**LEFT, "TORCHELASTIC_ERROR_FILE": "/tmp/e.json"})).has_elastic_agent is None


def test_an_agent_outside_the_container_is_unknown_not_absent(tmp_path: Path) -> None:
    root = tree(tmp_path, BASH, ("sinit", "sinit"), first="HOME=/root\0TORCHELASTIC_RUN_ID=x\0")
    assert collect(Machine(root, LEFT)).has_elastic_agent is None


def test_a_loop_in_proc_ends(tmp_path: Path) -> None:
    root = tree(tmp_path, BASH, INIT)
    (tmp_path / "proc" / "1" / "stat").write_text("1 (init) S 50 1 1")
    assert collect(Machine(root, {})).ancestors == ("bash", "systemd")


def test_our_own_parents_are_read_on_this_machine() -> None:
    code = "from ddpdoctor.collectors.environ import collect\nfrom ddpdoctor.system.machine import this_machine\n"
    code += "import json; from ddpdoctor.facts.codec import encode; print(json.dumps(encode(collect(this_machine()))))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(out.stdout)["ancestors"]


@pytest.mark.torch
def test_a_real_torchrun_worker_knows_its_agent(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "look.py"
    script.write_text(
        "import os\n"
        "from ddpdoctor.collectors.environ import collect\nfrom ddpdoctor.system.machine import this_machine\n"
        "e = collect(this_machine())\n"
        "seen = (e.launcher.name, e.rank, e.world_size, e.has_elastic_agent)\n"
        "open(os.environ['OUT'] + os.environ['RANK'], 'w').write(' '.join(map(str, seen)))\n"
    )
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", str(script)]
    done = subprocess.run(argv, env={**os.environ, "OUT": f"{tmp_path}/"}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / r).read_text() for r in "01"] == ["torchrun 0 2 True", "torchrun 1 2 True"]


def test_an_empty_environment_is_a_known_fact(tmp_path: Path) -> None:
    environ = collect(Machine(tree(tmp_path, BASH, INIT), {}))
    assert environ == Environ(ancestors=("bash", "systemd"))
