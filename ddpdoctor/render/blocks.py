"""The findings of a report as blocks: a cause with its consequences, or all findings about one thing."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.findings import Finding, Report, Role, Severity
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Block", "blocks_of", "hidden_in", "is_harmless"]


@dataclass(frozen=True, slots=True)
class Block:
    """Findings that are read together: `findings` share a cause or a subject, and the first is shown in full.

    `consequences` follow from them.
    """

    findings: tuple[Finding, ...]
    consequences: tuple[Finding, ...] = ()

    @property
    def first(self) -> Finding:
        """The finding to act on."""
        return self.findings[0]

    @property
    def alike(self) -> tuple[Finding, ...]:
        """The findings of the same cause with the same fix at other places."""
        return tuple(finding for finding in self.findings if _cause(finding) == _cause(self.first))

    @property
    def others(self) -> tuple[Finding, ...]:
        """Findings of other causes about the same thing."""
        return tuple(finding for finding in self.findings if _cause(finding) != _cause(self.first))


def blocks_of(report: Report, *, is_verbose: bool = False) -> list[Block]:
    """All findings of a report, in its order, except harmless ones, which only a verbose screen shows."""
    shown = [finding for finding in report.findings if is_verbose or not is_harmless(finding)]
    causes = {(finding.job, finding.code) for finding in shown if finding.role is not Role.CONSEQUENCE}
    leading = [f for f in shown if not (f.role is Role.CONSEQUENCE and (f.job, f.caused_by) in causes)]
    blocks = []
    explained: set[tuple[str | None, str]] = set()
    for findings in _together(leading):
        codes = {(finding.job, finding.code) for finding in findings} - explained
        explained |= codes
        following = (f for f in shown if f.role is Role.CONSEQUENCE and (f.job, f.caused_by) in codes)
        blocks.append(Block(findings, tuple(following)))
    return blocks


def hidden_in(report: Report) -> tuple[Finding, ...]:
    """The harmless findings: noise, and notes that only follow from something else."""
    return tuple(finding for finding in report.findings if is_harmless(finding))


def is_harmless(finding: Finding) -> bool:
    """Noise, and notes that only follow from something else."""
    is_note = finding.worst is Severity.NOTE
    return finding.role is Role.NOISE or (is_note and finding.role is Role.CONSEQUENCE)


def _together(findings: Iterable[Finding]) -> list[tuple[Finding, ...]]:
    """Findings of one group, and findings of one cause with one fix, in the order of the first of each."""
    found: dict[tuple[str | None, ...], list[Finding]] = {}
    for finding in findings:
        key = (finding.job, "", finding.group) if finding.group else (finding.job, *_cause(finding))
        found.setdefault(key, []).append(finding)
    return [tuple(members) for members in found.values()]


def _cause(finding: Finding) -> tuple[str, str, str]:
    return finding.code, finding.worst.value, finding.fix
