"""Which machine each record is about: as its text says, as its file or folder is named, otherwise one machine for all."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.late_pattern import pattern
from ddpdoctor.tool_output.merge import Sourced
from ddpdoctor.tool_output.record import Record

__all__ = ["by_host"]

_ENDINGS = pattern(r"(?:\.(?:txt|log|xml|csv|json|out|gz|bz2|xz|md)){1,8}$", re.I)
_TOOL_WORDS = pattern(
    r"(?i)nvidia[-_ ]?(?:smi|bug[-_ ]?report)|nvsmi|ibv[-_]?devinfo|ibstat(?:us)?|dcgmi?|lspci|nccl[-_]?tests?"
    r"|all[-_]?reduce|collect[-_]?env|ulimit|printenv|ip[-_]?addr|nvlink|topo(?:logy)?|fabric[-_]?manager|scontrol|kubectl"
    r"|describe|query|output|report|health|diag|perf|status|\d{8}(?:[-_]\d{4,6})?|(?<![a-z0-9])(?:v{1,3}|[qxmsea]|env|node)(?![a-z0-9])"
)
_HOST = pattern(r"[A-Za-z](?=[\w-]*\d)[\w-]+$")


def by_host(files: Sequence[tuple[str, Sequence[Record]]]) -> dict[str, list[Sourced]]:
    """The records by the name of their machine; "" for the machine without a name."""
    folders = {_folder(name) for name, _ in files}
    found: dict[str, list[Sourced]] = {}
    for name, records in files:
        named = {record.host for record in records if record.host}
        of_file = (
            next(iter(named)) if len(named) == 1 else _host_in_name(name) or (_folder(name) if len(folders) > 1 else "")
        )
        for record in records:
            found.setdefault(record.host or of_file, []).append(Sourced(record, name))
    return {host: own for group, records in found.items() for host, own in _divided(group, records).items()}


def _folder(name: str) -> str:
    """The last folder in a path, "" without one."""
    return name.rpartition("/")[0].rpartition("/")[2]


def _host_in_name(name: str) -> str | None:
    """`gpu-07` in `logs/gpu-07_nvidia-smi-q.txt`; None if nothing is left without the words of tools."""
    stem = _ENDINGS.sub("", name.rpartition("/")[2])
    rest = re.sub(r"[-_. ]{2,}", "_", _TOOL_WORDS.sub("", stem)).strip("-_. ")
    return rest.partition(".")[0] if _HOST.match(rest.partition(".")[0]) and rest != stem else None


def _divided(host: str, records: Sequence[Sourced]) -> dict[str, list[Sourced]]:
    """The records as they are, or file by file if two files of an unnamed machine list different GPUs."""
    uuids: dict[str, set[str]] = {}
    for record, file in records:
        uuids.setdefault(file, set()).update(card.uuid for card in record.cards if card.uuid)
    sets = [found for found in uuids.values() if found]
    if host or all(a & b for a in sets for b in sets):
        return {host: list(records)}
    divided: dict[str, list[Sourced]] = {}
    for record, file in records:
        divided.setdefault(_ENDINGS.sub("", file.rpartition("/")[2]), []).append(Sourced(record, file))
    return divided
