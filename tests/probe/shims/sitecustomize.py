"""Makes the worker of rank $SHIM_RANK misbehave as $SHIM says: what user code, a slow disk or bad hardware would do."""

import json
import os
import sys
import time

WHAT = os.environ.get("SHIM", "")
MARK = os.environ.get("SHIM_MARK")


def sleep_for_ever():
    if MARK:
        open(MARK, "w").close()
    time.sleep(600)


def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def pretend_nccl():
    """Say which GPU this rank has and how NCCL reaches the other one: host memory."""
    rank = int(os.environ["RANK"])
    uuid = os.environ["SHIM_GPUS"].split(",")[rank]
    os.write(
        int(sys.argv[-1].split(",")[0]), json.dumps({"gpu": {"gpu_uuid": uuid, "cuda_ordinal": rank}}).encode() + b"\n"
    )
    line = f"h:1:1 [{rank}] NCCL INFO Channel 00/0 : {rank}[{rank}] -> {1 - rank}[{1 - rank}] via SHM/direct/direct\n"
    os.write(1, line.encode())


def pretend_gpus():
    """The first look at torch finds two GPUs on this rank; nothing is ever run on them."""
    import torch

    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 2


class Shim:
    """Sees the worker's imports go by and acts when the right one comes."""

    def find_spec(self, name, path=None, target=None):
        if name == "torch" and WHAT.startswith("import-"):
            sys.meta_path.remove(self)
            {"import-sleep": sleep_for_ever, "import-busy": lambda: burn(4), "import-raise": self.fail}[WHAT]()
        if name == "torch.distributed.rpc" and WHAT == "gpus" and "torch" in sys.modules:
            sys.meta_path.remove(self)
            pretend_gpus()
        if name == "ddpdoctor.probe.collectives":
            sys.meta_path.remove(self)
            self.patch()
        return

    def fail(self):
        raise ImportError("libcudart.so.99: cannot open shared object file")

    def patch(self):
        import torch
        import torch.distributed as dist

        if WHAT == "shared-memory":
            pretend_nccl()

        whole = dist.all_reduce
        late = []

        def all_reduce(tensor, *args, **kwargs):
            if WHAT == "sleep":
                sleep_for_ever()
            if WHAT == "compute":
                burn(600)
            if WHAT == "raise":
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            if WHAT == "skip" and not late:
                late.append(True)
            elif WHAT == "skip":
                return None
            if WHAT == "maximum":
                return whole(tensor, dist.ReduceOp.MAX)
            if WHAT == "wrong-input":
                tensor[7] += 1
            if WHAT == "close-files":
                os.closerange(3, 1024)
            if WHAT == "shape":
                tensor = torch.ones(1025, dtype=tensor.dtype)
            if WHAT == "late" and not late:
                late.append(time.sleep(5))
            if WHAT == "broadcast":
                return dist.broadcast(tensor, 0)
            result = whole(tensor, *args, **kwargs)
            if WHAT == "wrong":
                tensor += 1
            return result

        dist.all_reduce = all_reduce


RANK = os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK")
if os.environ.get("SHIM_RANK") in (RANK, "every") and "ddpdoctor.probe.worker" in sys.orig_argv:
    sys.meta_path.insert(0, Shim())
