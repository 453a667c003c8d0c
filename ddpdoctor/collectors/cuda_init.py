"""Whether CUDA works on this node: cuInit in a separate process, because it may hang in the driver. It creates no context.

`python -m ddpdoctor.collectors.cuda_init` is that process. It prints the result of cuInit, and if that is 0, one line per GPU:
its bus id, and 1 if it supports multicast (NVLink SHARP).
"""

from __future__ import annotations

import ctypes
import os

from ddpdoctor.facts.gaps import Gap
from ddpdoctor.system.lifetime import die_with
from ddpdoctor.system.machine import Machine
from ddpdoctor.system.process import LateError, run
from ddpdoctor.system.selfexec import command

__all__ = ["cuda"]

LIBRARY = "libcuda.so.1"
SECONDS = 4.0
MULTICAST = 132
"""CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, from CUDA 12.1 on: NCCL checks it before it uses NVLink SHARP."""
BUS_ID_BYTES = 32
FOLDERS = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
)


def cuda(machine: Machine) -> tuple[int | None, dict[str, bool], tuple[Gap, ...]]:
    """The result of cuInit, 0 when CUDA works, and by bus id whether a GPU supports multicast.

    None and {} without the library, and with a gap after a timeout.
    """
    folders = [*machine.environ.get("LD_LIBRARY_PATH", "").split(":"), *(machine.root.at(folder) for folder in FOLDERS)]
    if not any(folder and os.path.exists(os.path.join(folder, LIBRARY)) for folder in folders):
        return None, {}, ()
    seconds = min(SECONDS, machine.deadline.left * 0.8)
    # All GPUs are needed here: the rules about CUDA_VISIBLE_DEVICES judge that variable.
    environ = {name: value for name, value in machine.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    try:
        answer = run(command("ddpdoctor.collectors.cuda_init"), seconds, environ=environ).text.split("\n")
    except LateError:
        return None, {}, (Gap("gpu.cuda_error", f"cuInit timed out after {seconds:.1f} s"),)
    if not answer[0].isdecimal():
        return None, {}, ()
    devices = (line.split() for line in answer[1:] if line)
    return int(answer[0]), {bus_id.lower(): has == "1" for bus_id, has in devices}, ()


def main() -> None:
    """Print the results, or nothing when the library cannot be loaded."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return
    error = library.cuInit(0)
    print(error)
    count, has, bus_id = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(BUS_ID_BYTES)
    if error or library.cuDeviceGetCount(ctypes.byref(count)):
        return
    for device in range(count.value):  # ordinals are those of cuDeviceGet
        if (
            library.cuDeviceGetPCIBusId(bus_id, BUS_ID_BYTES, device) == 0
            and library.cuDeviceGetAttribute(ctypes.byref(has), MULTICAST, device) == 0
        ):
            print(bus_id.value.decode(), has.value)


if __name__ == "__main__":
    die_with(os.getppid())
    main()
