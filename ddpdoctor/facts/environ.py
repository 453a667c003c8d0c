"""`environ`: what the environment variables of launchers, torch, NCCL, Gloo, CUDA and OpenMP say."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpdoctor.facts.gaps import Gap, Section

__all__ = ["Environ"]


@dataclass(frozen=True, slots=True)
class Environ(Section):
    """The variables that are set, by name. Values of names that look like secrets are replaced when collected."""

    variables: dict[str, str] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()

    def get(self, name: str) -> str | None:
        """The value, None when unset. An unset variable is a known fact, no gap."""
        return self.variables.get(name)
