"""Unknown names of settings: the nearest known names, and names that other software reads."""

from __future__ import annotations

import re
from functools import cache

from ddpdoctor.facts.settings_table import TABLE
from ddpdoctor.late_pattern import pattern

__all__ = ["SYNONYMS", "nearest", "of_a_plugin"]

SYNONYMS = {
    "NCCL_IFNAME": "NCCL_SOCKET_IFNAME",
    "NCCL_INTERFACE": "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_INTERFACE": "NCCL_SOCKET_IFNAME",
    "NCCL_PROTOCOL": "NCCL_PROTO",
    "NCCL_ALGORITHM": "NCCL_ALGO",
    "NCCL_DEBUG_LEVEL": "NCCL_DEBUG",
    "NCCL_LOG_LEVEL": "NCCL_DEBUG",
    "NCCL_NVLINK_DISABLE": "NCCL_P2P_DISABLE",
    "NCCL_DISABLE_P2P": "NCCL_P2P_DISABLE",
    "NCCL_DISABLE_SHM": "NCCL_SHM_DISABLE",
    "NCCL_DISABLE_IB": "NCCL_IB_DISABLE",
    "NCCL_HCA": "NCCL_IB_HCA",
    "NCCL_IB_DEVICES": "NCCL_IB_HCA",
    "NCCL_GDR_LEVEL": "NCCL_NET_GDR_LEVEL",
    "NCCL_GDR_DISABLE": "NCCL_NET_GDR_LEVEL=LOC",
    "NCCL_TIMEOUT": "the timeout= argument of init_process_group",
    "TORCH_NCCL_TIMEOUT": "the timeout= argument of init_process_group",
    "TORCH_DISTRIBUTED_TIMEOUT": "the timeout= argument of init_process_group",
    "TORCH_DISTRIBUTED_INIT_METHOD": "the init_method= argument of init_process_group",
    "TORCH_DISTRIBUTED_BACKEND": "the backend= argument of init_process_group",
    "TORCH_DISTRIBUTED_LOG_LEVEL": "TORCH_CPP_LOG_LEVEL",
    "TORCH_DISTRIBUTED_DETAIL": "TORCH_DISTRIBUTED_DEBUG",
    "GLOO_IFNAME": "GLOO_SOCKET_IFNAME",
    "GLOO_INTERFACE": "GLOO_SOCKET_IFNAME",
    "GLOO_SOCKET_INTERFACE": "GLOO_SOCKET_IFNAME",
    "CUDA_DEVICES": "CUDA_VISIBLE_DEVICES",
    "CUDA_VISIBLE_GPUS": "CUDA_VISIBLE_DEVICES",
}
"""Names that no library reads and that are too far from a known name for `nearest`, with the name to use instead."""

_OTHERS = pattern(
    r"NCCL_(FASTRAK|GPUDIRECTTCPX|INSPECTOR|PROFILER?|TUNER|GIB|RCCL|SHIMNET|TESTS|UCX|SHARP|TLS|OFI|CTRAN|MSCCL|PLUGIN"
    r"|IBEXT)_.*"
    r"|NCCL_(HOME|ROOT|ROOT_DIR|INCLUDE_DIRS?|LIB_DIRS?|LIB_PATH|LIBRARIES|LIBRARY|VERSION|VER|MAJOR|STATIC|PATH|DIR"
    r"|PREFIX|DYNAMIC_CHUNK_SIZE|USE_SNAP)"
    r"|[A-MO-Z]?CCL_.*"
)
"""Names of NCCL's plugins, of builds, and of libraries such as oneCCL, RCCL and HCCL, which change the first letter."""

_FAMILY = pattern(r"N[CL]{2,4}_|TORCH_(NCCL|DISTRIBUTED|DIST|FR)_|GLOO_|CUDA_VISIBLE", re.IGNORECASE)
"""Only NCCL, torch, Gloo and CUDA use names with these prefixes, so a typo may be more than one edit away."""


def of_a_plugin(name: str) -> bool:
    """Whether a plugin of NCCL, a build or another library reads this name, so that NCCL does not."""
    return _OTHERS.fullmatch(name) is not None


@cache
def nearest(name: str) -> tuple[str, ...]:
    """The known names that were probably meant, nearest first, at most three; () for a known name.

    Names with a prefix of these libraries may differ by up to three edits, others by one: they may belong to any program.
    """
    upper = name.upper()
    if name in TABLE or of_a_plugin(name) or len(name) > 80:
        return ()
    if upper in TABLE:
        return (upper,)
    if "TORCH_" + upper in TABLE:
        return ("TORCH_" + upper,)
    limit = max(1, min(3, len(name) // 6)) if _FAMILY.match(upper) else 1
    near = [(_distance(upper, known, limit), known) for known in TABLE if abs(len(known) - len(upper)) <= limit]
    return tuple(known for distance, known in sorted(near) if distance <= limit)[:3]


def _distance(one: str, other: str, limit: int) -> int:
    """Edits from one word to the other, a swap of adjacent letters counting as one (optimal string alignment); at most
    limit + 1.

    Words that differ over more than 4 * limit + 8 characters count as different.
    """
    one, other = _without_common_ends(one, other)
    return limit + 1 if max(len(one), len(other)) > 4 * limit + 8 else _edits(one, other, limit)


def _edits(one: str, other: str, limit: int) -> int:
    if abs(len(one) - len(other)) > limit:
        return limit + 1
    one, other = _without_common_ends(one, other)
    if not one or not other or not limit:
        return min(max(len(one), len(other)), limit + 1)
    rests = [(one[1:], other), (one, other[1:]), (one[1:], other[1:])]
    if len(one) > 1 and one[:2] == other[1::-1]:
        rests.append((one[2:], other[2:]))
    return 1 + min(_edits(*rest, limit - 1) for rest in rests)


def _without_common_ends(one: str, other: str) -> tuple[str, str]:
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return one, other
