"""`--write-nodes GOOD,BAD`: the names of the nodes that may run the job, and of those to leave out, one per line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.app.output_file import check_target, write_file
from ddpdoctor.app.request import UsageError
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.light_dataclass import dataclass

if TYPE_CHECKING:
    from ddpdoctor.app.verdicts import JobVerdict
    from ddpdoctor.facts.nodes import Nodes
    from ddpdoctor.findings import Report

__all__ = ["NodeLists", "sort_nodes"]


@dataclass(frozen=True)
class NodeLists:
    """The two files, None without the option."""

    good: Path | None = None
    bad: Path | None = None

    @classmethod
    def of(cls, given: str | None) -> NodeLists:
        """Parse the value of the option.

        Raises:
            UsageError: not a pair of files, or one of them cannot be written.
        """
        if given is None:
            return cls()
        names = given.split(",")
        if len(names) != 2 or not all(names) or names[0] == names[1]:
            raise UsageError(f"--write-nodes {given!r:.80}: expected two files, such as good.txt,bad.txt")
        for name in names:
            check_target("--write-nodes", Path(name))
        return cls(Path(names[0]), Path(names[1]))

    def write(self, report: Report, verdict: JobVerdict) -> None:
        """Write both lists, on the node that hosted the session: the others may share its file system."""
        if self.good is None or self.bad is None or verdict.nodes is None or not verdict.is_host:
            return
        good, bad = sort_nodes(verdict.nodes, report.findings)
        write_file(self.good, "".join(f"{name}\n" for name in good))
        write_file(self.bad, "".join(f"{name}\n" for name in bad))


def sort_nodes(nodes: Nodes, findings: Iterable[Finding]) -> tuple[list[str], list[str]]:
    """The hosts without and with an error of their own; a node that did not join is bad if its name is known.

    If a link between two nodes is broken, both ends are in neither list.
    """
    errors = [finding for finding in findings if finding.worst is Severity.ERROR]
    blamed = {name for error in errors for name in (error.where.host, error.where.peer) if name is not None}
    by_rank = {node.rank: node.host for node in nodes.nodes if node.rank is not None}
    blamed |= {by_rank[rank] for error in errors for rank in error.ranks if rank in by_rank}
    hosts = list(dict.fromkeys(node.host for node in nodes.nodes))
    bad = [*(host for host in hosts if host in blamed), *nodes.missing_hosts.values()]
    return [host for host in hosts if host not in bad], list(dict.fromkeys(bad))
