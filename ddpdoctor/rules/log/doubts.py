"""HOST001, LAUNCH003, LAUNCH050, LAUNCH077, NET009, NET017, NET021: causes that their signatures alone do not prove."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.logs.context_patterns import context_lines
from ddpdoctor.logs.distances import FEW_PROGRESS_LINES, SHM_REASON_LINES
from ddpdoctor.logs.history import history_of
from ddpdoctor.rules import in_logs
from ddpdoctor.rules.log.signatures import as_signed, finding_of, matching
from ddpdoctor.rules.log.told import peer_in

__all__: list[str] = []

NO_SEGMENT = (r"Error while creating shared memory segment",)
NO_ROOM = re.compile(r"No space left|posix_fallocate|ftruncate|extend /dev/shm|Bus error")
UNSURE_ROOM = (
    "NCCL could not make its shared memory, and blames a call to CUDA. Undetermined: CUDA cannot register memory of the "
    "host here (WSL, or a container that refuses it: HOST010), the driver does not fit this NCCL, or /dev/shm is too small "
    "(HOST001: df -h /dev/shm)"
)
FIX_OF_ROOM = (
    "Look at df -h /dev/shm while the job starts; if it has room, run once with NCCL_SHM_DISABLE=1 and compare the "
    "versions of NCCL and of the driver."
)
REASON = re.compile(r"shmutils\.\w+:\d+ NCCL WARN (?P<reason>.+)")

REFUSED = (
    r"Call to connect returned Connection (timed out|refused), retrying",
    r"returned [\w() ]+, retrying \(\d+/\d+\)",
    r"(Connect to \S+|Call to connect) failed : Connection refused",
)
TRIES = re.compile(r"retrying \((?P<tried>\d+)/(?P<most>\d+)\)")
UNSURE_INTERFACE = (
    "NCCL could not connect to {peer}. Undetermined: the rank there ended first or never came (its own output decides), {file}"
    "the address is that of an interface which leads to no other node (NET021; NCCL_SOCKET_IFNAME), or the ports that NCCL "
    "chooses are closed between the nodes (NET009)"
)
OF_FILE = "the init file holds the addresses of an earlier run (NET018: take a new file), "

NO_ANSWER = re.compile(r"Connection timed out|no POLLOUT events|unable to complete a TCP connection")
UNSURE_PORTS = (
    "A rank got no answer from another one. Undetermined: only the master port is open between the nodes (NET009), the address "
    "is that of an interface which leads to no other node (NET021), or the other machine was gone"
)

UNSURE_LOOPBACK = (
    "Gloo found nobody at its own machine's loopback address. Undetermined: the rank there ended first, where all ranks run on "
    "one machine, or in a job of several nodes a node's own name leads to its loopback (NET017)"
)

ADDED = re.compile(r"unrecognized arguments: +(?:--|[–—])(?P<option>local[-_]rank)(?:=\d+)?(?P<others>(?: +.+)?)")
LAUNCHERS = {
    "local_rank": (
        "The launcher, torch.distributed.launch before torch 2.0, adds --local_rank to the script's arguments, and the script "
        "does not know this option",
        "Let the script declare both spellings of the option (--local-rank and --local_rank), or read LOCAL_RANK and start it "
        "with torchrun, or with --use_env.",
    ),
    "local-rank": (
        "The launcher, torch.distributed.launch since torch 2.0, adds --local-rank to the script's arguments, and the script "
        "knows --local_rank at most",
        None,
    ),
}
OTHERS = "; it refuses {others} as well, so a second command or an option of the launcher stands behind the script"
TWO = re.compile(r"--local[-_]rank\b")
TWICE = "; it came twice, so one launcher starts another"

NO_DAEMON = r"\b(?:orted|prted): (?:command not found|No such file)"
TITLE_OF_DAEMON = (
    "mpirun came to a host over ssh and did not find its own daemon there: it is not in the PATH of a shell without a "
    "terminal"
)
FIX_OF_DAEMON = (
    "Start mpirun by its full path or with --prefix, with the same Open MPI at the same place on every host, or set PATH and "
    "LD_LIBRARY_PATH in ~/.bashrc before the line that returns for shells without a terminal."
)

NO_MODULE = re.compile(
    r"finding module specification for '(?P<asked>[\w.]+)'|python[\d.]*: No module named '?(?P<named>\w[\w.]*)"
)
MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
)


@in_logs("HOST001")
def shared_memory(log: Log) -> Iterator[Finding]:
    """A segment that could not be made: for lack of room, unless NCCL has just told another reason."""
    reasons = [reason for line in matching(log, NO_SEGMENT) if (reason := _reason(log, line)) is not None]
    if not reasons and matching(log, NO_SEGMENT) and _may_be_cuda(log):
        yield replace(finding_of(log, matching(log, NO_SEGMENT), UNSURE_ROOM, blames_speaker=True), fix=FIX_OF_ROOM)
        return
    if not reasons or len(reasons) < len(matching(log, NO_SEGMENT)):
        yield from as_signed("HOST001", log)
        return
    said = REASON.search(reasons[0].text)
    title = (
        f"NCCL could not make its shared memory, for another reason than a lack of room ({said['reason'] if said else ''}). "
        "Undetermined: CUDA cannot register memory of the host here (a container or machine that refuses it, HOST010), the "
        "driver is too old for this NCCL, or /dev/shm is too small after all (HOST001: df -h /dev/shm); with NCCL_SHM_DISABLE=1 "
        "the job runs without it"
    )
    yield replace(finding_of(log, [*reasons, *matching(log, NO_SEGMENT)], title, blames_speaker=True), fix=FIX_OF_ROOM)


def _may_be_cuda(log: Log) -> bool:
    """Whether NCCL says that a call to CUDA failed, and nothing that a call to the system did or that room lacks."""
    texts = [line.text for line in (*log.lines, *log.tails)]
    if any(NO_ROOM.search(text) or "ncclSystemError" in text or "unhandled system error" in text for text in texts):
        return False
    return any("ncclUnhandledCudaError" in text or "unhandled cuda error" in text for text in texts)


def _reason(log: Log, line: LogLine) -> LogLine | None:
    """What NCCL's code for shared memory has told just before in the same process, if it is no lack of room."""
    told = [
        each
        for each, _ in context_lines(log, "nccl_warns")
        if each.source == line.source and 0 < line.number - each.number <= SHM_REASON_LINES and each.who == line.who
    ]
    return told[-1] if told and REASON.search(told[-1].text) and not NO_ROOM.search(told[-1].text) else None


@in_logs("NET021")
def refused(log: Log) -> Iterator[Finding]:
    """NCCL tried in vain to connect: an interface's name or a link-local address proves a wrong interface, nothing else does."""
    lines = matching(log, REFUSED)
    counted = [line for line in lines if TRIES.search(line.text)]
    is_given_up = history_of(log).has_failed or len(counted) < len(lines)
    if counted and not is_given_up and not any(_is_last(log, line) for line in counted):
        return  # it got its connection
    for found in as_signed("NET021", log):
        if not lines or any(each.seen not in {line.text for line in lines} for each in found.evidence):
            yield found
            continue
        stale = OF_FILE if any(context_lines(log, "init_file")) else ""
        title = UNSURE_INTERFACE.format(
            peer=peer_in(each for each in log.lines if "onnect to " in each.text) or "a peer", file=stale
        )
        told = finding_of(log, lines, title, blames_speaker=True)
        yield replace(
            told if is_given_up else replace(told, severity=Severity.WARNING, role=None),
            fix="Read first what the rank at that address printed. If it runs, compare the address with the node's interfaces "
            "(ip -br addr) and set NCCL_SOCKET_IFNAME to the one that leads to the other nodes.",
        )


def _is_last(log: Log, line: LogLine) -> bool:
    """Whether nothing follows in this source that looks like a job that runs."""
    return not history_of(log).progress_after(line) and log.sources[line.source].lines <= (
        max(line.number, line.last) + FEW_PROGRESS_LINES
    )


@in_logs("NET009")
def unanswered(log: Log) -> Iterator[Finding]:
    """Ports that give no answer; that a machine refuses, or has no route, is more than that."""
    for found in as_signed("NET009", log):
        is_open = all(NO_ANSWER.search(each.seen or "") for each in found.evidence)
        yield replace(found, message=f"{UNSURE_PORTS}: {found.message.partition(': ')[2]}") if is_open else found


@in_logs("NET017")
def loopback(log: Log) -> Iterator[Finding]:
    """A loopback address that refuses: without a sign of other nodes, a rank of this machine may have ended."""
    hosts = {each.who.host for each in (*log.spoken, *log.tails)} - {None}
    node_ranks = {each.who.node_rank for each in (*log.spoken, *log.tails)} - {None}
    is_sure = max(len(hosts), len(node_ranks), len(log.sources)) > 1
    for found in as_signed("NET017", log):
        said = found.message.partition(": ")[2]
        yield found if is_sure else replace(found, message=f"{UNSURE_LOOPBACK}: {said}")


@in_logs("LAUNCH050")
def local_rank_refused(log: Log) -> Iterator[Finding]:
    """The spelling that was refused tells which launcher added it; the script may know the other one or none."""
    for found in as_signed("LAUNCH050", log):
        told = ADDED.search(found.message)
        if told is None:
            yield found
            continue
        title, fix = LAUNCHERS[told["option"]]
        others = told["others"].strip()
        title += TWICE if TWO.match(others) else OTHERS.format(others=others) if others else ""
        yield replace(found, message=f"{title}: {found.message.partition(': ')[2]}", fix=fix or found.fix)


@in_logs("LAUNCH077")
def without_daemon(log: Log) -> Iterator[Finding]:
    """What works over ssh was not let in, or did not find its own daemon there."""
    missing = matching(log, (NO_DAEMON,))
    if missing:
        yield replace(finding_of(log, missing, TITLE_OF_DAEMON, blames_speaker=False), fix=FIX_OF_DAEMON)
    else:
        yield from as_signed("LAUNCH077", log)


@in_logs("LAUNCH003")
def program_missing(log: Log) -> Iterator[Finding]:
    """A script that is not there, or a module that -m names and Python does not find."""
    for found in as_signed("LAUNCH003", log):
        told = NO_MODULE.search(found.message)
        if told is None:
            yield found
            continue
        name = told["asked"] or told["named"]
        meant = difflib.get_close_matches(name, MODULES, 1, 0.85)
        hint = f", which is a misspelt {meant[0]}" if meant and meant[0] != name else ""
        yield replace(
            found,
            message=f"Python finds no module {name}{hint}: {found.message.partition(': ')[2]}",
            fix=f"Write python -m {meant[0]}."
            if hint
            else "Install the module for this Python, or correct its name behind -m.",
        )
