"""LOG502, TOPO009, HOST011: NCCL errors whose reason only NCCL's own log shows, and those that it shows in part."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.facts.nccl_line import nccl_line
from ddpdoctor.findings import CausalStage, Certainty, Finding, Role, Severity
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.history import history_of
from ddpdoctor.logs.line_meaning import NCCL_RETURNED
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.logs.nccl_hints import hints_after
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.headlines import clipped
from ddpdoctor.rules.log.log004_to_007_peer_closed import CLOSED, peer_connection_closed
from ddpdoctor.rules.log.nccl_hints import advice, hinted_causes
from ddpdoctor.rules.log.signatures import codes_of, explained, finding_of, retitled

FAILED = (
    r"unhandled (cuda|system) error",
    r"ncclUnhandledCudaError",
    r"ncclSystemError",
    r"internal error - please report this",
    r"ncclInternalError",
    r"ncclInvalid(Usage|Argument)",
    r"NCCL error[^\n]{0,300}, invalid (usage|argument)\b",
    r"NCCL Error \d+: (invalid|internal) ",
    r"\bNCCL error: (?:invalid (?:usage|argument)|internal error|remote process exited)",
)

ECHOES = re.compile(r"Failed to execute operation|Error encountered progressing operation|NCCL WARN \S+:\d+ -> ?\d\b")
"""What NCCL's proxy prints about a failure that it has already reported."""
FATAL = re.compile(r"Cuda failure|Error while (?:creating|attaching to) shared memory")
"""Warnings after which NCCL gives up, if the log ends there."""
FIX_OF_WARNING = (
    "Read NCCL's warning and the lines of the same process directly above it. `ddpdoctor check -- LAUNCH` searches for the usual "
    "reasons before the job starts."
)
WHY_OF_WARNING = (
    "The warning is the nearest reason in the log: NCCL failed right after it, and no known cause matches it."
)
OF_NETWORK = re.compile(r"socket|bootstrap|\bnet|ib_plugin")
"""NCCL's source files for connections to other nodes."""
LAST_ERROR = re.compile(r"[Ll]ast error:? (?P<error>\S[^\n]{4,300})")
"""What torch prints below NCCL's error, where a text has it in one line."""
KINDS = {
    "1": "a CUDA call",
    "2": "a system call",
    "3": "an internal check",
    "4": "an argument check",
    "5": "a usage check",
    "6": "a connection to a peer",
    "7": "an unfinished call",
}
"""The meaning of NCCL's result codes."""
OF_CUDA = (
    "GPU memory ran out (LOG013), peer access does not work (TOPO003, TOPO030), or a GPU failed",
    ("nccl-out-of-memory", "peer-access-unsupported", "cuda-ipc-blocked"),
)
OF_LINK = (
    "the interface does not reach the other nodes (NET021), ports between the nodes are closed (NET009), or a peer ended first "
    "(LOG005)",
    ("nccl-wrong-interface", "data-ports-blocked", "peer-connection-closed"),
)
OF_ELSE = (
    "shared memory is too small (HOST001), the network failed (NET009, NET021), or a peer ended first (LOG005)",
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
    """NCCL failed, and the log does not show the reason.

    ## Why it matters
    `unhandled cuda error`, `unhandled system error`, and `internal error` only name the class of the failure. NCCL prints the
    reason as `NCCL WARN`, but only with NCCL_DEBUG=WARN.

    ## Fix
    Run the job again with NCCL_DEBUG=WARN and run `ddpdoctor triage` on that log. `ddpdoctor check -- LAUNCH` searches for the
    usual reasons (shared memory, peer access, interfaces, GPU memory) before the job starts.

    ## Example

        ncclUnhandledCudaError: Call to CUDA function failed.

        # before
        torchrun --nproc-per-node 8 train.py
        # after
        NCCL_DEBUG=WARN torchrun --nproc-per-node 8 train.py 2>&1 | tee job.log && ddpdoctor triage job.log
    """
    lines = matching_lines(log, FAILED)
    known = explained(log, "cause", "umbrella", "consequence")
    noise = explained(log, "noise")
    printed = list(
        dict.fromkeys(line for name in ("nccl_warns", "nccl_reasons") for line, _ in context_lines(log, name))
    )
    warnings = [line for line in printed if line not in known and line not in noise]
    if any(line in known for line in printed):
        warnings = [line for line in warnings if not _is_echo(line)]
    warnings.sort(key=lambda line: (_is_echo(line), not FATAL.search(line.text)))
    has_cause = bool(explained(log, "cause", "umbrella") or log.tracebacks)
    fatal = [line for line in warnings if FATAL.search(line.text) and SHUTTING_DOWN not in line.text]
    has_ended = history_of(log).has_failed or (bool(fatal) and not history_of(log).is_harmless(fatal))
    if warnings and (lines or (has_ended and not has_cause)):
        yield _warned(log, warnings, lines)
    elif lines:
        has_reason = any(line not in lines for line in explained(log, "cause"))
        title = "NCCL failed" if has_reason else "NCCL failed, and the log does not show the reason"
        found = finding_of(log, lines, title, blames_speaker=True)
        found = found if has_reason else _with_last_error(lines, found)
        closed = matching_lines(log, CLOSED)
        is_lost = all(any(line.who.may_be(peer.who) for peer in closed) for line in lines)
        is_lost = is_lost or (bool(closed) and all("nternal" in line.text for line in lines))
        is_lost = is_lost and not any("uda" in line.text for line in lines)
        yield replace(found, role=Role.CONSEQUENCE, caused_by=peer_connection_closed.code) if is_lost else found
    elif not known and not printed and not log.tracebacks:
        yield from _passed_on(log)


def _warned(log: Log, warnings: list[LogLine], lines: list[LogLine]) -> Finding:
    """The nearest reason: NCCL's warning as a whole, the function that printed it, and NCCL's own advice."""
    parsed = nccl_line(warnings[0].text)
    function = f" in {parsed.function}" if parsed is not None and parsed.function else ""
    found = finding_of(log, [*warnings, *lines], f"NCCL failed{function} after this warning", blames_speaker=True)
    found = replace(found, quote=warnings[0].text.strip(), why=WHY_OF_WARNING, fix=FIX_OF_WARNING)
    hints = hints_after(log, warnings)
    if not hints:
        return found
    return replace(
        found,
        fix=f"{advice(hints)} {FIX_OF_WARNING}",
        candidates=hinted_causes(hints),
        certainty=Certainty.CANDIDATES,
    )


def _with_last_error(lines: list[LogLine], found: Finding) -> Finding:
    """With what NCCL itself gives as its last error, where the line has it."""
    told = next((m["error"] for line in lines if (m := LAST_ERROR.search(line.text)) is not None), None)
    if told is None:
        return found
    found = replace(found, why=f"NCCL's own last error is the nearest reason in the log: {told}", fix=FIX_OF_WARNING)
    return retitled(found, f"NCCL failed: {clipped(told)}")


def _passed_on(log: Log) -> Iterator[Finding]:
    """An error whose only trace is NCCL's INFO lines: where it began, and what it can be."""
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
    reasons, candidates = OF_CUDA if found["code"] == "1" else OF_LINK if is_link else OF_ELSE
    title = f"NCCL failed in {begun.rpartition('/')[2]} ({KINDS[found['code']]})"
    undetermined = f"Either {reasons}: run again with NCCL_DEBUG=WARN, which prints the reason, to decide"
    yield replace(
        finding_of(log, [*lines, last], title, undetermined, blames_speaker=True), candidates=codes_of(*candidates)
    )


def _is_echo(line: LogLine) -> bool:
    return ECHOES.search(line.text) is not None


def nccl_versions(log: Log) -> str:
    """`2.18.3 on node1, 2.21.5 on node2`; "" if all are the same."""
    versions = {
        found["version"]: line.who.host or log.sources[line.source].name
        for line, found in context_lines(log, "nccl_version")
    }
    return (
        ", ".join(f"{version} on {place}" for version, place in sorted(versions.items())) if len(versions) > 1 else ""
    )
