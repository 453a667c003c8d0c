"""The child process that queries NVML: `python -m ddpdoctor.collectors.nvml`, one JSON array per line on standard output.

Every answer is written immediately, so that answers before a hang are not lost. Nothing is judged here.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from ddpdoctor.collectors.nvml import devices
from ddpdoctor.collectors.nvml import links as nvlinks
from ddpdoctor.collectors.nvml.query import Asker, say
from ddpdoctor.system.lifetime import die_with

CONTROL_NODE = Path("/dev/nvidiactl")
"""As root and without the kernel module, nvmlInit creates this node. It is removed again: other programs take it as a sign of the
driver."""
NO_GPUS = 1
SAMPLE_SECONDS = 0.05
"""The minimum time between the first and the last sample of counters."""


def main() -> None:
    """Query everything: the node, the devices, then the paths between them."""
    import pynvml

    asker = Asker(pynvml)
    had_node = CONTROL_NODE.exists()
    _, code = asker.first("node", "nvmlInit")
    if code:
        say("!", "node", "init", code)
        if code == "DRIVER_NOT_LOADED" and not had_node:
            CONTROL_NODE.unlink(missing_ok=True)
        if code in ("LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH"):
            return
        if asker.first("node", "nvmlInitWithFlags", NO_GPUS)[1] == "":
            asker.ask("node", "driver_version", "nvmlSystemGetDriverVersion")
        return
    driver = asker.ask("node", "driver_version", "nvmlSystemGetDriverVersion")
    asker.ask("node", "driver_cuda", "nvmlSystemGetCudaDriverVersion_v2")
    count = asker.ask("node", "count", "nvmlDeviceGetCount") or 0
    handles = {}
    for index in range(count):
        handle, code = asker.first(index, "nvmlDeviceGetHandleByIndex", index)
        if code:
            say("!", index, "handle", code)
        else:
            handles[index] = handle
    asker.ask("node", "confidential_computing", "nvmlSystemGetConfComputeState", pick=lambda s: bool(s.ccFeature))
    begin = time.monotonic()
    for ask in (devices.device, devices.health, nvlinks.links):
        for index, handle in handles.items():
            ask(asker, index, handle)
    for index, handle in handles.items():
        devices.slowdowns(asker, index, index, handle, driver)
        devices.clock_reasons(asker, f"{index} between", index, handle)
    nvlinks.between(asker, handles)
    if not handles:
        return
    time.sleep(max(0.0, begin + SAMPLE_SECONDS - time.monotonic()))
    for index, handle in handles.items():
        devices.sample(asker, index, handle, driver)
        nvlinks.sample(asker, index, handle)
    say("=", "node", "sample_seconds", round(time.monotonic() - begin, 3))


if __name__ == "__main__":
    die_with(os.getppid())
    main()
