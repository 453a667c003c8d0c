"""LOG502, TOPO009, HOST011: NCCL's errors whose reason only NCCL's own log would tell, and those of which it tells half."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.findings import CausalStage, Finding, Role, Severity
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.line_meaning import NCCL_RETURNED
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.log004_to_007_peer_closed import CLOSED, peer_connection_closed
from ddpdoctor.rules.log.signatures import codes_of, explained, finding_of

FAILED = (
    r"unhandled (cuda|system) error",
    r"ncclUnhandledCudaError",
    r"ncclSystemError",
    r"internal error - please report this",
    r"ncclInternalError",
    r"ncclInvalid(Usage|Argument)",
    r"NCCL error[^\n]*, invalid (usage|argument)\b",
    r"NCCL Error \d+: (invalid|internal) ",
)

ECHOES = re.compile(r"Failed to execute operation|Error encountered progressing operation|NCCL WARN \S+:\d+ -> ?\d\b")
"""What NCCL's proxy says of a failure that it has told before."""
FATAL = re.compile(r"Cuda failure|Error while (?:creating|attaching to) shared memory")
"""Warnings after which NCCL gives up, where the log holds no more."""
FIX_OF_TOLD = (
    "Read NCCL's warning, and the lines of the same process right above it; `ddpdoctor check -- LAUNCH` looks for the usual "
    "reasons before the job."
)
OF_NETWORK = re.compile(r"socket|bootstrap|\bnet|ib_plugin")
"""NCCL's files through which it reaches other nodes."""
KINDS = {
    "1": "a call to CUDA",
    "2": "a call to the system",
    "3": "a check of its own",
    "4": "its arguments",
    "5": "its usage",
    "6": "a connection to a peer",
    "7": "a call that goes on",
}
"""What NCCL's results stand for."""
OF_CUDA = (
    "GPU memory that ran out (LOG013), peer access that does not work (TOPO003, TOPO030), a GPU that failed (sudo dmesg | grep "
    "-i xid)",
    ("nccl-out-of-memory", "peer-access-unsupported", "cuda-ipc-blocked"),
)
OF_LINK = (
    "an address that leads to no other node (NET021), ports that are closed between the nodes (NET009), a peer that ended first "
    "(LOG005: its own output decides)",
    ("nccl-wrong-interface", "data-ports-blocked", "peer-connection-closed"),
)
OF_ELSE = (
    "shared memory that is too small (HOST001), the network (NET009, NET021), a peer that ended first (LOG005)",
    ("shm-too-small-for-nccl", "data-ports-blocked", "nccl-wrong-interface", "peer-connection-closed"),
)
SHUTTING_DOWN = "driver shutting down"


@cause(
    "LOG502",
    "nccl-error-without-reason",
    Severity.ERROR,
    stage=CausalStage.NCCL_ERROR,
    kind="umbrella",
    candidates=("LOG013", "TOPO003", "TOPO030", "NET021", "NET009", "LOG005", "HOST001"),
    signatures=FAILED,
)
def nccl_error_without_reason(log: Log) -> Iterator[Finding]:
    """NCCL failed, and the log does not hold its reason.

    ## Why it matters
    "unhandled cuda error", "unhandled system error" or "internal error" only name the class: shared memory that is too small,
    peer access that does not work, a network interface that is not there, GPU memory that ran out, or a peer that ended first.
    NCCL prints the reason as "NCCL WARN", which is shown with NCCL_DEBUG=WARN only.

    ## Fix
    Start once more with NCCL_DEBUG=WARN and give that log to `ddpdoctor triage`; `ddpdoctor check -- LAUNCH` looks for the usual
    reasons before the job.
    """
    lines = matching_lines(log, FAILED)
    known = explained(log, "cause", "umbrella", "consequence")
    noise = explained(log, "noise")
    told = list(dict.fromkeys(line for name in ("nccl_warns", "nccl_reasons") for line, _ in context_lines(log, name)))
    warnings = [line for line in told if line not in known and line not in noise]
    if any(line in known for line in told):
        warnings = [line for line in warnings if not _is_echo(line)]
    warnings.sort(key=lambda line: (_is_echo(line), not FATAL.search(line.text)))
    has_cause = bool(explained(log, "cause", "umbrella") or log.tracebacks)
    fatal = [line for line in warnings if FATAL.search(line.text) and SHUTTING_DOWN not in line.text]
    has_ended = history_of(log).has_failed or (bool(fatal) and not history_of(log).is_harmless(fatal))
    if warnings and (lines or (has_ended and not has_cause)):
        title = "NCCL failed, and this warning of its own is the nearest to a reason that the log holds"
        yield replace(finding_of(log, [*warnings, *lines], title, blames_speaker=True), fix=FIX_OF_TOLD)
    elif lines:
        is_told = any(line not in lines for line in explained(log, "cause"))
        title = "NCCL failed" if is_told else "NCCL failed, and the log does not hold its reason"
        found = finding_of(log, lines, title, blames_speaker=True)
        closed = matching_lines(log, CLOSED)
        is_lost = all(any(line.who.may_be(each.who) for each in closed) for line in lines)
        is_lost = is_lost or (bool(closed) and all("nternal" in line.text for line in lines))
        is_lost = is_lost and not any("uda" in line.text for line in lines)
        yield replace(found, role=Role.CONSEQUENCE, caused_by=peer_connection_closed.code) if is_lost else found
    elif not known and not told and not log.tracebacks:
        yield from _passed_on(log)


def _passed_on(log: Log) -> Iterator[Finding]:
    """An error that NCCL passed on, of which its information alone is in the log: where it began, and what it may be."""
    last = history_of(log).last_failure
    found = NCCL_RETURNED.search(last.text) if last is not None else None
    if last is None or found is None or history_of(log).is_harmless([last]):
        return
    lines = [
        line
        for line in log.tails
        if line.source == last.source
        and line.who == last.who
        and (each := NCCL_RETURNED.search(line.text)) is not None
        and each["code"] == found["code"]
    ]
    first = NCCL_RETURNED.search(lines[0].text) if lines else found
    files = [each["file"] for line in lines if (each := NCCL_RETURNED.search(line.text)) is not None]
    begun = first["file"] if first is not None else found["file"]
    is_link = found["code"] != "1" and any(OF_NETWORK.search(file) for file in files)
    words, candidates = OF_CUDA if found["code"] == "1" else OF_LINK if is_link else OF_ELSE
    title = f"NCCL failed in {begun}, in {KINDS[found['code']]}, and its warning is not in this log"
    undetermined = f"Undetermined: {words}; NCCL_DEBUG=WARN shows it"
    yield replace(
        finding_of(log, [*lines, last], title, undetermined, blames_speaker=True), candidates=codes_of(*candidates)
    )


def _is_echo(line: LogLine) -> bool:
    return ECHOES.search(line.text) is not None


def nccl_versions(log: Log) -> str:
    """`2.18.3 on node1, 2.21.5 on node2`; empty where all tell the same."""
    told = {
        found["version"]: line.who.host or log.sources[line.source].name
        for line, found in context_lines(log, "nccl_version")
    }
    return ", ".join(f"{version} on {place}" for version, place in sorted(told.items())) if len(told) > 1 else ""
