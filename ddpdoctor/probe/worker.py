"""The worker of one rank: imports torch, creates the process group and runs the collectives, reporting each step.

Its supervisor reads one JSON object per line from the `messages` pipe and controls it with lines on the `control` pipe;
when that pipe closes, the worker ends. SIGUSR1 makes faulthandler write the Python stack to `messages`, even while the
main thread waits in C++.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from ddpdoctor.probe import module_shadowing
from ddpdoctor.probe.announced_calls import AnnouncedCalls, announce_calls
from ddpdoctor.probe.errors import ShadowedModuleError, WrongValue
from ddpdoctor.probe.worker_start import COMPUTE, FOLDERS
from ddpdoctor.system.lifetime import die_with

__all__ = ["Channel", "load_torch", "main", "report_error", "run"]

PATIENCE = timedelta(minutes=30)
"""torch's own timeout in the worker: it never ends the probe, because the supervisor's limits are shorter."""

PEER_ERROR = re.compile(
    r"closed by peer|reset by peer|Broken pipe|connectFullMesh|Timed out|timed out|timeout|ncclRemoteError|"
    r"remote process exited|closed by remote|communicator was aborted|Connection refused|DistNetworkError|DistStoreError",
    re.IGNORECASE,
)
"""torch's errors on a rank whose peer failed."""


SAME_GPU = re.compile(r"Duplicate GPU detected|[Uu]sing the same GPU")
"""NCCL's errors when two ranks use the same device."""


class Channel:
    """The two pipes to the supervisor."""

    def __init__(self, messages: int, control: int) -> None:
        self.messages = messages
        self.control = os.fdopen(control, encoding="utf-8")

    def say(self, **message: Any) -> None:
        os.write(self.messages, json.dumps(message).encode() + b"\n")

    def phase(self, name: str) -> None:
        self.say(phase=name)

    def hear(self) -> dict[str, Any]:
        """The next order. Ends the process if the supervisor is gone."""
        line = self.control.readline()
        if not line:
            os._exit(0)
        order: dict[str, Any] = json.loads(line)
        return order


def main() -> None:
    """Run as a separate process: `python -m ddpdoctor.probe.worker PARENT MESSAGES,CONTROL,OUTPUT`."""
    die_with(int(sys.argv[1]))
    messages, control, _ = (int(fd) for fd in sys.argv[2].split(","))
    channel = Channel(messages, control)
    run(channel, lambda: load_torch(channel.say))


def load_torch(beat: Callable[[], None]) -> Any:
    """Import torch and its distributed package; raises any error of the import. `beat` is called during slow checks.

    Modules are searched as for the job's script, its own folder first. The garbage collector is off because an import
    creates no garbage, and searching for it takes 10 % of the import time.
    """
    folders = os.environ.pop(FOLDERS, "").split(os.pathsep)
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folders[0])
    gc.disable()
    try:
        import torch
        import torch.distributed
    except Exception as error:
        _explain_by_folder("".join(traceback.format_exception(error)), folders[0])
        raise
    finally:
        gc.enable()
    gc.freeze()
    for folder in folders:
        _explain_by_folder(module_shadowing.import_failure(module_shadowing.files(folder), beat, folder) or "", folder)
    return torch


def _explain_by_folder(errors: str, folder: str) -> None:
    """Raise a better error if torch cannot be imported because a file of the job's folder shadows a module."""
    shadowed = errors and module_shadowing.explain(errors, module_shadowing.files(folder))
    if shadowed:
        raise ShadowedModuleError(errors.strip().rpartition("\n")[2], shadowed.module, shadowed.file)


def run(channel: Channel, load: Callable[[], Any], already_seconds: float = 0.0) -> None:
    """Everything that one rank does. Never returns, so that no destructor of torch can affect the verdict."""
    faulthandler.register(signal.SIGUSR1, file=channel.messages, all_threads=False)
    faulthandler.enable(channel.messages, all_threads=False)
    started = time.monotonic()
    channel.say(pid=os.getpid(), phase="import")
    try:
        torch = load()
        channel.say(ready=_describe(torch, already_seconds + time.monotonic() - started))
    except BaseException as error:  # any error of torch's import is the finding
        report_error(channel, error, "import_failed")
        os._exit(1)
    order = channel.hear()
    try:
        _probe(channel, torch, order)
    except BaseException as error:  # the job would fail with this error: reported, not raised
        report_error(channel, error, _kind_of(error, order["rank"]))
        channel.hear()
        os._exit(1)
    channel.phase("done")
    channel.hear()
    os._exit(0)


def _describe(torch: Any, seconds: float) -> dict[str, Any]:
    from ddpdoctor.probe import compute

    has_cuda = bool(torch.cuda.is_available())
    return {
        "torch": str(torch.__version__),
        "build": "cuda " + torch.version.cuda if torch.version.cuda else "cpu",
        "import_seconds": round(seconds, 3),
        "gpus": torch.cuda.device_count() if has_cuda else 0,
        "computes": compute.is_wanted(os.environ.get(COMPUTE), has_cuda),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if has_cuda and _has_nccl(torch) else None,
        "folder": os.path.dirname(torch.__file__ or ""),
    }


def _has_nccl(torch: Any) -> bool:
    return bool(torch.distributed.is_nccl_available())


def _probe(channel: Channel, torch: Any, order: dict[str, Any]) -> None:
    from ddpdoctor.probe import collectives, compute, wrong_value_search

    dist = torch.distributed
    channel.phase("init")
    torch.set_num_threads(1)
    device = _device(channel, torch, order)
    if order["loopback"]:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    host, port, prefix = order["store"]
    tcp = dist.TCPStore(host, port, is_master=False, timeout=PATIENCE, wait_for_workers=False)
    dist.init_process_group(
        order["backend"],
        store=dist.PrefixStore(prefix, tcp),
        rank=order["rank"],
        world_size=order["world_size"],
        timeout=PATIENCE,
        **({"device_id": device} if order["eager"] and device.type == "cuda" else {}),
    )
    stage = collectives.Stage(torch, device, order["rank"], order["world_size"])
    channel.phase("barrier")
    with _clocked(channel, dist.ProcessGroup, "barrier", lambda call: None) as calls:
        calls.expect()
        stage.barrier()
    channel.phase("all_reduce")
    with _clocked(channel, dist.ProcessGroup, "all_reduce", lambda call: channel.say(call=call)) as calls:
        wrong = collectives.check_all_reduce(stage, calls.expect)
    wrong_value_search.find_wrong_rank(stage, wrong)
    channel.phase("collectives")
    for name, reason in collectives.check_others(stage):
        channel.say(unsupported={"collective": name, "reason": reason})
    channel.phase("measure")
    for measurement in collectives.measure(stage):
        channel.say(measured=measurement)
    if order["per_host"] and order["world_size"] > 1:
        channel.phase("pairs")
        _pair_up(channel, stage, order["per_host"])
    if order["computes"]:
        channel.phase("compute")
        for name, rate in compute.checked_rates(stage):
            channel.say(computed={name: rate})


@contextmanager
def _clocked(channel: Channel, group: Any, phase: str, tell: Callable[[str], None]) -> Iterator[AnnouncedCalls]:
    """Report how long the calls on `group` took within this block, and pass each of them to `tell`."""
    calls = AnnouncedCalls(tell)
    with announce_calls(group, calls.note):
        yield calls
        calls.finish()
    if calls.made:
        channel.say(took={phase: calls.seconds})


def _pair_up(channel: Channel, stage: Any, per_host: int) -> None:
    from ddpdoctor.probe import pairing

    batches = pairing.groups(stage.world_size, per_host, stage.device.type == "cuda")
    if batches:
        for pair in pairing.pair_up(stage, batches):
            channel.say(pair=asdict(pair))


def _device(channel: Channel, torch: Any, order: dict[str, Any]) -> Any:
    """The device of this rank, made current. A rank with only one visible GPU uses that one."""
    if order["backend"] != "nccl" or not torch.cuda.is_available():
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    ordinal = order["local_rank"] if visible != 1 else 0
    if ordinal >= visible:
        raise RuntimeError(f"invalid device ordinal: local_rank {ordinal} with {visible} visible GPUs")
    torch.cuda.set_device(ordinal)
    device = torch.device("cuda", ordinal)
    torch.zeros(1, device=device)
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    channel.say(device=torch.cuda.get_device_name(device))
    channel.say(gpu={"cuda_ordinal": ordinal, "gpu_uuid": None if uuid is None else f"GPU-{uuid}"})
    return device


def _kind_of(error: BaseException, rank: int) -> str:
    if isinstance(error, WrongValue):
        return "wrong_value" if error.culprit in (None, rank) else "peer_error"
    message = str(error)
    if SAME_GPU.search(message):
        return "duplicate_gpu"
    return "peer_error" if PEER_ERROR.search(message) else "exception"


def report_error(channel: Channel, error: BaseException, kind: str) -> None:
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    message = " ".join(f"{type(error).__name__}: {error}".split())
    failure: dict[str, Any] = {"kind": kind, "message": message[:2000]}
    if isinstance(error, WrongValue):
        failure |= {"message": str(error), "value": error.value, "expected": error.expected}
    elif isinstance(error, ShadowedModuleError):
        failure |= {"message": str(error)[:2000], "file": error.file}
    elif last is not None:
        failure |= {"file": last.filename, "line": last.lineno, "function": last.name}
    channel.say(error=failure)


if __name__ == "__main__":
    main()
