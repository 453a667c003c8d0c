"""`nvidia-smi topo -m`, `topo -p2p`, `nvlink -s`, `nvlink -e`, `-L`: GPUs, their NVLinks, and the paths between them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ddpdoctor.late_pattern import pattern
from ddpdoctor.tool_output.record import Card, Fields, Line, Record, Said, decimal, integer

__all__ = ["read_list", "read_topology"]

_LEVELS = {"PSB": 0, "PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SOC": 50, "SYS": 50}
_P2P = ("OK", "CNS", "GNS", "TNS", "DR", "NS", "CHIPSET NOT SUPPORTED")
_COLOR = pattern(r"\x1b\[[0-9;]*m")
_ROW = pattern(r"\s*(GPU|NIC|mlx\d_)(\d{1,3})\s+(\S.*)$")
_NV = pattern(r"NV(\d{1,2})$")
_NIC_NAME = pattern(r"\s+(NIC\d+): (\S+)\s*$")
_GPU = pattern(r"\s*GPU (\d{1,3}): (.{1,80}?) \(UUID: ([^()]{0,60})\)")
_LINK = pattern(r"\s+Link (\d{1,2}): (?:([\d.]+) GB/s|(<?inactive>?))", re.I)
_ERRORS = pattern(r"\s+Link (\d{1,2}): (Replay|Recovery|CRC(?: FLIT)?) Errors: (\d{1,18})", re.I)
_ALL_DOWN = pattern(r"all links are in-?active", re.I)
_AFFINITIES = {"CPU Affinity": "cpu_affinity", "NUMA Affinity": "numa_affinity"}
LEAST_SWITCHED = 4
"""The fewest GPUs that a machine with NVSwitches has."""
_COUNTERS = {"replay": "replay_errors", "recovery": "recovery_errors", "crc": "crc_errors", "crc flit": "crc_errors"}


def read_topology(lines: Sequence[Line]) -> Record:
    """The record of a matrix: of paths, or of the P2P status that `topo -p2p` prints."""
    record = Record("nvidia-smi topo")
    columns: list[str] = []
    ends: list[str] = []
    rows: dict[int, tuple[int, dict[int, str]]] = {}
    printed: dict[str, tuple[str, ...]] = {}
    affinities: dict[int, dict[str, str]] = {}
    names: dict[str, tuple[str, int]] = {}
    for number, raw in lines:
        line = _COLOR.sub("", raw)
        if not columns:
            columns = re.findall(r"GPU\d+|NIC\d+|mlx\d_\d+", line)
            ends = re.findall(r"CPU Affinity|GPU NUMA ID|NUMA Affinity", line)
            continue
        row, named = _ROW.match(line), _NIC_NAME.match(line)
        if named is not None:
            names[named[1]] = (named[2], number)
        elif row is not None:
            cells = row[3].split()
            if len(cells) >= len(columns):
                printed.setdefault(row[1] + row[2], tuple(cells[: len(columns)]))
            found = {int(name[3:]): cell for name, cell in zip(columns, cells, strict=False) if name.startswith("GPU")}
            if row[1] == "GPU" and len(cells) >= len(found) and int(row[2]) not in rows:
                rows[int(row[2])] = (number, found)
                if len(cells) == len(columns) + len(ends):
                    affinities[int(row[2])] = dict(zip(ends, cells[len(columns) :], strict=True))
    is_p2p = any(cell in _P2P for _, row in rows.values() for cell in row.values())
    record.tool = "nvidia-smi topo -p2p" if is_p2p else "nvidia-smi topo -m"
    record.about = f"{len(rows)} GPU{'' if len(rows) == 1 else 's'}"
    record.cards = [Card(number, index=index) for index, (number, _) in rows.items()]
    for name in columns:
        if not name.startswith("GPU") and (name in names or not name.startswith("NIC")):
            nic, number = names.get(name, (name, lines[0][0]))
            record.nics.setdefault(nic, {})["name"] = Said(nic, number)
    for card in record.cards:
        for end, name in _AFFINITIES.items():
            said = affinities.get(card.index or 0, {}).get(end, "N/A")
            if said != "N/A":
                card.node[name] = Said(said, card.line)
    if not is_p2p and record.cards:
        record.say("topo.printed", _cells(columns, printed), record.cards[0].line)
    _pairs(record, rows, is_p2p=is_p2p)
    cells = [cell for a, (_, row) in rows.items() for b, cell in row.items() if a != b]
    is_settled = is_p2p and len({cell == "OK" for cell in cells}) == 1
    if is_settled or not (is_p2p or any(map(_NV.match, cells))):
        # No pair is connected by NVLink; or it makes no difference, because peer access is the same for all pairs.
        for card in record.cards:
            card.node["links"] = Said([], card.line)
    if not is_p2p:
        _switched(record, rows)
    return record


def _cells(columns: Sequence[str], printed: dict[str, tuple[str, ...]]) -> list[list[str]]:
    """The cells of the matrix. Rows that were cut off, such as those of adapters, have their cells from the columns."""
    rows: list[list[str]] = []
    for at, name in enumerate(columns):
        cells = printed.get(name) or tuple(printed[other][at] if other in printed else "?" for other in columns)
        rows.append(["X" if other == name else cell for other, cell in zip(columns, cells, strict=True)])
    return rows


def _pairs(record: Record, rows: dict[int, tuple[int, dict[int, str]]], *, is_p2p: bool) -> None:
    for a, (number, row) in rows.items():
        for b, cell in row.items():
            if a >= b or b not in rows:
                continue
            fields: Fields = record.pairs.setdefault((a, b), {})
            back = rows[b][1].get(a)
            if is_p2p and cell in _P2P:
                fields["read"] = Said(cell, number)
                if back in _P2P:
                    fields["read_back"] = Said(back, rows[b][0])
            elif cell in _LEVELS:
                fields["level"] = Said(_LEVELS[cell], number)


def _switched(record: Record, rows: dict[int, tuple[int, dict[int, str]]]) -> None:
    """The NVLinks of GPUs on NVSwitches: most GPUs show one number of links to all others that have any.

    A row shows the GPU's own count (nvidia-smi 580), or the lower count of both ends. Direct links are left out: the
    matrix does not tell which wiring is right.
    """
    counts = {
        a: [int(nv[1]) for b, cell in row.items() if b != a and (nv := _NV.match(cell))] for a, (_, row) in rows.items()
    }
    full = [a for a, found in counts.items() if len(found) >= LEAST_SWITCHED - 1]
    if len(rows) < LEAST_SWITCHED or 2 * len(full) <= len(rows):
        return
    usual = Counter(max(counts[a]) for a in full).most_common(1)[0][0]
    if sum(count >= usual for a in full for count in counts[a]) * 2 <= sum(len(counts[a]) for a in full):
        return
    for card in record.cards:
        own = max(counts[card.index or 0], default=0)
        card.links = {
            link: {"is_active": Said(link < own, card.line), "remote": Said("switch", card.line)}
            for link in range(max(usual, own))
        }


def read_list(lines: Sequence[Line]) -> Record:
    """The record of `nvidia-smi -L`, or of `nvidia-smi nvlink` with the state or the error counters of each link."""
    record = Record("nvidia-smi -L")
    for number, line in lines:
        gpu = _GPU.match(line)
        if gpu is not None:
            uuid = gpu[3] if gpu[3].startswith("GPU-") else None
            card = Card(number, index=int(gpu[1]), uuid=uuid, device={"name": Said(gpu[2], number)})
            if all(known.index != card.index for known in record.cards):
                record.cards.append(card)
        elif record.cards:
            _link(record, record.cards[-1], line, number)
    indices = [card.index for card in record.cards]
    record.is_whole = indices == list(range(len(indices)))
    record.about = f"{len(record.cards)} GPU{'' if len(record.cards) == 1 else 's'}"
    return record


def _link(record: Record, card: Card, line: str, number: int) -> None:
    link, errors = _LINK.match(line), _ERRORS.match(line)
    if link is not None:
        record.tool = "nvidia-smi nvlink -s"
        rate = decimal(link[2] or "")
        speed = None if rate is None else round(rate * 1000)
        is_active = speed is not None and speed > 0
        card.links[int(link[1])] = {"is_active": Said(is_active, number)}
        if is_active:
            card.links[int(link[1])]["speed_mb_per_s"] = Said(speed, number)
        card.node["link_count"] = Said(max(card.links) + 1, card.line)
    elif errors is not None:
        record.tool = "nvidia-smi nvlink -e"
        name = _COUNTERS.get(errors[2].lower())
        value = integer(errors[3])
        if name is not None and value is not None:
            fields = card.links.setdefault(int(errors[1]), {})
            fields[name] = Said(value, number)
    elif _ALL_DOWN.search(line):
        record.tool = "nvidia-smi nvlink -s"
        card.node["all_links_down"] = Said(True, number)
