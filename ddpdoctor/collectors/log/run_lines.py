"""Reads what distinguishes one run from another from its logs, a second time and with a limit: only a comparison needs it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ddpdoctor.collectors.log.input_kind import kind_of
from ddpdoctor.collectors.log.inputs import PIECE_BYTES, UNREADABLE, Input, TolerantReader, inputs_of, opened
from ddpdoctor.facts.log import InputKind
from ddpdoctor.logs.run_features import RunFeatures

__all__ = ["features_of"]

MOST_BYTES_OF_FILE = 8 << 20
MOST_BYTES_OF_RUN = 32 << 20
_TEXTS = (InputKind.TEXT, InputKind.KERNEL, InputKind.STACKS)


def features_of(paths: Iterable[str], deadline: float = math.inf, without: frozenset[str] = frozenset()) -> RunFeatures:
    """The features of the run whose logs these files and folders are, except the files `without`.

    Of large logs only the beginning is read. What cannot be read is left out: triage itself reports it.
    """
    features = RunFeatures()
    left = MOST_BYTES_OF_RUN
    for each in inputs_of(paths):
        if each.problem is None and each.path is not None and each.path not in without and left > 0:
            left -= _take(features, each, min(left, MOST_BYTES_OF_FILE), deadline)
    return features


def _take(features: RunFeatures, each: Input, most: int, deadline: float) -> int:
    """Take the lines of one input, at most so many bytes of it; returns how many were read."""
    try:
        with opened(each, None, deadline) as file:
            reader = TolerantReader(file, deadline)
            if kind_of(reader.head, each.name) not in _TEXTS:
                return 0
            done, number, rest = 0, 0, b""
            while done < most and (piece := reader.read(min(PIECE_BYTES, most - done))):
                done += len(piece)
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    number += 1
                    features.take(each.name, number, line.decode("utf-8", "replace"))
            if rest and done < most:
                features.take(each.name, number + 1, rest.decode("utf-8", "replace"))
            return done
    except UNREADABLE:
        return 0
