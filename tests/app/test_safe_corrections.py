"""`lint --diff` prints only corrections that cannot break a script; `--diff --unsafe` prints the others, marked."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from commandline import doctor

from ddpdoctor.app.safe_corrections import with_safety
from ddpdoctor.findings import Edit, Finding

BREAKS = {
    "destroy_right_after_init": """
import torch.distributed as dist


def setup():
    dist.init_process_group("gloo")


setup()
dist.barrier()
""",
    "guard_of_rank_zero_after_destroy": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
dist.destroy_process_group()
torch.save(model.module.state_dict(), "model.pt")
""",
    "local_rank_in_a_program_that_spawns": """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank, world_size):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29501", rank=rank, world_size=world_size)
    model = torch.nn.Linear(2, 2).cuda()
    dist.all_reduce(model.weight)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(2,), nprocs=2)
""",
    "one_guard_of_two": """
import torch
import torch.distributed as dist


def evaluate(rank):
    if rank == 0:
        total = torch.zeros(1)
        dist.all_reduce(total)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        evaluate(rank)
    dist.destroy_process_group()


main()
""",
    "epoch_of_a_sampler_that_does_not_exist_yet": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(2, 2))
data = [torch.ones(2)] * 8
for epoch in range(3):
    sampler = DistributedSampler(data)
    for x in DataLoader(data, sampler=sampler):
        model(x).sum().backward()
dist.destroy_process_group()
""",
    "epoch_of_a_random_sampler": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(2, 2))
data = [torch.ones(2)] * 8
sampler = DistributedSampler(data) if dist.get_world_size() > 1 else RandomSampler(data)
loader = DataLoader(data, sampler=sampler)
for epoch in range(3):
    for x in loader:
        model(x).sum().backward()
dist.destroy_process_group()
""",
    "epoch_of_something_else": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [torch.ones(2)] * 8
loader = DataLoader(data, shuffle=True)
for epoch in range(3):
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    for x in loader:
        model(x).sum().backward()
dist.destroy_process_group()
""",
    "destroy_without_a_group_when_run_alone": """
import os
import torch.distributed as dist

if "RANK" in os.environ:
    dist.init_process_group("gloo")
    dist.barrier()
print("done")
""",
    "a_second_destroy": """
import torch
import torch.distributed as dist
from mine import finish

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
finish()
""",
    "half_a_correction": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
rank = dist.get_rank()
net = torch.nn.Linear(2, 2).to(f"cuda:{rank}")
model = DDP(net, device_ids=[rank])
model(torch.ones(1, 2).to(f"cuda:{rank}")).sum().backward()
dist.destroy_process_group()
""",
}
"""Programs whose corrections broke them in the field: by what was wrong with the correction."""


@pytest.mark.parametrize("name", BREAKS)
def test_a_correction_that_broke_programs_is_not_safe(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BREAKS[name].lstrip())
    done = doctor("lint", "--diff", "train.py", cwd=tmp_path)
    assert done.stdout == "", done.stdout


def test_what_is_not_safe_is_printed_with_a_mark_on_request(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BREAKS["half_a_correction"].lstrip())
    done = doctor("lint", "--diff", "--unsafe", "train.py", cwd=tmp_path)
    first, *rest = done.stdout.splitlines()
    assert first.startswith("# unsafe: SCRIPT001 ./train.py:")
    assert "--- ./train.py" in rest
    assert done.returncode == 1
    assert "--unsafe prints" in doctor("lint", "--diff", "train.py", cwd=tmp_path).stderr


def test_unsafe_needs_diff(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    done = doctor("lint", "--unsafe", "train.py", cwd=tmp_path)
    assert (done.returncode, "--unsafe needs --diff" in done.stderr) == (2, True)


SHUFFLED = """import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
data = list(range(8))
loader = DataLoader(data, shuffle=True, sampler=DistributedSampler(data))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_a_safe_patch_keeps_the_line_ends_and_applies(end: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(SHUFFLED.replace("\n", end).encode())
    done = doctor("lint", "--diff", "train.py", cwd=tmp_path, shell='"$@" > patch.diff; true')
    assert done.returncode == 0
    subprocess.run(["git", "apply", "patch.diff"], cwd=tmp_path, check=True, timeout=30)
    text = path.read_bytes().decode()
    assert "shuffle=True" not in text
    assert text.count(end) == SHUFFLED.count("\n")
    assert text.replace(end, "").count("\n") == 0
    ast.parse(text)


def _named(code: str, edit: Edit) -> Finding:
    return replace(Finding("a message"), code=code, edits=(edit,))


Judge = Callable[[str], list[Finding]]


@pytest.mark.parametrize(
    ("added", "judge", "safe"),
    [
        ("x = 1\n", lambda text: [], True),
        ("x = unknown_name\n", lambda text: [], False),
        ("x = (\n", lambda text: [], False),
        ("x = os.environ['LOCAL_RANK']\n", lambda text: [], False),
        ("dist.barrier()\n", lambda text: [], False),
        ("x = 1\n", lambda text: [_named("A", Edit("train.py", 1, 1, 1, 1, ""))], False),
        ("x = 1\n", lambda text: [_named("B", Edit("train.py", 1, 1, 1, 1, ""))], False),
    ],
    ids=["clean", "unknown name", "syntax", "variable", "no group", "still found", "a new finding"],
)
def test_a_correction_is_safe_only_if_the_result_is_proven(added: str, judge: Judge, safe: bool) -> None:
    text = "import os\nimport torch.distributed as dist\n"
    edit = Edit("train.py", 3, 1, 3, 1, added, is_safe=True)
    (finding,) = with_safety(text, "train.py", [_named("A", edit)], judge)
    assert finding.is_corrected_safely is safe


def test_one_correction_that_is_not_safe_does_not_take_the_others_with_it() -> None:
    good = _named("A", Edit("train.py", 1, 1, 1, 1, "x = 1\n", is_safe=True))
    bad = _named("B", Edit("train.py", 2, 1, 2, 1, "y = unknown\n", is_safe=True))
    found = with_safety("import torch\n", "train.py", [good, bad], lambda text: [bad])
    assert [f.is_corrected_safely for f in found] == [True, False]


def test_set_epoch_is_safe_where_the_sampler_is_made_once_before_the_loop(tmp_path: Path) -> None:
    text = BREAKS["epoch_of_a_sampler_that_does_not_exist_yet"].lstrip()
    line = "    sampler = DistributedSampler(data)\n"
    (tmp_path / "train.py").write_text(text.replace(line, "").replace("for epoch", f"{line.strip()}\nfor epoch"))
    done = doctor("lint", "--diff", "train.py", cwd=tmp_path)
    assert "+    sampler.set_epoch(epoch)" in done.stdout
