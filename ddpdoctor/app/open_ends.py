"""What to say of a job whose log does not show that it ended well: what the log shows instead, and what to collect next."""

from __future__ import annotations

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import Report, Severity
from ddpdoctor.logs.endings import OpenEnd, open_end

__all__ = ["end_unknown"]

_OF_STUCK = (
    "if the job still runs, run `ddpdoctor hang` on each node; else run triage on the complete output of every rank"
)
_WORDS: dict[OpenEnd, str] = {
    OpenEnd.FAILURE: "a process failed, and the selected rules do not say why; run triage without --select and --ignore",
    OpenEnd.TROUBLE: "the text describes a problem without its message; run triage on the complete output of every rank",
    OpenEnd.JOINING: f"the output stops while the ranks connect; {_OF_STUCK}",
    OpenEnd.WARNING: "the output stops after a warning; run triage on the complete output, its end included",
    OpenEnd.CUT: "the last line is incomplete; run triage on the complete output, its end included",
    OpenEnd.STOPS: "the output shows neither a successful end nor training steps; run triage on the complete output with its end",
}


def end_unknown(log: Log, report: Report) -> str:
    """What the log of a job shows instead of a good end; empty if it shows one, or if an error explains the end."""
    if report.worst is Severity.ERROR:
        return ""
    found = open_end(log)
    if found is None:
        return ""
    kind, line = found
    place = f" ({log.place(line.source, line.number)})" if line is not None else ""
    what, _, then = _WORDS[kind].partition("; ")
    return f"{what}{place}; {then}"
