"""The host names in collected facts: in fields, in variables, and in texts."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Any

from ddpdoctor.facts.addresses import is_loopback

__all__ = ["LIST", "host_names_in", "hosts_in"]

LIST = re.compile(r"(?<![\w.-])[.-]*(?=\w)(?=[\w.-]*?[A-Za-z])([\w.-]+)\[([\d,-]+)\]")
"""One group of Slurm's lists: `gpu[001-003,7]`."""
_OF_HOSTS = re.compile(
    r"(?!(?:NCCL|CUDA|TORCH|PYTORCH|UCX|FI)_(?!COMM_ID|HOSTID)|.*(?:_PATTERN|_FILE)$).*(?:HOST|ADDR|NODE_?LIST|NODENAME"
    r"|ENDPOINT|MACHINES|_URI|COMM_ID)",
    re.IGNORECASE,
)
"""Names of variables whose values contain host names."""
_NO_HOST = re.compile(
    r"true|false|yes|no|on|off|auto|none|null|static|c10d|etcd(-v2)?|default|all|local|any|node|switch|host|file|tcp\d?|https?"
)
_HOST = r"(?P<host>[A-Za-z0-9_][\w.-]*)"
_HOSTS = r"[\"']?(?P<hosts>[A-Za-z0-9_][\w.,:@\[\]-]*)"
_HOST_PATTERNS = (
    r"(?i:--?(?:master[-_]addr|(?:rdzv|dist|init)[-_](?:endpoint|url|method)|local[-_]addr|main[-_]process[-_]ip|hosts?|nodelist"
    rf"|machines?))[= ]{_HOSTS}",
    rf"\b(?:mpirun|mpiexec|prterun|horovodrun)\b(?:(?!mpirun|mpiexec|prterun|horovodrun)[^|;&\n])*?\s-H {_HOSTS}",
    rf"\bsrun\b[^|;&\n]{{0,60}}?\s-w {_HOSTS}",
    rf"\b(?:tcp|https?|etcd|grpc|redis|ssh|nfs|wss?|ftp|(?:amqp|mysql|postgres|mongodb)[\w+]*)://(?:[^/@\s]*@)?{_HOST}",
    rf"\b(?:ssh|scp|rsync)\b(?:(?!\s(?:ssh|scp|rsync)\s)[^|;&\n])*?\s[\w.-]+@{_HOST}",
    rf": server {_HOST},? (?:not responding|OK\b|timed out)",
    rf"\\\\{_HOST}\\|(?<![\w:/])//{_HOST.replace('host', 'share')}/",
    rf"(?<![\w.-])[.-]*{_HOST}@(?:tcp|o2ib)\d*\b",
)
_IN_TEXT = tuple(re.compile(pattern) for pattern in _HOST_PATTERNS)
_TEXTS = ("source", "command", "text")
"""The fields of facts that contain a command line or a log line."""
MOST_HOSTS = 10_000
SHORTEST = 2
"""Shorter host names are ignored: they would match in every text."""


def host_names_in(saved: Any) -> tuple[str, ...]:
    """The host names in collected facts, longest first."""
    names = {name for name in _names(saved) if not _is_plain(name)}
    names |= {name.partition(".")[0] for name in names}
    names |= {
        name
        for section in ("launch", "hang", "log")
        for text in _texts(saved.get(section))
        for name in _hosts_in_text(text)
    }
    return tuple(sorted((n for n in names if len(n) >= SHORTEST and not _is_plain(n)), key=lambda n: (-len(n), n)))


def hosts_in(nodelist: str) -> tuple[str, ...]:
    """The hosts in Slurm's list form: `gpu[001-003,7],login`."""
    found: list[str] = [word for word in LIST.sub("", nodelist).split(",") if word]
    for stem, numbers in LIST.findall(nodelist):
        for part in numbers.split(","):
            first, _, last = part.partition("-")
            if first.isdigit() and (not last or last.isdigit()):
                count = range(int(first), min(int(last or first), int(first) + MOST_HOSTS) + 1)
                found += [f"{stem}{number:0{len(first)}d}" for number in count]
    return tuple(found)


def _names(saved: Any) -> Iterator[str]:
    net = saved.get("net") or {}
    yield str(saved.get("hostname", ""))
    yield str(net.get("hostname", ""))
    for found in (net.get("own_name"), net.get("full_name"), net.get("master_name"), *net.get("reverse", ())):
        if isinstance(found, dict):
            yield str(found.get("name", ""))
    yield from _of_variables((saved.get("environ") or {}).get("variables", {}))
    for process in (saved.get("hang") or {}).get("processes", ()):
        yield str(process.get("host", ""))
        yield from _of_variables(process.get("variables", {}))


def _of_variables(variables: Any) -> Iterator[str]:
    for name, value in variables.items():
        if _OF_HOSTS.match(name):
            yield from _words(str(value))


def _words(value: str) -> Iterator[str]:
    """The hosts in a list of any form: Slurm's, one with slots (`a:8,b:8`, `a 4 b 4`), JSON, URIs."""
    yield from (name for name in hosts_in(value) if LIST.search(value))
    for word in re.split(r"[\s,;\"'&]+", LIST.sub("", value).strip("[]")):
        if not word.startswith(("/", ".", "<")):
            yield word.rpartition("://")[2].rpartition("@")[2].strip("[]").partition(":")[0].partition("/")[0]


def _hosts_in_text(text: str) -> Iterator[str]:
    for pattern in _IN_TEXT:
        for match in pattern.finditer(text):
            for group, value in match.groupdict().items():
                if value and group == "hosts":
                    yield from _words(value)
                elif value:
                    yield value.rstrip(".")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, str) and key in _TEXTS:
                yield item
            elif not isinstance(item, str):
                yield from _texts(item)


def _is_plain(name: str) -> bool:
    """Whether a word is not a host name that has to be hidden."""
    if is_loopback(name) or name.isdigit() or _NO_HOST.fullmatch(name.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name)
    return True
