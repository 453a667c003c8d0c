"""Redaction: removes tokens, keys, passwords and credentials in URLs from texts and facts. The package's entry point for that.

Names decide first: `facts.variables.is_secret` knows those of variables, this module those that announce a secret in a text.
Then shapes: `scanner_rules` has the expressions of a public scanner, `token_shapes` what tokens look like. Then the
context: `secret_places` knows the command lines, files and messages with secrets.
"""

from __future__ import annotations

import re
from typing import Any

from ddpdoctor.facts.environ import REMOVED
from ddpdoctor.facts.variables import is_secret
from ddpdoctor.late_pattern import pattern
from ddpdoctor.privacy.marks import mark
from ddpdoctor.privacy.scanner import without_tokens
from ddpdoctor.privacy.secret_places import MESSAGE, PLACES, PROGRAMS
from ddpdoctor.privacy.secret_words import Announces, announces
from ddpdoctor.privacy.token_shapes import SHAPE, WORD, is_random, is_surely_random, looks_like_key

__all__ = ["REMOVED", "redact", "redact_variable"]

URL = pattern(
    r"(?P<scheme>[A-Za-z][\w+.-]{0,20}://)(?:[^/?#\s'\"<>]{1,400}|[^/?#:\s'\"<>]{0,200}:(?!\d+/)(?:(?!://)[^\s'\"<>@]){1,400})@"
)
"""Credentials in a URL: a password may contain characters that should have been escaped, and is not a port."""
_FIRM = r"secret|passw(?:or)?d|passphrase|passwd|credential"
"""Words that make any name with them the name of a secret."""
_KEYS = (
    r"(?:api|access|account|private|fernet|auth|encryption|signing|shared|session|service|storage|subscription|license|webhook"
    r"|wandb|comet|neptune|clearml|mlflow|openai|anthropic|hf|huggingface|aws|azure|gcp|google|s3|minio|ssh|user|client"
    r"|ingest(?:ion)?|unseal|deploy|consumer|application|recovery)[-_]?key|account\.key[\w.-]{0,80}|x-honeycomb-team"
)
_OF_TEXT = (
    *("bos", "eos", "pad", "unk", "cls", "sep", "mask", "stop", "start", "end", "first", "last", "next", "per", "new"),
    *(
        "num",
        "max",
        "min",
        "total",
        "input",
        "output",
        "image",
        "audio",
        "video",
        "special",
        "extra",
        "added",
        "prompt",
    ),
)
_TOKENS = "".join(rf"(?<!\b{word}[_-])(?<!_{word}[_-])" for word in _OF_TEXT) + "token"
"""An access token, not a text token: `hf_token`, not `pad_token`."""
_SUFFIX = r"s?(?:[_.-]?(?:value|data|string|str|b64|base64|raw|text|plain|header|env|\d+(?!\d)))*(?![\w-])"
_NAME = rf"(?:[\w.-]{{0,80}}(?:{_FIRM})s?[\w.-]{{0,80}}|[\w.-]{{0,80}}(?:{_TOKENS}|{_KEYS}|pwd|(?<![A-Za-z])pw|bearer){_SUFFIX})"
_WORDS = (
    r"auth|authorization|signature|sig|cookie|creds?|jwt|t?otp|psk|(?:pass|access)[-_]?code|(?:ssh|db|user|key|store|root|bind|admin|ldap|smtp|ftp|http|sudo)?p(?:ass|w)"
    r"|(?:github|gitlab|gh|gl|azure|ado|devops|bitbucket|personal[_-]access|hub|hf)[_-]?pat"
)
_LOOSE = rf"(?:[\w.-]{{0,80}}[_.-])?(?:{_WORDS}){_SUFFIX}"
"""Names that are also ordinary words: their values are secrets only in `sig=…`, `"auth": "…"` and `--auth …`."""
_VALUE = r"(?P<value>[bru]{0,2}(?:\"[^\"]*\"|'[^']*')|[^\s,;&\"'}\])]+)"
NAMES = pattern(rf"{_FIRM}|token|key|pwd|pw|bearer|honeycomb|{_WORDS}", re.IGNORECASE)
"""A part of every name below: a text without one is not searched for them."""
ENTRY = pattern(
    rf"(?P<name>\bname[\"']?:\s*[\"']?{_NAME}[\"']?,?\s+[\"']?value[\"']?:\s*|\"name\":\"{_NAME}\",\"value\":)(?!\d{{1,5}}\b){_VALUE}",
    re.IGNORECASE,
)
"""A variable in a manifest: `name: HF_TOKEN`, followed by `value: …`."""
NAMED = pattern(rf"(?P<name>(?<![\w.-]){_NAME}[\"']?\]?)(?P<sign>\s*[=:]\s*|\s+(?=[^\s=:])){_VALUE}", re.IGNORECASE)
"""`password=…`, `"api_key": "…"`, `--token …`, `environ["HF_TOKEN"] = …`."""
ASSIGNED = pattern(
    rf"(?P<name>(?<![\w.-])(?:--?{_LOOSE}(?=[= ])|{_LOOSE}(?==)|(?<=[\"']){_LOOSE}[\"']\]?))"
    rf"(?P<sign>=|\s*[=:]\s*|(?<=[\w]) ){_VALUE}",
    re.IGNORECASE,
)
WHOLE = pattern(rf"(?P<name>[+-]{{0,4}}{_NAME})(?P<sign>=)(?P<value>.*)", re.IGNORECASE | re.DOTALL)
"""A word of a command line that is one assignment: the value extends to its end, including spaces."""
HEADER = pattern(
    r"(?P<name>\bBearer\s+|\bauthorization[\"']?\s*[:=]\s*[\"']?(?:[A-Za-z][\w-]{2,20}\s+)?"
    r"|\bauth:\s+(?=[\w+/]{6,}={1,2}(?:\s|$))|\bBasic\s+(?=[A-Za-z+/]*[0-9=]))(?P<value>[\w~+/.=-]{8,})",
    re.IGNORECASE,
)
ASSIGNMENT = pattern(
    r"(?P<name>(?<![\w.$/-])-{0,2}[A-Za-z](?:[\w.]|-(?=\w)){1,60}[\"']?\]?)(?P<sign>\s?[=:]\s?)"
    r"(?P<value>[bru]{0,2}(?:\"[^\"\n]*\"|'[^'\n]*')|[^\s,;&\"'}\])]+)"
)
"""Any name and its value: whether it is a secret depends on the words of the name (`secret_words`)."""
_LOGIN = pattern(r"(?:auth|token|[_.-]key)$", re.IGNORECASE)
PASSWORD = pattern(r"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[^\s._/-]{8,}")
"""Letters and digits, and neither a version nor a path."""
LONGEST = 1 << 16
"""Characters of one text: nothing that a report, a variable or a message holds is longer, except to waste time."""
COOKIE = pattern(r"(?P<name>\bCookie[\"']?:\s*)(?P<value>[^\r\n\"'<]+)", re.IGNORECASE)
KEYED = pattern(
    r"(?P<name>(?<![\w.-])[\w.-]{0,80}key[\"']?(?:\s*[=:]\s*|\s)[\"']?)(?P<value>(?!/)(?=[\w+/-]*\d)[\w+/-]{24,}=*)",
    re.IGNORECASE,
)
"""Any key whose value is long and has a digit, so it is not the name of a column or of a dictionary entry."""
LISTED = pattern(
    rf"(?P<name>['\"](?=--?[\w.-]{{1,250}}['\"],)--?{_NAME}['\"],\s*['\"])(?P<value>[^'\"]+)", re.IGNORECASE
)
"""`'--token', '…'`: a command line as Python prints it."""
PAIR = pattern(r"(?P<name>auth[\"']?\s*[=:]\s*[(\[]\s*['\"][^'\"]*['\"],\s*['\"])(?P<value>[^'\"]+)", re.IGNORECASE)
"""`auth=("user", "…")`."""
USER = pattern(
    r"(?P<name>(?:^|\s)(?:-[uU][ \t]?|--(?:proxy-)?user[=\s]))(?P<value>(?!(?:\d+|[^\s:]+\.\w{1,4}):\d+(?:\s|$))[^\s:]+:\S+)"
)
PLAIN = frozenset(
    (
        "",
        "***",
        "none",
        "null",
        "true",
        "false",
        "yes",
        "no",
        "required",
        "optional",
        "missing",
        "enabled",
        "disabled",
        "unset",
        "file",
        "path",
        "value",
    )
)
"""Values that mean no secret, or only whether there is one."""
_OF_NAME = pattern(r"(?:ref|name|file|path|type|provider|policy)$", re.IGNORECASE)
"""Names of a secret's location or kind, which are not secrets themselves."""
SIGNALS = pattern(r"SIG[A-Z0-9]{2,8}|munge|auth/\w+|basic|bearer|kerberos|ldap|oauth2?|ssh", re.IGNORECASE)
"""Values of `sig=…` and `auth=…` that are names."""
NO_PASS = pattern(r"(?:forward|backward|first|second|third|fwd|bwd|one|two|single|grad|post|pre)[_-]pass$")
HASH = pattern(
    r"(?:sha\d*|commit|revision|digest|md5|etag|blob|checksum|hash|machine-id|boot_id)\W{1,3}$", re.IGNORECASE
)
"""Before a hexadecimal number that is not a key."""
SHORT = pattern(r"\d{1,5}(?:\.\d+)?")
"""A count."""
IDENTITIES = pattern(
    r"uuid|guid|gid|bdf|bus|digest|hash|git|commit|version|boot|machine|cpus|affinity|kernel|frames|file|path|name$|text$|code$"
)
"""Fields whose values look random but are not secret, and those that contain the user's own text."""
PROSE = pattern(r"text$|code$")
"""Lines of logs and of scripts."""
EXACT = frozenset({"schema", "collected_at", "started_at", "hostname"})
_IDENTITY = pattern(r"ADDR|HOST|NODE|_ID$|UUID|DEVICE|_FILE$|PATH|PLUGIN|HCA|IFNAME|ENDPOINT|VERSION|COMM_ID")
"""Variables with identifiers that may look random: rules judge them, and they are not secrets."""


def redact(value: Any, field: str = "") -> Any:
    """JSON values without anything that looks like a secret. `field` is the name of the value's field."""
    if isinstance(value, str):
        return value if field in EXACT else _text(value, field)
    if isinstance(value, list):
        return _words(value, field)
    if isinstance(value, dict):
        return {_text(key, ""): _member(key, item) for key, item in value.items()}
    return value


def redact_variable(name: str, value: str) -> str:
    """The value of an environment variable without secrets; the whole value is removed if the name is that of a secret."""
    if value and is_secret(name):
        return mark(value)
    return _text(value, "name" if _IDENTITY.search(name) else "")


def _member(key: str, value: Any) -> Any:
    if isinstance(value, str) and value and _holds_secret(key, value):
        return mark(value)
    return redact(value, key)


def _words(values: list[Any], field: str) -> list[Any]:
    """A list. If it is a command line, the word after `--token` is a secret too."""
    found, follows = [], False
    if values and all(isinstance(value, str) and "\t" not in value for value in values):
        line = "\t".join(values).replace(" ", "\0")  # keeps a word with spaces together
        for known in (*PLACES, USER):
            line = known.sub(lambda m: m["name"] + mark(m["value"].replace("\0", " ")).replace(" ", "\0"), line)
        values = line.replace("\0", " ").split("\t")
    for value in values:
        is_word = isinstance(value, str)
        if follows and is_word and not value.startswith("-") and not re.fullmatch(r"\d{1,2}", value):
            found.append(mark(value))
            follows = False
            continue
        whole = WHOLE.fullmatch(value) if is_word else None
        found.append(redact(value, field) if whole is None else _named(whole))
        follows = (
            is_word
            and value.startswith("-")
            and "=" not in value
            and not _OF_NAME.search(value)
            and re.fullmatch(rf"--?(?:{_NAME}|{_LOOSE})", value, re.IGNORECASE) is not None
        )
    return found


def _text(text: str, field: str) -> str:
    if len(text) < 6:
        return text
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]} ({len(text) - LONGEST} characters left out)"
    text = URL.sub(lambda m: f"{m['scheme']}***@", text)
    text = SHAPE.sub(lambda m: m[0] if _is_identity(field, m) else mark(m[0]), text)
    text = HEADER.sub(_marked, text)
    if NAMES.search(text):
        text = ASSIGNED.sub(_named, NAMED.sub(_named, text))
        for known in (ENTRY, LISTED, PAIR, KEYED):
            text = known.sub(_marked, text)
    for known in (COOKIE, *(PLACES if PROGRAMS.search(text) else ()), USER):
        text = known.sub(_marked, text)
    text = MESSAGE.sub(lambda m: _marked(m) if m["quoted"] or looks_like_key(m["value"]) else m[0], text)
    text = without_tokens(_assigned(text))
    if PROSE.search(field):
        return WORD.sub(lambda m: mark(m[0]) if is_surely_random(m[0]) else m[0], text)
    if IDENTITIES.search(field):
        return text
    return WORD.sub(lambda m: mark(m[0]) if is_random(m[0]) or is_surely_random(m[0]) else m[0], text)


def _assigned(text: str) -> str:
    """The text with the values of assignments marked whose names announce a secret.

    What follows a name that says nothing may be an assignment itself: `login failed: APP_LICENSE=…`.
    """
    pieces, done, at = [], 0, 0
    while match := ASSIGNMENT.search(text, at):
        name, value = match["name"].strip("\"'-]"), match["value"]
        if _holds_secret(name, value):
            pieces += [text[done : match.start("value")], mark(value)]
            done = at = match.end()
        else:
            at = match.end("sign")
    return "".join((*pieces, text[done:]))


def _holds_secret(name: str, value: str) -> bool:
    """Whether the value with this name is a secret: by the words of the name, or by those and its own look."""
    strength = Announces.SECRET if name.isupper() and is_secret(name) else announces(name)
    if strength is Announces.NOTHING or _is_plain(value):
        return False
    is_login = _LOGIN.search(name) is not None and PASSWORD.fullmatch(value.strip("\"'")) is not None
    return strength is Announces.SECRET or is_login or looks_like_key(value)


def _is_plain(value: str) -> bool:
    """Whether a value is a placeholder, a switch, a count, a path or code."""
    bare = value.strip("\"'")
    if (
        bare.lower() in PLAIN
        or SHORT.fullmatch(bare)
        or bare.startswith(("<", "$", "-", "***", "(", "[", "{", "/", "~", "./", "%"))
    ):
        return True
    is_quoted = value[-1:] in ('"', "'")
    return not is_quoted and re.match(r"[A-Za-z_][\w.]*[\[(.]", bare) is not None and not any(c.isdigit() for c in bare)


def _marked(match: re.Match[str]) -> str:
    """A match with its secret, `value`, marked."""
    start, end = match.span("value")
    return match.string[match.start() : start] + mark(match["value"]) + match.string[end : match.end()]


def _named(match: re.Match[str]) -> str:
    name, sign, value = match["name"].lower().rstrip("\"']"), match["sign"], match["value"].strip("\"'`")
    is_plain = (
        value.lower() in PLAIN or SHORT.fullmatch(value) is not None or value.startswith(("<", "$", "-", "***", "("))
    )
    is_plain = is_plain or (
        name.endswith("tokens") and re.fullmatch(r"[\d.,]+[kmbt]?", value, re.IGNORECASE) is not None
    )
    is_plain = is_plain or SIGNALS.fullmatch(value) is not None or NO_PASS.search(name) is not None
    is_plain = is_plain or (value.isdigit() and re.search(r"\.\w{1,4}$", name) is not None)  # file:line
    is_plain = is_plain or (value.startswith(("/", "~")) and name.endswith("pwd"))
    is_plain = is_plain or _OF_NAME.search(name) is not None
    is_plain = is_plain or (sign.startswith(" ") and re.match(r"[A-Za-z_][\w.]*[\[(]", value) is not None)  # code
    # After a space, a word is a value only if the name is an option: "token bucket" and "password file" are prose.
    is_prose = not sign.strip() and not name.startswith("-")
    if is_prose:  # the rest may still contain one: `secret otpauth://…?secret=…`
        return f"{match['name']}{sign}{NAMED.sub(_named, match['value'])}"
    return match[0] if is_plain else f"{match['name']}{sign}{mark(match['value'])}"


def _is_identity(field: str, found: re.Match[str]) -> bool:
    """Whether a hexadecimal number names something: by its field, or by the word before it."""
    if re.fullmatch(r"[0-9a-fA-F]+", found[0]) is None:
        return False
    return bool(IDENTITIES.search(field) or HASH.search(found.string, max(0, found.start() - 20), found.start()))
