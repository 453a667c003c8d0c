"""The settings of torchrun for a line: options, PET_ variables and defaults combined."""

from __future__ import annotations

from ddpdoctor.facts.launch.words import Word
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Plan", "PlanSetting"]


@dataclass(frozen=True, slots=True)
class PlanSetting:
    """One option in effect. `origin` is `line`, `variable` or `default`; `value` None: unknown or not set.

    `word` is the word of the line with the value, None if the line does not give it.
    """

    value: str | None
    origin: str
    word: Word | None = None
    is_unknown: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The rendezvous of one launcher. `backend` is the one in effect after --standalone and the rewrite of torch 2.12.

    `asked` is the backend as given. `is_rewritten`: a static launch of one node, which torch 2.12 changes to c10d on
    a free port.
    """

    nnodes: tuple[int, ...] | None
    nproc: int | None
    asked: str | None
    backend: str | None
    node_rank: int | None
    host: str | None
    port: int | None
    rdzv_id: str | None
    is_standalone: bool | None
    is_rewritten: bool
    settings: dict[str, PlanSetting]

    @property
    def is_multinode(self) -> bool:
        """Certainly more than one node."""
        return self.nnodes is not None and self.nnodes[1] > 1

    def given(self, dest: str) -> bool:
        """The line or a PET_ variable sets it, or may set it."""
        setting = self.settings[dest]
        return setting.origin != "default" or setting.is_unknown
