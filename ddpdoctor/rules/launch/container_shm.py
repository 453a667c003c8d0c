"""/dev/shm of containers on launch lines, and how many ranks with NCCL share it."""

from __future__ import annotations

from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.launch.container import Container
from ddpdoctor.launch.ranks_here import ranks_here
from ddpdoctor.rules.host.shm_sizes import CHANNELS, CONNECTION_BYTES, DATALOADER_BYTES, NEIGHBOURS
from ddpdoctor.rules.launch.pointing import after, point, revalue

__all__ = ["shm_need"]

_AMPLE = "16g"


def shm_need(ranks: int) -> int:
    """The bytes of /dev/shm that NCCL and the DataLoaders of this many ranks use."""
    return ranks * CHANNELS * NEIGHBOURS * CONNECTION_BYTES + DATALOADER_BYTES


def ranks_with_nccl(line: LaunchLine, box: Container | None) -> int:
    """The ranks of the container that have a GPU; 0 if NCCL does not use /dev/shm."""
    if box is None or box.gpus is None or line.environ.variables.get("NCCL_SHM_DISABLE") == "1":
        return 0
    ranks = ranks_here(line)
    if ranks is None:
        return 2 if line.starter is not None and box.gpus != 1 and _takes_all(line) else 0
    return min(ranks, box.gpus or ranks)


def _takes_all(line: LaunchLine) -> bool:
    return line.plan is not None and line.plan.settings["nproc_per_node"].value in ("gpu", "auto")


def larger_shm(launch: Launch, line: LaunchLine, box: Container, text: str) -> Finding:
    """A finding about a small /dev/shm, with a larger --shm-size."""
    edits = [after(box.run, f"--shm-size={_AMPLE}")] if box.shm is None else [revalue(box.shm, _AMPLE)]
    word = box.run if box.shm is None else box.shm.value_word
    expected, label = "--shm-size=16g or --ipc=host", "add --shm-size=16g"
    return point(launch, line, word, text, expected, edits, label=label, severity=Severity.WARNING)
