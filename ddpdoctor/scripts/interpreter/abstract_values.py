"""Values that are not plain Python objects: what is unknown, and devices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["TorchDevice", "Unknown", "known", "worst"]


class Unknown(Enum):
    """A value that the text does not determine. The larger, the less can be concluded from it."""

    SAME = 1
    """Configuration: unknown, and as far as the text shows the same on all ranks."""
    DATA = 2
    """Depends on the rank's own share of the data: a batch, a loss."""
    VARIES = 3
    """May differ between ranks in a way that cannot be simulated."""


@dataclass(frozen=True, slots=True)
class TorchDevice:
    """torch.device: `index` None is the current device of that type."""

    type: str
    index: object = None


def known(value: object) -> bool:
    """Whether a value was determined."""
    return not isinstance(value, Unknown)


def worst(*values: object) -> Unknown:
    """The result of an operation of which at least one operand is unknown: the most unknown of them."""
    result = Unknown.SAME
    for value in values:
        if value is Unknown.VARIES:
            return value
        if value is Unknown.DATA:
            result = value
    return result
