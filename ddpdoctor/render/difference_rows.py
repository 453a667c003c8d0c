"""What only the failed run has, one row each: on the screen and in Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.examined import RunDifference
from ddpdoctor.findings import Report
from ddpdoctor.render.plain import printable

__all__ = ["difference_rows", "difference_text", "heading_of_differences"]

MOST_ROWS = 5
"""Rows without -v."""


def heading_of_differences(report: Report) -> str:
    """`only in the failed run, not in good/ (evidence, not causes):`."""
    if report.differences:
        return f"only in the failed run, not in {report.compared_with} (evidence, not causes):"
    return f"compared with {report.compared_with}: no setting, version, host or kind of line is only in the failed run"


def difference_text(each: RunDifference) -> str:
    """`setting NCCL_ALGO: Tree, otherwise not set`."""
    if each.kind == "line":
        usual = "" if each.good == "never" else f", at most {each.good} in a good run"
        return f"line {each.name!r}: {each.failed}{usual}"
    if each.kind == "host":
        return f"host {each.name}: {each.failed}, {each.good}"
    return f"{each.kind} {each.name}: {each.failed}, otherwise {each.good}"


def difference_rows(report: Report, *, is_verbose: bool) -> Iterator[tuple[str, str]]:
    """The heading and the rows of the differences, each with its place; nothing without a comparison."""
    if not report.compared_with:
        return
    yield printable(heading_of_differences(report)), ""
    most = len(report.differences) if is_verbose else MOST_ROWS
    for difference in report.differences[:most]:
        yield (
            f"  {printable(difference_text(difference))}",
            f" ({printable(difference.place)})" if difference.place else "",
        )
    if len(report.differences) > most:
        yield "", f"  and {len(report.differences) - most} more (-v shows them)"
