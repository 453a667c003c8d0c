"""Exceptions that end the script, as records and as Python prints them."""

from __future__ import annotations

import re
import socket
import sys
import traceback

from ddpdoctor.rehearsal.hook import executed
from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import OWN, Place, deepest_of_user

__all__ = ["report"]

MOST_TEXT = 2000


NEEDS_GPU = (
    "from the 'CUDA' backend",
    "Torch not compiled with CUDA enabled",
    "not linked with support for cuda",
    "CUDA_HOME",
    "Found no NVIDIA driver",
    "libcuda.so",
    "libcudart.so",
)
"""What torch and libraries say where imagined devices are not enough."""
LACKS_ON_CPU = re.compile(
    r"not implemented for '(Half|BFloat16|Float8\w*)'|_for_cpu\.\w+ does not have a sharding strategy"
)
NO_NETWORK = re.compile(
    r"name resolution|Name or service not known|Network is unreachable|couldn't connect to 'https|OfflineMode|urlopen error"
)
NETWORK = "needs the network, which is cut off (`--network` allows it)"


def _obstacle(error: BaseException, places: list[Place]) -> tuple[str, str] | None:
    """What the rehearsal lacks, and why, if that has raised an exception and not the script's own mistake."""
    config = channel().config
    if config.get("isolation", {}).get("network") == "loopback":
        for each in _causes(error):
            if isinstance(each, socket.gaierror) or NO_NETWORK.search(str(each)):
                return "a download", NETWORK
    if not config.get("gpus"):
        return None
    cuda = sys.modules.get("ddpdoctor.rehearsal.hook.cuda")
    text = str(error)
    if any(each in text for each in NEEDS_GPU) or LACKS_ON_CPU.search(text):
        return f"`{type(error).__name__}: {text.splitlines()[0][:120]}`", "needs a GPU"
    own = {(file, function) for file, _, function in deepest_of_user(places[::-1])}
    if isinstance(error, AssertionError) and cuda is not None and own & cuda.measured:
        return "a check of the GPU's memory", "needs a GPU"
    return None


def _causes(error: BaseException) -> list[BaseException]:
    """An exception and those that it was raised from."""
    found = [error]
    for each in found:
        found += [other for other in (each.__cause__, each.__context__) if other is not None and other not in found]
    return found


def report(error: BaseException) -> None:
    """Record an exception that ended the script, and print it without the frames of the hook."""
    places = [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
    executed.report()
    training = sys.modules.get("ddpdoctor.rehearsal.hook.training")
    lacking = _obstacle(error, places)
    if lacking is not None:
        channel().say("cannot", what=lacking[0], why=lacking[1], at=deepest_of_user(places[::-1]))
    unused = training.unused_parameters(str(error)) if training is not None else {}
    channel().say(
        "raised",
        type=type(error).__name__,
        module=type(error).__module__,
        text=str(error)[:MOST_TEXT],
        at=deepest_of_user(places[::-1]),
        innermost=places[-1:],
        **unused,
    )
    summary = traceback.TracebackException.from_exception(error)
    for each in _chain(summary):
        each.stack = traceback.StackSummary.from_list([f for f in each.stack if not f.filename.startswith(OWN)])
    for line in summary.format():
        sys.stderr.write(line)


def _chain(summary: traceback.TracebackException) -> list[traceback.TracebackException]:
    found = [summary]
    for each in found:
        found += [other for other in (each.__cause__, each.__context__) if other is not None]
    return found
