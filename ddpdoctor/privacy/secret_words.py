"""Which words in a name announce a secret, in any position: of a variable, an option, a key of JSON or YAML."""

# ruff: noqa: SIM905

from __future__ import annotations

import re
from enum import IntEnum

from ddpdoctor.late_pattern import pattern

__all__ = ["Announces", "announces"]


class Announces(IntEnum):
    """How strongly a name announces a secret."""

    NOTHING = 0
    KEY = 1
    """A value that looks like a key is one: `license`, `session`."""
    SECRET = 2
    """Every value is a secret: `db_pass`."""


_SECRETS = frozenset(
    "password passwords passwd passphrase passcode secret secrets credential credentials pw pwd apikey bearer jwt psk otp totp"
    " bindpw rootpw dbpass dbpw userpass sudopass pgpass".split()
)
_PASS = frozenset({"pass", "cred", "creds", "pat"})
_NOT_PASS = frozenset(
    "forward backward first second single multi one two three per num by fwd bwd grad opt post pre extra last next this each"
    " low high slow fast".split()
)
"""Before `pass`: a pass over the data, not a password."""
_KEYS = frozenset(
    "key keys token tokens auth authtoken license licence cookie session sas dsn salt signature sig private webhook login"
    " access pin unlock activation subscription".split()
)
_LOCATION = frozenset(
    "file path dir name type ref provider policy id url uri host port mode method algorithm alg length len".split()
)
"""The last word of a name that says where or what the secret is."""
_FIRM = pattern(r"passw(?:or)?d|passphrase|passcode|secret|credential|api_?key", re.IGNORECASE)
"""Also as a part of a word: `PGPASSWORD`."""
_WORD = pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def announces(name: str) -> Announces:
    """What a name says about its value."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _LOCATION:
        return Announces.NOTHING
    if _FIRM.search(name) or any(word in _SECRETS for word in words):
        return Announces.SECRET
    for before, word in zip(["", *words], words, strict=False):
        if word in _PASS and len(words) > 1 and before not in _NOT_PASS:
            return Announces.SECRET
    return Announces.KEY if any(word in _KEYS for word in words) else Announces.NOTHING
