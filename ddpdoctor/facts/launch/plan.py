"""What torchrun will really do with a line: options, PET_ variables and defaults put together."""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.facts.launch.words import Word

__all__ = ["Plan", "PlanSetting"]


@dataclass(frozen=True, slots=True)
class PlanSetting:
    """One option as it takes effect. `origin` is `line`, `variable` or `default`; `value` None: unknown or not set.

    `word` is the word of the line that holds the value, None when the line does not give it.
    """

    value: str | None
    origin: str
    word: Word | None = None
    is_unknown: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The rendezvous of one agent. `backend` is what is in force after --standalone and the rewrite of 2.12.

    `asked` is the backend as given. `is_rewritten`: a one-node static launch that 2.12 turns into c10d on a free port.
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
        """The line or a PET_ variable gives it (or may give it)."""
        each = self.settings[dest]
        return each.origin != "default" or each.is_unknown
