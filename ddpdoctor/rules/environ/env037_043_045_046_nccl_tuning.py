"""ENV037, ENV043, ENV045, ENV046: settings that override a choice that NCCL makes well by itself."""

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
"""Names that releases before 2.14 accepted."""
LEAST_CHANNELS = 8


@cause(
    "ENV037",
    "nccl-algo-or-proto-forced",
    Severity.WARNING,
    yields_to=("ENV518",),
    signatures=(r"Unrecognized element token",),
)
def nccl_algo_or_proto_forced(environ: Environ) -> Iterator[Finding]:
    """NCCL_ALGO or NCCL_PROTO forces an algorithm or a protocol.

    ## Why it matters
    What was best in one benchmark is slow at other sizes, Tree alone leaves most collectives without an algorithm,
    and LL128 corrupts data on a platform that does not guarantee its order of writes. An unknown name ends the job
    with `Unrecognized element token` (2.24 and later).

    ## Fix
    Unset NCCL_ALGO and NCCL_PROTO.

    ## Example

        NCCL_PROTO=LL128 forces LL128, which can corrupt data on some platforms

        # before
        export NCCL_PROTO=LL128
        # after
        unset NCCL_PROTO

    ## Source
    NCCL documentation, NCCL_ALGO and NCCL_PROTO; src/graph/tuning.cc: parseList.
    """
    for name, known in (("NCCL_ALGO", (*ALGORITHMS, *OLDER)), ("NCCL_PROTO", PROTOCOLS)):
        text = value(environ, name)
        if text is None:
            continue
        bad = _bad_word(text, known)
        allowed = _allowed(text, known)
        if uses_plugin(environ) and bad is None:
            continue  # vendors of network plugins prescribe these
        if bad is not None:
            yield about(environ, name, f"has an unknown word, {shorten(bad, 30)!r}", _list(known))
        elif name == "NCCL_PROTO" and "LL128" in allowed and not text.startswith("^") and len(allowed) < 3:
            yield about(environ, name, "forces LL128, which can corrupt data on some platforms", "unset")
        elif name == "NCCL_PROTO" and "SIMPLE" not in allowed:
            yield about(environ, name, "forbids Simple, the fast protocol for large messages", "unset")
        elif name == "NCCL_ALGO" and "RING" not in allowed:
            yield about(environ, name, "forbids Ring, the only algorithm that all collectives have", "unset")
        elif not text.startswith("^"):
            wrong = "stops NCCL from choosing the fastest for each size"
            yield about(environ, name, wrong, "unset", severity=Severity.NOTE)


def _lists(text: str) -> Iterator[tuple[str | None, str]]:
    """The parts of `list;function:list;…`; the function is None for a list without one."""
    for part in filter(None, text.split(";")):
        first, colon, rest = part.partition(":")
        yield (first, rest.partition(":")[0]) if colon and rest else (None, first)


def _bad_word(text: str, known: tuple[str, ...]) -> str | None:
    for function, items in _lists(text):
        if function is not None and function.upper() not in FUNCTIONS:
            return function
        for item in filter(None, items.removeprefix("^").split(",")):
            if item.upper() not in known:
                return item
    return None


def _allowed(text: str, known: tuple[str, ...]) -> set[str]:
    """What the list for all functions allows; lists for one function are a deliberate choice."""
    items = next((items for function, items in _lists(text) if function is None), "^")
    listed = {item.upper() for item in items.removeprefix("^").split(",") if item}
    return set(known) - listed if items.startswith("^") else listed


def _list(known: tuple[str, ...]) -> str:
    return ", ".join(known)


@cause("ENV043", "nccl-channels-restricted", Severity.WARNING)
def nccl_channels_restricted(environ: Environ) -> Iterator[Finding]:
    """NCCL's channels, threads, or buffers are restricted, or set to an unsuitable number.

    ## Why it matters
    Few channels limit the bandwidth without a message. NCCL replaces a number of threads that is not a multiple of
    32, and buffers that are not a power of two fit badly into its slices.

    ## Fix
    Unset NCCL_MAX_NCHANNELS, NCCL_MAX_CTAS, NCCL_NTHREADS, and NCCL_BUFFSIZE.

    ## Example

        NCCL_MAX_NCHANNELS=1 limits the bandwidth (at least 8 channels are needed)

        # before
        export NCCL_MAX_NCHANNELS=1
        # after
        unset NCCL_MAX_NCHANNELS

    ## Source
    NCCL documentation of these; src/graph/tuning.cc: getNthreads.
    """
    for name in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"):
        most = number(environ, name)
        if most is not None and 0 < most < LEAST_CHANNELS:
            wrong = f"limits the bandwidth (at least {LEAST_CHANNELS} channels are needed)"
            yield about(environ, name, wrong, f"at least {LEAST_CHANNELS}, or unset")
    threads = number(environ, "NCCL_NTHREADS")
    if threads is not None and threads > 0 and (threads % 32 or not 64 <= threads <= 512):
        wrong = "is invalid, so NCCL replaces it (valid: 64, 128, 256, 512)"
        yield about(environ, "NCCL_NTHREADS", wrong, "64, 128, 256, or 512")
    size = number(environ, "NCCL_BUFFSIZE")
    if size is not None and size > 0 and size & (size - 1):
        yield about(environ, "NCCL_BUFFSIZE", "is not a power of two", "a power of two, such as 4194304")


@cause("ENV045", "nccl-nvls-setting-odd", Severity.NOTE)
def nccl_nvls_setting_odd(environ: Environ, gpu: Gpu | None = None, topo: Topo | None = None) -> Iterator[Finding]:
    """NCCL_NVLS_ENABLE does not fit the hardware.

    ## Why it matters
    With 0, NVSwitch no longer adds the values, and all_reduce loses about a quarter of its bandwidth on Hopper and
    later. With 1, NCCL requests it even where it is unavailable, and does not start there.

    ## Fix
    Unset NCCL_NVLS_ENABLE, unless a fault of the fabric forces 0.

    ## Example

        NCCL_NVLS_ENABLE=0 disables NVLink SHARP, which these GPUs have

        # before
        export NCCL_NVLS_ENABLE=0
        # after
        unset NCCL_NVLS_ENABLE

    ## Source
    NCCL documentation, NCCL_NVLS_ENABLE; src/transport/nvls.cc: ncclNvlsInit.
    """
    asked, has = number(environ, "NCCL_NVLS_ENABLE"), _has_nvls(gpu, topo)
    if asked == 0 and has is not False:
        which = ", which these GPUs have" if has else " (unknown whether these GPUs have it)"
        yield about(environ, "NCCL_NVLS_ENABLE", f"disables NVLink SHARP{which}", "unset")
    elif asked == 1 and has is False:
        yield about(environ, "NCCL_NVLS_ENABLE", "requests NVLink SHARP, which these GPUs do not have", "unset")


@cause("ENV046", "nccl-cumem-disabled", Severity.WARNING)
def nccl_cumem_disabled(environ: Environ, gpu: Gpu | None = None, topo: Topo | None = None) -> Iterator[Finding]:
    """NCCL_CUMEM_ENABLE=0 disables what NVLink SHARP, NVLink between nodes, and registered buffers need.

    ## Why it matters
    NCCL runs without them, mostly without a message.

    ## Fix
    Unset NCCL_CUMEM_ENABLE.

    ## Example

        NCCL_CUMEM_ENABLE=0 disables what NCCL_MNNVL_ENABLE=1 needs

        # before
        export NCCL_CUMEM_ENABLE=0 NCCL_MNNVL_ENABLE=1
        # after
        unset NCCL_CUMEM_ENABLE

    ## Source
    NCCL documentation, NCCL_CUMEM_ENABLE.
    """
    asks = next((n for n in ("NCCL_MNNVL_ENABLE", "NCCL_NVLS_ENABLE") if number(environ, n) == 1), None)
    has = _has_nvls(gpu, topo)
    if number(environ, "NCCL_CUMEM_ENABLE") != 0 or (has is False and asks is None):
        return
    wrong = "disables what NVLink SHARP and NVLink between nodes need"
    if asks is not None:
        wrong = f"disables what {asks}=1 needs"
    certain = asks is not None or bool(has)
    yield about(environ, "NCCL_CUMEM_ENABLE", wrong, "unset").if_certain(certain, Severity.NOTE)


def _has_nvls(gpu: Gpu | None, topo: Topo | None) -> bool | None:
    """Whether the GPUs are Hopper or later, connected by NVSwitches; None if that is unknown, or if there is no GPU
    here.
    """
    capabilities = [d.compute_capability for d in (gpu.devices if gpu is not None else ()) if d.compute_capability]
    if not capabilities:
        return None
    if any(not c.partition(".")[0].isdecimal() or int(c.partition(".")[0]) < 9 for c in capabilities):
        return False
    if len(capabilities) < 2:
        return False
    links = [g.switch_links for g in (topo.gpus if topo is not None else ()) if g.switch_links is not None]
    return any(links) if links else None
