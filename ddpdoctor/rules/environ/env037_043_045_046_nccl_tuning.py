"""ENV037, ENV043, ENV045, ENV046: settings that tie NCCL's hands where it would choose well by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ, shorten
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.environ.settings import about, number, uses_plugin, value

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu
    from ddpdoctor.facts.topo import Topo

__all__ = ["nccl_algo_or_proto_forced", "nccl_channels_restricted", "nccl_cumem_disabled", "nccl_nvls_setting_odd"]

ALGORITHMS = ("TREE", "RING", "COLLNETDIRECT", "COLLNETCHAIN", "NVLS", "NVLSTREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
FUNCTIONS = ("BROADCAST", "REDUCE", "ALLGATHER", "REDUCESCATTER", "ALLREDUCE")
OLDER = ("COLLNET",)
"""Words that releases before 2.14 knew."""
LEAST_CHANNELS = 8


@cause("ENV037", "nccl-algo-or-proto-forced", Severity.WARNING, signatures=(r"Unrecognized element token",))
def nccl_algo_or_proto_forced(environ: Environ) -> Iterator[Finding]:
    """NCCL_ALGO or NCCL_PROTO forces an algorithm or a protocol.

    ## Why it matters
    What was best in one benchmark is slow at other sizes. A word that NCCL does not know ends the job with "Unrecognized
    element token" (2.24 and later), Tree alone leaves most collectives without an algorithm, and LL128 on a platform that
    does not promise its order of writes corrupts data.

    ## Fix
    Unset NCCL_ALGO and NCCL_PROTO.

    ## Source
    NCCL documentation, NCCL_ALGO and NCCL_PROTO; src/graph/tuning.cc: parseList.
    """
    for name, words in (("NCCL_ALGO", (*ALGORITHMS, *OLDER)), ("NCCL_PROTO", PROTOCOLS)):
        text = value(environ, name)
        if text is None:
            continue
        bad = _bad_word(text, words)
        allowed = _allowed(text, words)
        if uses_plugin(environ) and bad is None:
            continue  # the makers of network plugins prescribe these
        if bad is not None:
            yield about(environ, name, f"has a word that NCCL does not know: {shorten(bad, 30)!r}", _list(words))
        elif name == "NCCL_PROTO" and "LL128" in allowed and not text.startswith("^") and len(allowed) < 3:
            wrong = "forces LL128, which can corrupt data where the platform does not promise its order of writes"
            yield about(environ, name, wrong, "it to be unset")
        elif name == "NCCL_PROTO" and "SIMPLE" not in allowed:
            yield about(environ, name, "takes Simple away, the fast protocol for large messages", "it to be unset")
        elif name == "NCCL_ALGO" and "RING" not in allowed:
            yield about(
                environ, name, "takes Ring away, the only algorithm that all collectives have", "it to be unset"
            )
        elif not text.startswith("^"):
            wrong = "keeps NCCL from choosing what is fastest for each size"
            yield about(environ, name, wrong, "it to be unset", severity=Severity.NOTE)


def _lists(text: str) -> Iterator[tuple[str | None, str]]:
    """The parts of `list;function:list;…`, the function None where there is none."""
    for part in filter(None, text.split(";")):
        first, colon, rest = part.partition(":")
        yield (first, rest.partition(":")[0]) if colon and rest else (None, first)


def _bad_word(text: str, words: tuple[str, ...]) -> str | None:
    for function, items in _lists(text):
        if function is not None and function.upper() not in FUNCTIONS:
            return function
        for item in filter(None, items.removeprefix("^").split(",")):
            if item.upper() not in words:
                return item
    return None


def _allowed(text: str, words: tuple[str, ...]) -> set[str]:
    """What the list for all functions leaves; lists for one function are somebody's deliberate choice."""
    items = next((items for function, items in _lists(text) if function is None), "^")
    listed = {item.upper() for item in items.removeprefix("^").split(",") if item}
    return set(words) - listed if items.startswith("^") else listed


def _list(words: tuple[str, ...]) -> str:
    return ", ".join(words)


@cause("ENV043", "nccl-channels-restricted", Severity.WARNING)
def nccl_channels_restricted(environ: Environ) -> Iterator[Finding]:
    """NCCL's channels, threads or buffers are restricted, or set to a number that does not fit.

    ## Why it matters
    Few channels cap the bandwidth without a message. A number of threads that is no multiple of 32 is replaced, and
    buffers that are no power of two fit badly into NCCL's slices.

    ## Fix
    Unset NCCL_MAX_NCHANNELS, NCCL_MAX_CTAS, NCCL_NTHREADS and NCCL_BUFFSIZE.

    ## Source
    NCCL documentation of these; src/graph/tuning.cc: getNthreads.
    """
    for name in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"):
        most = number(environ, name)
        if most is not None and 0 < most < LEAST_CHANNELS:
            wrong = "leaves NCCL few channels, which caps the bandwidth"
            yield about(environ, name, wrong, f"at least {LEAST_CHANNELS}, or to be unset")
    threads = number(environ, "NCCL_NTHREADS")
    if threads is not None and threads > 0 and (threads % 32 or not 64 <= threads <= 512):
        yield about(environ, "NCCL_NTHREADS", "is a number that NCCL replaces", "64, 128, 256 or 512")
    size = number(environ, "NCCL_BUFFSIZE")
    if size is not None and size > 0 and size & (size - 1):
        yield about(environ, "NCCL_BUFFSIZE", "is no power of two", "a power of two, such as 4194304")


@cause("ENV045", "nccl-nvls-setting-odd", Severity.NOTE)
def nccl_nvls_setting_odd(environ: Environ, gpu: Gpu | None = None, topo: Topo | None = None) -> Iterator[Finding]:
    """NCCL_NVLS_ENABLE is set against what the hardware offers.

    ## Why it matters
    0 gives up the sums that NVSwitch computes, about a quarter of the all_reduce bandwidth on Hopper and later; 1 asks
    other machines for what they do not have, and where it cannot be had NCCL does not start.

    ## Fix
    Unset NCCL_NVLS_ENABLE, unless a fault of the fabric forces 0.

    ## Source
    NCCL documentation, NCCL_NVLS_ENABLE; src/transport/nvls.cc: ncclNvlsInit.
    """
    asked, has = number(environ, "NCCL_NVLS_ENABLE"), _has_nvls(gpu, topo)
    if asked == 0 and has is not False:
        where = "here" if has else "where there is one"
        yield about(environ, "NCCL_NVLS_ENABLE", f"does without NVLink SHARP {where}", "it to be unset")
    elif asked == 1 and has is False:
        yield about(
            environ, "NCCL_NVLS_ENABLE", "asks for NVLink SHARP, which these GPUs do not have", "it to be unset"
        )


@cause("ENV046", "nccl-cumem-disabled", Severity.WARNING)
def nccl_cumem_disabled(environ: Environ, gpu: Gpu | None = None, topo: Topo | None = None) -> Iterator[Finding]:
    """NCCL_CUMEM_ENABLE=0 takes away what NVLink SHARP, NVLink between nodes and registered buffers need.

    ## Why it matters
    NCCL does without them, mostly without a word.

    ## Fix
    Unset NCCL_CUMEM_ENABLE.

    ## Source
    NCCL documentation, NCCL_CUMEM_ENABLE.
    """
    asks = next((n for n in ("NCCL_MNNVL_ENABLE", "NCCL_NVLS_ENABLE") if number(environ, n) == 1), None)
    has = _has_nvls(gpu, topo)
    if number(environ, "NCCL_CUMEM_ENABLE") != 0 or (has is False and asks is None):
        return
    wrong = "takes away what NVLink SHARP and NVLink between nodes need"
    if asks is not None:
        wrong = f"takes away what {asks}=1 asks for"
    certain = asks is not None or bool(has)
    yield about(environ, "NCCL_CUMEM_ENABLE", wrong, "it to be unset").if_certain(certain, Severity.NOTE)


def _has_nvls(gpu: Gpu | None, topo: Topo | None) -> bool | None:
    """Whether the GPUs are Hopper or later behind NVSwitches; None when that is not known, or there is no GPU here."""
    capabilities = [d.compute_capability for d in (gpu.devices if gpu is not None else ()) if d.compute_capability]
    if not capabilities:
        return None
    if any(not c.partition(".")[0].isdecimal() or int(c.partition(".")[0]) < 9 for c in capabilities):
        return False
    if len(capabilities) < 2:
        return False
    links = [g.switch_links for g in (topo.gpus if topo is not None else ()) if g.switch_links is not None]
    return any(links) if links else None
