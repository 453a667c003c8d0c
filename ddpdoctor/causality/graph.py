"""The causal graph: which cause explains which other one, from the causes' own declarations."""

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
    """Causes and what they explain. An unknown code counts as a fault that explains nothing."""

    def __init__(self, causes: Iterable[DeclaredCause]) -> None:
        self._causes = {cause.code: cause for cause in causes}

    def kind(self, code: str) -> str:
        """`cause`, `umbrella`, `consequence` or `noise`."""
        known = self._causes.get(code)
        return "cause" if known is None else known.kind

    def stage(self, code: str) -> CausalStage:
        """The stage at which it becomes visible, from the fault on."""
        known = self._causes.get(code)
        return CausalStage.FAULT if known is None else known.stage

    def speaker(self, code: str) -> Speaker:
        """Which process prints the lines that show it."""
        known = self._causes.get(code)
        return Speaker.CULPRIT if known is None else known.speaker

    def position(self, code: str) -> tuple[CausalStage, bool]:
        """Its stage, and whether it is an umbrella: more precise causes come first."""
        return self.stage(code), self.kind(code) == "umbrella"

    def effects(self, code: str) -> tuple[str, ...]:
        """The codes that it declares to explain."""
        known = self._causes.get(code)
        return () if known is None else known.explains

    def declares(self, cause: str, effect: str) -> bool:
        """Whether `cause` declares that it explains `effect`."""
        return effect in self.effects(cause)

    def explains(self, cause: str, effect: str) -> bool:
        """Whether `cause` can explain `effect`: by declaration, or it has an earlier stage and neither declares anything else."""
        if self.declares(cause, effect) or self.declares(effect, cause):
            return self.declares(cause, effect)
        return self.kind(cause) in ("cause", "umbrella") and self.position(cause) < self.position(effect)

    def first(self, codes: Iterable[str]) -> str | None:
        """The cause that none of the others explains; the first by code if there are several."""
        distinct = sorted(set(codes))
        return min(distinct, key=lambda code: any(self.declares(other, code) for other in distinct), default=None)
