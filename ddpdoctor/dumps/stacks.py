"""Stacks as files: what `py-spy dump` prints, also with --json, what Python's faulthandler writes, and both from torch's
debug server (torch/distributed/debug/_debug_handlers.py), as text or as a saved page.
"""

from __future__ import annotations

import html
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ddpdoctor.dumps.file_names import rank_in_name
from ddpdoctor.facts.hang import DebugAnswer, RankProcess, Stack, StackFrame, Thread

__all__ = ["as_processes", "debug_answers_in", "stacks_in"]

MOST_STACKS = 4096
_PROCESS = re.compile(r"^Process (\d+): ?(.*)$")
_SPY_THREAD = re.compile(r"^Thread (?:0x)?[0-9a-fA-F]+ \((?P<state>[^)]*)\)(?:: \"(?P<name>[^\"]*)\")?\s*$")
_SPY_FRAME = re.compile(r"^\s+(?P<function>\S.*?) \((?P<file>[^()]+):(?P<line>\d+)\)\s*$")
_FAULT_THREAD = re.compile(
    r"^(?P<current>Current thread|Thread) 0x[0-9a-f]+(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):"
)
_FAULT_FRAME = re.compile(r"^\s+File \"(?P<file>[^\"]+)\", line (?P<line>\d+) in (?P<function>.*\S)\s*$")
_SERVED = re.compile(
    r"^\s*(?:=== |<h[2-4]>)Rank (?P<rank>\d{1,6}): https?://(?P<host>[^/\s:<]{1,255})[^\s<]{0,300}(?: ===|</h[2-4]>)\s*$"
)
"""The heading over what one rank answered to the debug server."""
_PARTIAL = re.compile(r"^(?:<pre>)?PARTIAL DATA: \d{1,6}/\d{1,6} workers responded$")
_FAILED = re.compile(r"^  Rank (\d{1,6}): (.*?)(?:</pre>)?$")
_NO_ANSWER = re.compile(r"[Tt]ime(?:d )?out|[Cc]onnect|: (?:408|503|504)\b")
"""A rank that is reached and lacks what was asked for answers 404 or 500."""
_UNHEALTHY = re.compile(r'"healthy": ?false')
_PREFIX = re.compile(r"^\[?rank ?(\d+)\]?:? ?", re.IGNORECASE)


def stacks_in(source: str, text: str) -> tuple[Stack, ...]:
    """The stacks in a text, one per process; faulthandler names no process, so all of its threads are of one.

    Raises:
        ValueError: it begins like JSON and is none.
    """
    if text.lstrip()[:1] == "[" and '"thread_id"' in text:
        try:
            return tuple(_of_json(source, json.loads(text)))
        except RecursionError:
            raise ValueError("JSON that is nested too deeply") from None
    reading = _StackText(source)
    for line in _lines(text):
        reading.take(line)
        if len(reading.found) > MOST_STACKS:
            break
    return tuple(reading.finish())


def _lines(text: str) -> list[str]:
    """The lines of a text, or of what a page of the debug server shows."""
    lines = text.splitlines()
    if re.match(r"\s*<!doctype html>", text[:200], re.IGNORECASE) is None:
        return lines
    return [
        html.unescape(line.strip(" ") if "<" in line else line).removeprefix("<pre>").removesuffix("</pre>")
        for line in lines
    ]


def debug_answers_in(source: str, text: str) -> tuple[DebugAnswer, ...]:
    """The ranks that did not answer torch's debug server, or said that they are unhealthy; one answer per rank."""
    found: dict[int, DebugAnswer] = {}
    hosts: dict[int, str] = {}
    lines = _lines(text)
    lacking: set[int] = set()
    rank: int | None = None
    is_summary = False
    for number, line in enumerate(lines, 1):
        served = _SERVED.match(line)
        failed = _FAILED.match(line) if is_summary else None
        is_summary = _PARTIAL.match(line) is not None or failed is not None
        if served is not None:
            rank = int(served["rank"])
            hosts.setdefault(rank, served["host"].partition(".")[0])
        elif failed is not None and "404" in failed[2]:
            lacking.add(int(failed[1]))
        elif failed is not None and _NO_ANSWER.search(failed[2]):
            found.setdefault(
                int(failed[1]), DebugAnswer(source, int(failed[1]), "no answer", failed[2][:300], line=number)
            )
        elif rank is not None and rank not in lacking and re.match(r"Error: (?:408|503|504)$", line.strip()):
            found.setdefault(rank, DebugAnswer(source, rank, "no answer", line.strip()[:300], line=number))
        elif rank is not None and _UNHEALTHY.search(line):
            found.setdefault(rank, DebugAnswer(source, rank, "unhealthy", line.strip()[:300], line=number))
    return tuple(replace(each, host=hosts.get(each.rank, "")) for each in list(found.values())[:MOST_STACKS])


def _of_json(source: str, content: Any) -> Iterator[Stack]:
    """What py-spy dump --json writes: a list of threads, each with the process that it belongs to."""
    found: dict[int | None, list[dict[str, Any]]] = defaultdict(list)
    for each in content if isinstance(content, list) else ():
        if isinstance(each, dict):
            found[pid if isinstance(pid := each.get("pid"), int) else None].append(each)
    for process, threads in list(found.items())[:MOST_STACKS]:
        names = [str(thread.get("thread_name") or "") for thread in threads]
        main = names.index("MainThread") if "MainThread" in names else 0
        told = threads[main].get("process_info")
        command = str(told.get("command_line", ""))[:500] if isinstance(told, dict) else ""
        stacks = tuple(Thread(n, _frames(t), i == main) for i, (n, t) in enumerate(zip(names, threads, strict=True)))
        if any(stack.frames for stack in stacks):
            yield Stack(source, "py-spy", process, rank_in_name(source), command, stacks)


def _frames(thread: dict[str, Any]) -> tuple[StackFrame, ...]:
    frames = thread.get("frames")
    return tuple(
        StackFrame(
            str(each.get("filename", "")),
            line if isinstance(line := each.get("line"), int) else 0,
            str(each.get("name")),
        )
        for each in (frames if isinstance(frames, list) else ())
        if isinstance(each, dict)
    )


class _StackText:
    """The stack and the thread that are being read."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.rank = rank_in_name(source)
        self.host = ""
        self.found: list[Stack] = []
        self.head: tuple[int | None, str, str] | None = None
        self.threads: list[tuple[str, list[StackFrame]]] = []

    def take(self, line: str) -> None:
        """Take in the next line."""
        said = _PREFIX.match(line)
        if said:
            line = line[said.end() :]
        served = _SERVED.match(line)
        if served:
            self._close()
            self.rank, self.host = int(served["rank"]), served["host"].partition(".")[0]
            return
        process, spy, fault = _PROCESS.match(line), _SPY_THREAD.match(line), _FAULT_THREAD.match(line)
        if process:
            self._close()
            self.head = int(process[1]), process[2][:500], "py-spy"
        elif spy and self.head is not None:
            self.threads.append((spy["name"] or "", []))
        elif fault:
            if self.head is None or self.head[2] != "faulthandler" or (said and self.rank != int(said[1])):
                self._close()
                self.head = None, "", "faulthandler"
            self.threads.append((fault["name"] or "", []))
        elif self.threads and self.head is not None:
            frame = (_SPY_FRAME if self.head[2] == "py-spy" else _FAULT_FRAME).match(line)
            if frame:
                self.threads[-1][1].append(StackFrame(frame["file"], int(frame["line"]), frame["function"]))
        if said:
            self.rank = int(said[1])

    def finish(self) -> list[Stack]:
        """All of them."""
        self._close()
        return self.found

    def _close(self) -> None:
        if self.head is not None and any(frames for _, frames in self.threads):
            pid, command, tool = self.head
            names = [name for name, _ in self.threads]
            # faulthandler names no thread; it writes the oldest one, which runs the script, last.
            main = names.index("MainThread") if "MainThread" in names else 0 if tool == "py-spy" else len(names) - 1
            threads = tuple(Thread(n, tuple(frames), i == main) for i, (n, frames) in enumerate(self.threads))
            self.found.append(Stack(self.source, tool, pid, self.rank, command, threads, self.host))
        self.head, self.threads = None, []


def as_processes(stacks: Iterable[Stack]) -> tuple[RankProcess, ...]:
    """The main threads of stacks as ranks that do not move, since stacks are taken of stuck jobs. Workers are left out."""
    processes: list[RankProcess] = []
    for stack in stacks:
        main = stack.main
        if main is not None and not _is_worker(main.frames):
            processes.append(
                RankProcess(
                    pid=stack.pid or 0,
                    host=stack.host,
                    rank=stack.rank,
                    job="stacks",
                    command=stack.command,
                    state="S",
                    frames=main.frames,
                )
            )
    return tuple(processes)


def _is_worker(frames: Sequence[StackFrame]) -> bool:
    """A process of a data loader or of multiprocessing, or torchrun's agent: no rank."""
    files = [frame.file for frame in frames]
    return any(
        re.search(r"torch/utils/data/_utils/worker\.py$|multiprocessing/(spawn|popen_\w+|forkserver)\.py$", f)
        for f in files
    ) or any(re.search(r"torch/distributed/(elastic/agent|launcher)/", f) for f in files)
