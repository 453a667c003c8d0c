"""`hang` asks NCCL's Flight Recorder through its pipe, and only where somebody listens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from commandline import doctor
from flight_dumps import call, dump, pickled

RANK = """
import os, sys
pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + os.environ["RANK"] + ".pipe"
os.mkfifo(pipe)
listening = os.open(pipe, os.O_RDWR)
print("ready", flush=True)
os.read(listening, 16)
open(os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] + os.environ["RANK"], "wb").write(bytes.fromhex(sys.argv[1]))
os.read(listening, 16)
"""


def test_the_ranks_write_dumps_when_asked(tmp_path: Path) -> None:
    start = [call("all_reduce")]
    waits = dump([*start, call("all_reduce", state="started", line=21)], groups={"0": [0, 1]})
    held = (pickled(waits), pickled(dump(start, groups={"0": [0, 1]})))
    ranks = []
    try:
        for rank, content in enumerate(held):
            environ = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": str(rank),
                "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/ask_",
                "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/dump_",
            }
            words = [sys.executable, "-c", RANK, content.hex()]
            ranks.append(subprocess.Popen(words, env=environ, stdout=subprocess.PIPE))
        for each in ranks:
            assert each.stdout is not None
            assert each.stdout.readline() == b"ready\n"
        pids = [str(each.pid) for each in ranks]
        done = doctor("hang", *pids, "--no-stacks", "--watch", "0.1", "--format", "json")
    finally:
        for each in ranks:
            each.send_signal(signal.SIGKILL)
            each.communicate()
    found = {each["code"]: each for each in json.loads(done.stdout)["findings"]}
    assert found["LOG001"]["ranks"] == [1]
    assert "rank 0 waits in all_reduce([4]) at train.py:21; rank 1 never called it" in found["LOG001"]["message"]
