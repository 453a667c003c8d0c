"""Saved measurements of a healthy run: written with `--save-baseline`, compared with `--baseline`, by rank 0 only."""

from __future__ import annotations

import json
from pathlib import Path

from ddpdoctor.facts.codec import FactsError, decode, encode
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.probe import Baseline, Probe
from ddpdoctor.system.regular_file import text_of_regular
from ddpdoctor.system.whole_file import write_whole

__all__ = ["compare", "save"]

SCHEMA = "ddpdoctor.baseline/1"
MOST_BYTES = 64 << 20
"""The pairs of 4,096 ranks take 20 MiB."""


def compare(probe: Probe, path: str) -> Baseline | Gap:
    """The baseline in the file, or a gap with the reason why this probe cannot be compared with it."""
    try:
        saved = json.loads(text_of_regular(path, MOST_BYTES))
        if not isinstance(saved, dict) or saved.pop("schema", None) != SCHEMA:
            return Gap("probe.baseline", f"{path}: not written by --save-baseline")
        baseline = decode(Baseline, saved)
    except OSError as error:
        return Gap("probe.baseline", f"{path}: {error.strerror}")
    except (ValueError, RecursionError, FactsError):
        return Gap("probe.baseline", f"{path}: not written by --save-baseline")
    shape = (baseline.backend, baseline.world_size, baseline.device)
    if shape == (probe.backend, probe.world_size, probe.device):
        return baseline
    device = f" with {baseline.device}" if baseline.device else ""
    reason = f"{path}: for {baseline.world_size} ranks over {baseline.backend}{device}, not comparable"
    return Gap("probe.baseline", reason, Why.NOT_HERE)


def save(probe: Probe, path: str) -> None:
    """Write the measurements.

    Raises:
        OSError: the file cannot be written.
    """
    kept = Baseline(probe.backend, probe.world_size, probe.device, probe.measurements, probe.pairs)
    write_whole(Path(path), json.dumps({"schema": SCHEMA, **encode(kept)}, indent=1) + "\n")
