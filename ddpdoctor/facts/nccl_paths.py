"""The paths that NCCL would use between the GPUs of a node: over NVLink, over PCIe, through host memory, over the network.

Source: NCCL src/graph/paths.cc (ncclTopoCheckP2p, ncclGetLevel) and src/transport.cc, which tries P2P, SHM and NET in this order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddpdoctor.facts.settings_table import read_number
from ddpdoctor.facts.topo import Pair, Topo
from ddpdoctor.light_dataclass import dataclass

__all__ = ["NcclPath", "nccl_paths"]

NVLINK, OVER_GPU, SWITCH, SWITCHES, HOST_BRIDGE, SOCKETS = "NVL", "NVB", "PIX", "PXB", "PHB", "SYS"
ORDER = ("LOC", NVLINK, OVER_GPU, "C2C", SWITCH, SWITCHES, "P2C", "PXN", HOST_BRIDGE, SOCKETS)
"""NCCL's names for distances, nearest first."""
OLD_LEVELS = ("LOC", SWITCH, SWITCHES, HOST_BRIDGE, SOCKETS)
"""The distances of the numeric values of `NCCL_P2P_LEVEL`."""
USUAL_LEVEL = SWITCHES
AMD, MOST_OF_AMD = "AuthenticAMD", 2
"""On AMD CPUs, NCCL lets up to this many GPUs use peer access over any distance."""
OF_NVML = {0: SWITCH, 10: SWITCH, 20: SWITCHES, 30: HOST_BRIDGE, 40: HOST_BRIDGE, 50: SOCKETS}

FAR = 50
DIRECT = {NVLINK: "NVLink", OVER_GPU: "NVLink through another GPU"}
PCIE, SHARED, NETWORK = "PCIe peer-to-peer", "host memory", "the network card"


@dataclass(frozen=True, slots=True)
class NcclPath:
    """Between two GPUs (NVML indices `a` < `b`): NCCL's name for the distance, the transport, and anything unusual about it."""

    a: int
    b: int
    distance: str
    uses: str
    surprise: str = ""


def nccl_paths(topo: Topo, settings: Mapping[str, str], among: tuple[int, ...]) -> tuple[NcclPath, ...]:
    """The path of each pair of the GPUs `among`, with NCCL's settings (environment and files)."""
    links = {(pair.a, pair.b) for pair, _ in topo.linked_pairs() if pair.nvlink in ("OK", "U", None)}
    refused = {(pair.a, pair.b) for pair, _ in topo.linked_pairs()} - links
    is_near = topo.cpu_vendor == AMD and len(among) <= MOST_OF_AMD
    most = _level(settings, SOCKETS if is_near else USUAL_LEVEL)
    pairs = {(p.a, p.b): p for p in topo.pairs if p.a in among and p.b in among}
    # A board on which all GPUs are linked, except at most one: that one is an outlier.
    is_full = len(links & set(pairs)) >= max(1, (len(among) - 1) * (len(among) - 2) // 2)
    paths = []
    for ends, pair in pairs.items():
        distance = NVLINK if ends in refused else _distance(pair, links, is_full=is_full)
        is_odd = is_full and ends not in links
        paths.append(_path(pair, distance, most, settings, is_refused=ends in refused, is_odd=is_odd))
    return tuple(paths)


def _distance(pair: Pair, links: set[tuple[int, int]], *, is_full: bool) -> str:
    """NCCL's name for the distance of two GPUs, from working NVLinks and NVML's PCIe topology."""
    if (pair.a, pair.b) in links:
        return NVLINK
    linked_gpus = [{a if b == gpu else b for a, b in links if gpu in (a, b)} for gpu in (pair.a, pair.b)]
    if linked_gpus[0] & linked_gpus[1] and not is_full:
        return OVER_GPU
    return OF_NVML.get(pair.level if pair.level is not None else FAR, SOCKETS)


def _level(settings: Mapping[str, str], usual: str) -> str:
    """The farthest distance over which NCCL uses peer access, `usual` without a setting."""
    if read_number(settings.get("NCCL_P2P_DISABLE", ""))[0] == 1:
        return "LOC"
    word = settings.get("NCCL_P2P_LEVEL", "")
    if word in ORDER:
        return word
    if word[:1].isdecimal() and word.isascii():
        return OLD_LEVELS[min(read_number(word)[0], len(OLD_LEVELS) - 1)]
    return usual


def _path(
    pair: Pair, distance: str, most: str, settings: Mapping[str, str], *, is_refused: bool, is_odd: bool
) -> NcclPath:
    states = (pair.nvlink if is_refused else None, pair.read, pair.write)
    refusal = next((state for state in states if state not in (None, "OK", "U")), None)
    if refusal is None and ORDER.index(distance) <= ORDER.index(most):
        return NcclPath(
            pair.a, pair.b, distance, DIRECT.get(distance, PCIE), "the other pairs have NVLink" if is_odd else ""
        )
    uses = NETWORK if read_number(settings.get("NCCL_SHM_DISABLE", ""))[0] == 1 else SHARED
    return NcclPath(pair.a, pair.b, distance, uses, "; ".join(_surprises(distance, refusal, most, uses, is_odd)))


def _surprises(distance: str, refusal: str | None, most: str, uses: str, is_odd: bool) -> Iterator[str]:
    if distance in DIRECT:
        yield "NVLink connects them" + (f", but NVML reports {refusal}" if refusal else ", but a setting forbids it")
    elif is_odd:
        yield "the other pairs have NVLink"
    elif (
        refusal is None and ORDER.index(most) < ORDER.index(SWITCHES) and ORDER.index(distance) <= ORDER.index(SWITCHES)
    ):
        yield "they share a PCIe switch, but a setting forbids peer access"
    if uses == NETWORK:
        yield "NCCL_SHM_DISABLE=1 rules out shared memory"
