"""What a healthy day measured, in a file: kept by --save-baseline, compared with by --baseline. Rank 0's own business."""

from __future__ import annotations

import json

from ddpdoctor.facts.codec import FactsError, decode, encode
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.probe import Baseline, Probe

__all__ = ["compare", "save"]

SCHEMA = "ddpdoctor.baseline/1"


def compare(probe: Probe, path: str) -> Baseline | Gap:
    """The baseline in the file; why it is none for this probe."""
    try:
        with open(path, encoding="utf-8") as file:
            told = json.load(file)
        if not isinstance(told, dict) or told.pop("schema", None) != SCHEMA:
            return Gap("probe.baseline", f"{path} is no file that --save-baseline wrote")
        found = decode(Baseline, told)
    except OSError as error:
        return Gap("probe.baseline", f"{path} cannot be read: {error.strerror}")
    except (ValueError, FactsError):
        return Gap("probe.baseline", f"{path} is no file that --save-baseline wrote")
    shape = (found.backend, found.world_size, found.device)
    if shape == (probe.backend, probe.world_size, probe.device):
        return found
    words = (
        f"{path} is of {found.world_size} ranks over {found.backend}{f' with {found.device}' if found.device else ''}"
    )
    return Gap("probe.baseline", f"{words}: nothing to compare with", Why.NOT_HERE)


def save(probe: Probe, path: str) -> None:
    """Write what was measured.

    Raises:
        OSError: the file cannot be written.
    """
    kept = Baseline(probe.backend, probe.world_size, probe.device, probe.measurements, probe.pairs)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"schema": SCHEMA, **encode(kept)}, file, indent=1)
        file.write("\n")
