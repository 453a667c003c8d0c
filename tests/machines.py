"""Machines and rule cases for tests: captured facts in fixtures/machines/, and merge patches over them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ddpdoctor.facts.codec import decode
from ddpdoctor.facts.record import SCHEMA, Facts

FIXTURES = Path(__file__).parent.parent / "fixtures"
MACHINES = FIXTURES / "machines"


def machine_names() -> list[str]:
    """Every machine in fixtures/machines/, by name."""
    return sorted({p.stem for p in MACHINES.iterdir() if p.is_dir() or p.suffix == ".json"} - {"expected"})


def machine_json(name: str) -> dict[str, Any]:
    """One machine's facts as JSON: NAME.json, or NAME/ with one file per section."""
    whole = MACHINES / f"{name}.json"
    if whole.exists():
        return json.loads(whole.read_text())
    sections = {p.stem: json.loads(p.read_text()) for p in sorted((MACHINES / name).glob("*.json"))}
    return {"schema": SCHEMA, "collected_at": "2026-11-21T00:00:00Z", "hostname": name.replace("_", "-"), **sections}


def machine(name: str, patch: dict[str, Any] | None = None) -> Facts:
    """One machine's facts, with a JSON merge patch (RFC 7396) over them."""
    return decode(Facts, merge_patch(machine_json(name), patch or {}))


def merge_patch(base: Any, patch: Any) -> Any:
    """RFC 7396: objects merge, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged
