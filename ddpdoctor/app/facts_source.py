"""Where a command's facts come from: this machine, or a saved file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddpdoctor.app.request import DEFAULT_SECONDS, Request, seconds_left
from ddpdoctor.app.standard_input import standard_bytes
from ddpdoctor.collectors import collect
from ddpdoctor.facts.codec import FactsError, decode
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.privacy.redaction import redact
from ddpdoctor.system.machine import this_machine
from ddpdoctor.system.regular_file import special_file, why_unreadable
from ddpdoctor.system.timeouts import CallTimeout, call_with_timeout

__all__ = ["UnreadableError", "facts_for", "load_facts", "text_of"]

WITH_WORDS = ("environ", "launch", "hang", "log", "script", "startup")
MAX_FACTS_BYTES = 64 << 20
"""Facts of a node of 16 GPUs are below 1 MiB."""


STANDARD_INPUT_SECONDS = 60.0
"""Time limit for standard input: `ssh NODE ddpdoctor collect` may take 45 s."""
ANSWER_SECONDS = 10.0
"""Time limit for reading a file: a named pipe without a writer or a dead mount never answers."""


class UnreadableError(Exception):
    """An input without facts; the message has its name and the reason."""


def facts_for(
    request: Request,
    sections: Iterable[str],
    environ: Mapping[str, str | None] | None = None,
    python: str | None = None,
) -> tuple[Facts, tuple[str, ...]]:
    """The facts to judge, those of `--facts FILE` or this machine's, and what failed while they were gathered.

    `environ` are variables that a launch line sets in addition to those of this process; None unsets one. `python` is the
    interpreter of a launch line, None for our own.
    """
    wanted = tuple(sections)
    if request.facts is None:
        return _look(request, wanted, environ or {}, python)
    try:
        return load_facts(request.facts, seconds_left(request, STANDARD_INPUT_SECONDS)), ()
    except UnreadableError as error:
        request.listener.error(str(error))
        gaps = tuple(Gap(name, "the facts file could not be read", Why.UNANSWERED) for name in wanted)
        return Facts(schema=SCHEMA, collected_at="", hostname="", gaps=gaps), (f"read {error}",)


def load_facts(path: Path, seconds: float = STANDARD_INPUT_SECONDS) -> Facts:
    """The facts in a file that `ddpdoctor collect` wrote; `-` is standard input, which has `seconds` to end.

    Raises:
        UnreadableError: it cannot be read or holds no facts.
    """
    try:
        saved = json.loads(text_of(path, seconds))
        if isinstance(saved, dict) and saved.get("schema") != SCHEMA:
            raise FactsError(f"$.schema: expected {SCHEMA!r}, got {saved.get('schema')!r:.60}")
        return decode(Facts, _without_secrets(saved))
    except FactsError as error:
        raise UnreadableError(f"{path}: not facts from `ddpdoctor collect`: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{path}: not JSON: {error!s:.200}") from None


def _without_secrets(saved: Any) -> Any:
    """Facts that somebody wrote or edited may hold secrets in the sections with the user's own words."""
    if not isinstance(saved, dict):
        return saved
    return {name: redact(part) if name in WITH_WORDS else part for name, part in saved.items()}


def text_of(path: Path, seconds: float = STANDARD_INPUT_SECONDS) -> str:
    """What a saved file holds; `-` is standard input, which has `seconds` to end.

    Raises:
        UnreadableError: it cannot be read, or is too large for facts or a report.
    """
    try:
        if str(path) == "-":
            data = standard_bytes(MAX_FACTS_BYTES + 1, seconds)
        else:
            data = call_with_timeout(lambda: _bytes_of(path), min(ANSWER_SECONDS, seconds))
    except (CallTimeout, TimeoutError) as late:
        special = special_file(str(path))
        raise UnreadableError(f"{path}: {f'{special} that ' if special else ''}{late}") from None
    except OSError as error:
        raise UnreadableError(f"{path}: {why_unreadable(error, str(path))}") from None
    if len(data) > MAX_FACTS_BYTES:
        special = special_file(str(path))
        size = f"{special} with more than" if special else "larger than"
        raise UnreadableError(f"{path}: {size} {MAX_FACTS_BYTES >> 20} MiB, the limit for facts")
    if not data.strip():
        raise UnreadableError(f"{path}: empty")
    return data.decode("utf-8-sig", "replace")


def _bytes_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FACTS_BYTES + 1)


def _look(
    request: Request, wanted: tuple[str, ...], environ: Mapping[str, str | None], python: str | None
) -> tuple[Facts, tuple[str, ...]]:
    machine = this_machine(seconds_left(request))
    variables = {name: value for name, value in {**machine.environ, **environ}.items() if value is not None}
    machine = replace(machine, environ=variables, python=python or machine.python)
    facts = collect(machine, wanted)
    late = [name for name in wanted if getattr(facts, name) is None] if machine.deadline.left <= 0 else []
    if not late:
        return facts, ()
    return facts, (f"finish within --timeout {request.timeout or DEFAULT_SECONDS:g} s: no answer on {', '.join(late)}",)
