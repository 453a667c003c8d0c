"""The causal graph: which cause explains which other one, from what the causes themselves declare."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ddpdoctor.findings import CausalStage, Speaker

__all__ = ["CausalGraph", "DeclaredCause"]


class DeclaredCause(Protocol):
    """What a cause declares about its place among the others."""

    @property
    def code(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def stage(self) -> CausalStage: ...
    @property
    def explains(self) -> tuple[str, ...]: ...
    @property
    def speaker(self) -> Speaker: ...


class CausalGraph:
    """Causes and what they explain. A code that it does not know is a fault by itself that explains nothing more."""

    def __init__(self, causes: Iterable[DeclaredCause]) -> None:
        self._causes = {each.code: each for each in causes}

    def kind(self, code: str) -> str:
        """`cause`, `umbrella`, `consequence` or `noise`."""
        known = self._causes.get(code)
        return "cause" if known is None else known.kind

    def stage(self, code: str) -> CausalStage:
        """How far from a fault it shows."""
        known = self._causes.get(code)
        return CausalStage.FAULT if known is None else known.stage

    def speaker(self, code: str) -> Speaker:
        """Who prints the lines that show it."""
        known = self._causes.get(code)
        return Speaker.CULPRIT if known is None else known.speaker

    def position(self, code: str) -> tuple[CausalStage, bool]:
        """Its stage, and whether it is an umbrella: what is more precise comes first."""
        return self.stage(code), self.kind(code) == "umbrella"

    def effects(self, code: str) -> tuple[str, ...]:
        """The codes that it names as what it explains."""
        known = self._causes.get(code)
        return () if known is None else known.explains

    def declares(self, cause: str, effect: str) -> bool:
        """Whether the one names the other as something that it explains."""
        return effect in self.effects(cause)

    def explains(self, cause: str, effect: str) -> bool:
        """Whether the one can explain the other: it says so, or it is of an earlier stage and the other says nothing else."""
        if self.declares(cause, effect) or self.declares(effect, cause):
            return self.declares(cause, effect)
        return self.kind(cause) in ("cause", "umbrella") and self.position(cause) < self.position(effect)

    def first(self, codes: Iterable[str]) -> str | None:
        """The one of these causes that none of the others names; of several the first by code."""
        found = sorted(set(codes))
        return min(found, key=lambda code: any(self.declares(each, code) for each in found), default=None)
