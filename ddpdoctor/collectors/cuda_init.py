"""Whether CUDA starts here: cuInit in a process of its own, since it may hang in the driver. It makes no context.

`python -m ddpdoctor.collectors.cuda_init` is that process: it prints what cuInit answers.
"""

from __future__ import annotations

import ctypes
import os
import sys

from ddpdoctor.collectors.machine import Machine
from ddpdoctor.collectors.process import LateError, run

__all__ = ["cuda_error"]

LIBRARY = "libcuda.so.1"
SECONDS = 4.0
FOLDERS = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
)


def cuda_error(machine: Machine) -> int | None:
    """What cuInit answers: 0 when CUDA works; None without the library, or when there was no answer in time."""
    folders = [*machine.environ.get("LD_LIBRARY_PATH", "").split(":"), *(machine.root.at(each) for each in FOLDERS)]
    if not any(folder and os.path.exists(os.path.join(folder, LIBRARY)) for folder in folders):
        return None
    seconds = min(SECONDS, machine.deadline.left * 0.8)
    # All GPUs are to be seen, whatever the variable says: ENV062 and ENV063 judge that.
    environ = {name: value for name, value in machine.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    try:
        done = run([sys.executable, "-m", "ddpdoctor.collectors.cuda_init"], seconds, environ=environ)
    except LateError:
        return None
    said = done.text.strip()
    return int(said) if said.isdecimal() else None


def main() -> None:
    """Print the answer of cuInit, nothing when the library cannot be loaded."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return
    print(library.cuInit(0))


if __name__ == "__main__":
    main()
