"""Where a command's facts come from: this machine, or a saved file."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ddpdoctor.cli.options import Common, UsageError
from ddpdoctor.collectors import collect
from ddpdoctor.collectors.machine import this_machine
from ddpdoctor.facts.codec import FactsError, decode
from ddpdoctor.facts.record import SCHEMA, Facts

__all__ = ["DEFAULT_SECONDS", "facts_for"]

DEFAULT_SECONDS = 30.0


def facts_for(common: Common, sections: Iterable[str]) -> Facts:
    """The facts to judge: those of `--facts FILE`, else this machine's."""
    if common.facts is None:
        return collect(this_machine(common.timeout or DEFAULT_SECONDS), sections)
    return read_facts(common)


def read_facts(common: Common) -> Facts:
    """The facts in the file of `--facts`.

    Raises:
        UsageError: it cannot be read or is no facts file.
    """
    path = common.facts
    assert path is not None
    try:
        saved = json.loads(path.read_text("utf-8", "replace"))
        if isinstance(saved, dict) and saved.get("schema") != SCHEMA:
            raise FactsError(f"$.schema: expected {SCHEMA!r}, got {saved.get('schema')!r:.60}")
        return decode(Facts, saved)
    except OSError as error:
        raise UsageError(f"--facts {path}: {error.strerror}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"--facts {path}: not JSON: {error}") from None
    except FactsError as error:
        raise UsageError(f"--facts {path}: {error}") from None
