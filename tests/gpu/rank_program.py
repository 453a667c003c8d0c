"""One rank of a real job on one GPU: `python rank_program.py SCENARIO`, with the usual variables of torchrun.

It prints `step N` before each step; the parent stops or kills it then. NCCL_HOSTID differs between the ranks, so that NCCL
lets them share a GPU: it compares the host's hash and the bus id.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any

STEPS = 8
AT = 3
"""The step at which the scenario happens."""
ELEMENTS = 1 << 16
SIGNALLED = ("stopped-rank", "killed-rank")
SIGNAL_SECONDS = 3.0
"""How long rank 1 waits at that step for the signal of its parent."""


def device_of(torch: Any, scenario: str) -> Any:
    """The device of this rank: the GPU, its number one too high, or the CPU where there is no GPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.device_count() if scenario == "wrong-ordinal" else 0)


def main() -> None:
    """Run one scenario to its end."""
    scenario, seconds = sys.argv[1], float(sys.argv[2])
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    device = device_of(torch, scenario)
    is_gpu = device.type == "cuda"
    if is_gpu and scenario != "wrong-ordinal":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if is_gpu else "gloo",
        timeout=timedelta(seconds=seconds),
        **({"device_id": device} if is_gpu and scenario != "lazy" else {}),
    )
    print("joined", flush=True)
    if scenario in ("collectives", "lazy"):
        every_collective(torch, dist, device, rank)
    for step in range(STEPS):
        print(f"step {step}", flush=True)
        if scenario in SIGNALLED and step == AT and rank == 1:
            time.sleep(SIGNAL_SECONDS)
        if scenario == "exception" and step == AT and rank == 1:
            raise ValueError("the loss of rank 1 is not finite")
        if scenario == "skip" and step == AT and rank == 1:
            continue
        length = ELEMENTS + (1 if scenario == "shape" and step == AT and rank == 1 else 0)
        tensor = torch.full((length,), float(rank + 1), device=device)
        dist.all_reduce(tensor)
        expected = dist.get_world_size() * (dist.get_world_size() + 1) / 2
        assert scenario in ("skip", "shape") or bool((tensor == expected).all()), tensor[:4]
        if is_gpu:
            torch.cuda.synchronize()
    dist.destroy_process_group()
    print("done", flush=True)


def every_collective(torch: Any, dist: Any, device: Any, rank: int) -> None:
    """Each collective once, with values that are checked."""
    size = dist.get_world_size()
    one = torch.full((ELEMENTS,), float(rank), device=device)
    dist.broadcast(one, src=0)
    assert float(one.sum()) == 0.0
    gathered = [torch.empty(4, device=device) for _ in range(size)]
    dist.all_gather(gathered, torch.full((4,), float(rank), device=device))
    assert [float(each[0]) for each in gathered] == [float(r) for r in range(size)]
    reduced = torch.ones(4, device=device)
    dist.reduce(reduced, dst=0)
    assert rank != 0 or float(reduced[0]) == float(size)
    if device.type == "cuda":
        part = torch.empty(4, device=device)
        dist.reduce_scatter_tensor(part, torch.ones(4 * size, device=device))
        assert float(part[0]) == float(size)
        received = torch.empty(size, device=device)
        dist.all_to_all_single(received, torch.full((size,), float(rank), device=device))
        assert received.tolist() == [float(r) for r in range(size)]
    if size > 1 and rank < 2:
        message = torch.full((4,), float(rank), device=device)
        (dist.send if rank == 0 else dist.recv)(message, 1 - rank)
        assert float(message[0]) == 0.0
    dist.barrier(**({"device_ids": [device.index]} if device.type == "cuda" else {}))
    print("collectives are right", flush=True)


if __name__ == "__main__":
    main()
