"""Values that are not plain Python objects: what is unknown, and devices."""

from __future__ import annotations

from enum import Enum

from ddpdoctor.light_dataclass import dataclass

__all__ = ["TorchDevice", "Unknown", "known", "worst"]


class Unknown(Enum):
    """A value that the source does not determine. The larger, the less can be concluded from it."""

    SAME = 1
    """Configuration: unknown, but the same on all ranks as far as the source shows."""
    DATA = 2
    """Depends on the data of the rank: a batch, a loss."""
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
    """The result of an operation with at least one unknown operand: the most unknown of them."""
    result = Unknown.SAME
    for value in values:
        if value is Unknown.VARIES:
            return value
        if value is Unknown.DATA:
            result = value
    return result
