"""Whether CUDA starts here: cuInit in a process of its own, since it may hang in the driver. It makes no context.

`python -m ddpdoctor.collectors.cuda_init` is that process. It prints what cuInit answers, and when that is 0 a line for each GPU:
its bus id, and 1 where it supports multicast (NVLink SHARP).
"""

from __future__ import annotations

import ctypes
import os

from ddpdoctor.facts.gaps import Gap
from ddpdoctor.system.machine import Machine
from ddpdoctor.system.process import LateError, run
from ddpdoctor.system.selfexec import command

__all__ = ["cuda"]

LIBRARY = "libcuda.so.1"
SECONDS = 4.0
MULTICAST = 132
"""CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, from CUDA 12.1 on: what NCCL asks before it uses NVLink SHARP."""
BUS_ID_BYTES = 32
FOLDERS = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
)


def cuda(machine: Machine) -> tuple[int | None, dict[str, bool], tuple[Gap, ...]]:
    """What cuInit answers, 0 when CUDA works, and by bus id which GPUs support multicast.

    None and nothing without the library, and with a gap when there was no answer in time.
    """
    folders = [*machine.environ.get("LD_LIBRARY_PATH", "").split(":"), *(machine.root.at(each) for each in FOLDERS)]
    if not any(folder and os.path.exists(os.path.join(folder, LIBRARY)) for folder in folders):
        return None, {}, ()
    seconds = min(SECONDS, machine.deadline.left * 0.8)
    # All GPUs are to be seen, whatever the variable says: ENV062 and ENV063 judge that.
    environ = {name: value for name, value in machine.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    try:
        said = run(command("ddpdoctor.collectors.cuda_init"), seconds, environ=environ).text.split("\n")
    except LateError:
        return None, {}, (Gap("gpu.cuda_error", f"cuInit did not answer within {seconds:.1f} s"),)
    if not said[0].isdecimal():
        return None, {}, ()
    devices = (line.split() for line in said[1:] if line)
    return int(said[0]), {bus_id.lower(): has == "1" for bus_id, has in devices}, ()


def main() -> None:
    """Print the answers, nothing when the library cannot be loaded."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return
    error = library.cuInit(0)
    print(error)
    count, has, bus_id = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(BUS_ID_BYTES)
    if error or library.cuDeviceGetCount(ctypes.byref(count)):
        return
    for device in range(count.value):  # ordinals are what cuDeviceGet gives
        if (
            library.cuDeviceGetPCIBusId(bus_id, BUS_ID_BYTES, device) == 0
            and library.cuDeviceGetAttribute(ctypes.byref(has), MULTICAST, device) == 0
        ):
            print(bus_id.value.decode(), has.value)


if __name__ == "__main__":
    main()
