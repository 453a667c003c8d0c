"""Collects the variables of launchers, torch, NCCL, Gloo, CUDA and OpenMP, and the parent processes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from ddpdoctor.collectors.nccl_files import look
from ddpdoctor.facts.environ import ConfFile, Environ, NamedPath
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.variables import NOT_GATHERED, is_read, is_relevant
from ddpdoctor.system.machine import Machine, Root
from ddpdoctor.system.timeouts import CallTimeout, call_with_timeout

__all__ = ["collect", "relevant"]

MAX_ANCESTORS = 64
MAX_VALUE = 65536
FILE_SECONDS = 1.0
"""A home folder may be on a file server that does not respond; the variables are reported anyway."""
_AGENTS = re.compile(r"torchrun|torch\.distributed\.(run|launch)|pt_elastic|accelerate|deepspeed", re.IGNORECASE)
_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")
_MARKS = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE")


def collect(machine: Machine) -> Environ:
    """The relevant variables of `machine.environ`, secrets removed, and the chain of parent processes."""
    variables = relevant(machine.environ)
    chain = _ancestors(machine.root)
    gaps = []
    if chain is None:
        gaps.append(Gap("environ.ancestors", "the parent processes are not readable in /proc", Why.NOT_HERE))
    agent = None
    if any(variables.get(name) for name in _MARKS):
        agent = _has_agent(machine, chain)
        if agent is None:
            reason = "whether torchrun started this process is not readable in /proc"
            gaps.append(Gap("environ.has_elastic_agent", reason, Why.NOT_HERE))
    confs: tuple[ConfFile, ...] = ()
    paths: tuple[NamedPath, ...] = ()
    try:
        confs, paths = call_with_timeout(
            lambda: look(machine.root, {n: _clean(v) for n, v in machine.environ.items()}), FILE_SECONDS
        )
    except CallTimeout as late:
        gaps.append(Gap("environ.conf_files", f"NCCL's files: {late}"))
    return Environ(
        variables=variables,
        conf_files=confs,
        paths=paths,
        ancestors=None if chain is None else tuple(_program(machine.root, pid) for pid in chain),
        has_elastic_agent=agent,
        gaps=tuple(gaps),
    )


def relevant(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter to a distributed job, by name, secrets removed; values that no rule reads are left out."""
    values = {_clean(name): _value(name, value) for name, value in environ.items() if is_relevant(name)}
    return dict(sorted(values.items()))


def _clean(text: str) -> str:
    """Text that can be written as UTF-8: other bytes become replacement characters."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _value(name: str, value: str) -> str:
    from ddpdoctor.privacy.redaction import (
        redact_variable,
    )  # importing it costs as much as 20 rules, and most shells set none of these

    if value and not is_read(name):
        return NOT_GATHERED
    return redact_variable(name, _clean(value[:MAX_VALUE]))


def _ancestors(root: Root) -> list[int] | None:
    """The process ids of the ancestors, nearest first; None when /proc does not show them."""
    parent = _parent(root, "self")
    if parent is None:
        return None
    chain: list[int] = []
    while parent and parent not in chain and len(chain) < MAX_ANCESTORS:
        chain.append(parent)
        parent = _parent(root, parent)
    return chain


def _parent(root: Root, pid: int | str) -> int | None:
    # The command's name is in parentheses and may contain parentheses itself: read from the last one.
    after = (root.line(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return int(after[1]) if len(after) > 1 and after[1].isdigit() else None


def _program(root: Root, pid: int) -> str:
    """The program of a process without its arguments: `bash`, `torchrun`, `torch.distributed.run`."""
    name = root.line(f"/proc/{pid}/comm") or "?"
    words = _words(root, pid)
    if not _is_python(root, pid):
        return name
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        rest = rest[2:] if rest[0] in ("-X", "-W") else rest[1:]
    if not rest or rest[0] == "-c":
        return name
    script = rest[1] if rest[0] == "-m" and len(rest) > 1 else os.path.basename(rest[0])
    return script if name in (script, os.path.basename(words[0])) or _PYTHON.fullmatch(name) else f"{script} ({name})"


def _has_agent(machine: Machine, chain: list[int] | None) -> bool | None:
    """Whether an ancestor can be torchrun's agent, which also runs inside programs that use torch's launcher API."""
    if not chain:
        return None
    root = machine.root
    if any(_AGENTS.search(_program(root, pid)) for pid in chain):
        return True
    if machine.environ.get("TORCHELASTIC_ERROR_FILE"):  # an agent always sets it
        maps = [root.line(f"/proc/{pid}/maps") for pid in chain if _is_python(root, pid)]
        if any(text is not None and "libtorch" in text for text in maps):
            return True
        if None in maps:
            return None
    # In a container the agent may run outside: then the container's first process has its variables.
    first = root.line("/proc/1/environ") or ""
    return None if any(f"{name}=" in first for name in _MARKS) else False


def _words(root: Root, pid: int) -> list[str]:
    return [_clean(w) for w in (root.line(f"/proc/{pid}/cmdline") or "").split("\0") if w]


def _is_python(root: Root, pid: int) -> bool:
    words = _words(root, pid)
    return bool(words) and _PYTHON.fullmatch(os.path.basename(words[0])) is not None
