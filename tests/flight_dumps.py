"""Flight Recorder dumps as torch writes them, of any version and backend, for tests and benchmarks."""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

HOUR_NS = 3_600_000_000_000
START_NS = 1_700_000_000_000_000_000
LIBRARY = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


@functools.cache
def _frame(name: str, file: str, line: int) -> dict[str, Any]:
    """A frame is one object, however often it occurs: torch pickles it once."""
    return {"name": name, "filename": file, "line": line}


def call(
    name: str,
    sizes: Sequence[Sequence[int]] = ((4,),),
    *,
    line: int = 10,
    state: str = "completed",
    dtype: str = "Float",
    group: tuple[str, str] = ("0", "default_pg"),
    retired: bool | None = None,
    seq: int | None = None,
    outputs: Sequence[Sequence[int]] | None = None,
) -> dict[str, Any]:
    """One call, without what `dump` adds: the record's id and the sequence number of its group."""
    is_p2p = name.startswith(("send", "recv")) or name == "coalesced p2p"
    out = sizes if outputs is None else outputs
    return {
        "pg_id": int(group[0]) if group[0].isdigit() else 0,
        "process_group": group,
        "profiling_name": name.removesuffix(" p2p"),
        "input_sizes": [list(each) for each in sizes],
        "input_dtypes": [dtype] * len(sizes),
        "output_sizes": [list(each) for each in out],
        "output_dtypes": [dtype] * len(out),
        "state": state,
        "retired": state == "completed" if retired is None else retired,
        "is_p2p": is_p2p,
        "timeout_ms": 600_000,
        "frames": [_frame(name, LIBRARY, 2500), _frame("train", "/job/train.py", line)],
        "seq": seq,
    }


def dump(
    calls: Iterable[dict[str, Any]],
    *,
    groups: dict[str, Sequence[int]] | None = None,
    backend: str = "nccl",
    first: int = 0,
    version: str = "2.10",
    start_ns: int = START_NS,
) -> dict[str, Any]:
    """A dump of torch 2.13: `first` is how many entries the ring has already forgotten."""
    entries = []
    numbers: dict[tuple[Any, bool], int] = {}
    for index, each in enumerate(calls):
        key = (each["process_group"], each["is_p2p"])
        number = each["seq"] if each["seq"] is not None else numbers.get(key, first) + 1
        numbers[key] = number
        entry = {
            **{name: value for name, value in each.items() if name != "seq"},
            "record_id": first + index,
            "collective_seq_id": 0 if each["is_p2p"] else number,
            "p2p_seq_id": number if each["is_p2p"] else 0,
            "op_id": number,
            "time_created_ns": start_ns + (first + index) * 1_000_000,
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
        }
        entry["profiling_name"] = f"{backend}:{each['profiling_name']}"
        entries.append(entry)
    config = {
        name: {"name": name, "desc": "default_pg" if name == "0" else "undefined", "ranks": str(list(ranks))}
        for name, ranks in (groups or {}).items()
    }
    return {"version": version, "pg_config": config, "pg_status": {}, "entries": entries}


def older(new: dict[str, Any], version: str) -> dict[str, Any]:
    """The same dump as torch 2.2 ("1.5": one sequence number, no groups' ranks) or torch 2.3 to 2.5 ("2.3") wrote it."""
    entries = []
    for each in new["entries"]:
        entry = {k: v for k, v in each.items() if k not in ("timeout_ms", "thread_id", "thread_name")}
        if version.startswith("1."):
            entry["seq_id"] = entry.pop("collective_seq_id") or entry.pop("p2p_seq_id")
            for name in ("p2p_seq_id", "is_p2p", "op_id", "process_group", "input_dtypes", "output_dtypes"):
                entry.pop(name, None)
        entries.append(entry)
    if version.startswith("1."):
        return {"entries": entries, "version": version}
    return {"entries": entries, "version": version, "pg_config": new["pg_config"]}


def pickled(raw: object) -> bytes:
    """As torch pickles: protocol 2."""
    return pickle.dumps(raw, protocol=2)


def as_json(raw: dict[str, Any]) -> str:
    """As torch writes JSON: no stacks, keys in order, 0 for no time, numbers of `pg_status` as text."""
    entries = [
        {k: 0 if v is None and k.startswith("time") else v for k, v in each.items() if k != "frames"}
        for each in raw["entries"]
    ]
    status = {key: {k: str(v) for k, v in each.items()} for key, each in raw["pg_status"].items()}
    return json.dumps({**raw, "entries": entries, "pg_status": status}, sort_keys=True)
