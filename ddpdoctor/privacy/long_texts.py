"""Removes secrets from long texts, such as the output of a job: a line is examined closely only if it can hold one."""

from __future__ import annotations

import re
from collections.abc import Callable

from ddpdoctor.late_pattern import pattern
from ddpdoctor.privacy.marks import Marks, mark, marking
from ddpdoctor.privacy.redaction import redact
from ddpdoctor.privacy.reports import SALT

__all__ = ["without_secrets_of_lines"]

_HINT = pattern(
    r"secret|passw|passphrase|passcode|credential|token|key|pwd|\bpw\b|_pw|pass\b|bearer|auth|cookie|cred|licen[cs]e|webhook|signature|sig=|jwt"
    r"|\bpat\b|psk|otp|\bdsn|://[^\s/]*@|[{$]|\bcurl\b|sshpass|docker|podman|helm|mysql|mariadb|twine|cqlsh|mongo|\b7z|zip\b"
    r"|sqlcmd|\bbcp\b|ipmitool|mosquitto|redis-cli|\bldap|openssl|xfreerdp|lftp|\bhttps?\s|snmp|nmcli|\bdvc\b|rclone|\bmc\s|wandb"
    r"|vault|neptune|comet|ngrok|sqlplus|jdbc|htpasswd|rabbitmq|net\suse|login|\s-u|munge|begin"
)
"""Words of the names, programs and messages that announce a secret, in a line in small letters: several times as fast."""
_LONG = pattern(
    r"(?<![\w+/~.=-])(?=(?:[^\W\d]|[+/~.=-])*\d)[\w+/~.=-]{14,}|[a-z]{2}_[A-Za-z]{16}"
    r"|(?<![A-Za-z])(?=[a-z]*[A-Z])[A-Za-z]{24,}"
)
"""A run of characters that is long enough for a token."""
_VALUE = pattern(r"\s*[\"']?value[\"']?\s*:")
"""The second line of a variable in a manifest, whose name is on the first one."""
_BLOCK = pattern(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.{0,20000}?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|(?=-----BEGIN )|\Z)",
    re.DOTALL,
)


def without_secrets_of_lines(text: str, goes_on: Callable[[], bool]) -> str:
    """The text without secrets. When `goes_on` says no, the lines before those that are done are left out: the end of an
    output says why it failed.
    """
    with marking(Marks(SALT)):
        lines = _BLOCK.sub(lambda found: mark(found[0]), text).splitlines(keepends=True)
        done: list[str] = []
        while lines and goes_on():
            line = lines.pop()
            if lines and _VALUE.match(line):
                done.append(_clean(lines[-1] + line)[len(_clean(lines[-1])) :])
            else:
                done.append(_clean(line) if _HINT.search(line.lower()) or _LONG.search(line) else line)
    if lines:
        done.append(f"[ddpdoctor: {len(lines)} lines not kept: no time to remove secrets from them]\n")
    return "".join(reversed(done))


def _clean(line: str) -> str:
    return str(redact({"text": line})["text"])
