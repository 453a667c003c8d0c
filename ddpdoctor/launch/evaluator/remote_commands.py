"""The words of ssh, pdsh, clush, qrsh, blaunch and pbsdsh: the hosts, and where their command begins."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ONE_HOST", "remote_words"]

_REMOTE_VALUES = {
    "ssh": "pilobcDEFJLmOQRSwW",
    "pdsh": "wxgXfRltun",
    "clush": "wxgXflto",
    "qrsh": "lqPvwp",
    "blaunch": "uzi",
    "pbsdsh": "nch",
}
"""Short options of programs for other hosts that take a value."""


ONE_HOST = ("ssh", "qrsh", "blaunch")
"""Those whose first operand is the host."""


_NAMES_HOSTS = {"pdsh": "w", "clush": "w", "blaunch": "z", "pbsdsh": "h"}
"""The option that names the hosts."""


def remote_words(texts: Sequence[str], name: str) -> tuple[str | None, list[int]]:
    """The value of the option that names hosts, and the indices of the words that are not options."""
    named = None
    at = 1
    while at < len(texts) and texts[at].startswith("-") and len(texts[at]) > 1:
        letter, joined_value = texts[at][1], texts[at][2:]
        if name == "qrsh" and joined_value:
            letter, joined_value = "", ""  # `-inherit`, `-now`: its options are words
        takes_value = letter in _REMOTE_VALUES[name] and letter != ""
        if letter == _NAMES_HOSTS.get(name):
            named = joined_value or (texts[at + 1] if at + 1 < len(texts) else None)
        at += 2 if takes_value and not joined_value else 1
    return named, list(range(at, len(texts)))
