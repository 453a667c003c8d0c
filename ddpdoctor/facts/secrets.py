"""Secrets by their shape, wherever they stand: tokens, keys, passwords, URLs with credentials.

What a variable's name says is in `variables.is_secret`; here it is what a text looks like, and the words around it.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from typing import Any

from ddpdoctor.facts.variables import is_secret

__all__ = ["REMOVED", "without_secrets_in"]

REMOVED = "<removed: looks like a secret>"

_SHAPES = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"\b(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{12,}\b",
    r"\bgh[opusr]_[0-9A-Za-z]{16,}\b|\bgithub_pat_\w{20,}\b|\bgl(?:pat|rt|dt|cbt|ptt|ft|soat|agent)-[\w-]{16,}",
    r"\bhf_[0-9A-Za-z]{16,}\b|\bapi_org_[0-9A-Za-z]{16,}\b|\bwandb_v\d_\w{16,}\b|\br8_[0-9A-Za-z]{16,}\b|\bnvapi-[\w-]{16,}",
    r"\b(?:sk|pk|rk)[-_](?:proj|live|test|ant|or|svcacct|lf)?[-_]?[\w-]{16,}",
    r"\bxox[a-z](?:\.xox[a-z])?-[\w-]{10,}|\bxapp-\d-[\w-]{10,}|hooks\.slack\.com/services/[\w/]+",
    r"discord(?:app)?\.com/api/webhooks/[\w/-]+|\b\d{8,10}:[\w-]{35}\b",
    r"\bAIza[\w-]{30,}|\bya29\.[\w.-]{16,}|\bGOCSPX-[\w-]{16,}|\b1//0[\w-]{16,}",
    r"\bnpm_[0-9A-Za-z]{20,}\b|\bpypi-[\w-]{16,}|\bdckr_(?:pat|oat)_[\w-]{16,}|\bdop_v1_[0-9a-f]{32,}|\bglsa_\w{20,}",
    r"\bhv[sbr]\.[\w-]{16,}|\bs\.[0-9A-Za-z]{24}\b|\bdapi[0-9a-f]{32}\b|\bSG\.[\w-]{16,}\.[\w-]{16,}|\bkey-[0-9a-f]{32}\b",
    r"\b(?:SK|AC)[0-9a-f]{32}\b|\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}\b|\blin_api_\w{20,}|\bsecret_[0-9A-Za-z]{20,}\b",
    r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?|\beyJ[\w-]{40,}={0,2}",
    r"\$(?:2[aby]|5|6|y|argon2\w*)\$[^\s:]{16,}",
    r"\bA[A-Za-z0-9_-]{2}8Q~[\w~.-]{20,}",
    r"\bAGE-SECRET-KEY-1\w{20,}|\b[a-z]{2,6}_[0-9a-f]{40,}\b|(?i:\bwebhook)[\w.-]*/[\w@/.-]{20,}",
    r"(?<![\w/+-])[0-9a-fA-F]{32}(?:[0-9a-fA-F]{8})?(?:[0-9a-fA-F]{24})?(?:[0-9a-fA-F]{64})?(?![\w/+-])",
)
SHAPE = re.compile("|".join(f"(?:{shape})" for shape in _SHAPES), re.DOTALL)
"""What vendors' tokens, private keys, JSON web tokens, password hashes and hexadecimal keys look like."""

URL = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]{0,20}://)(?:[^/?#\s'\"<>]+|[^/?#:\s'\"<>]*:(?!\d+/)[^\s'\"<>@]+)@")
"""Credentials in a URL: a password may hold what should have been escaped, and is no port."""
_FIRM = r"secret|passw(?:or)?d|passphrase|passwd|credential"
"""Words that make every name with them one of a secret."""
_KEYS = (
    r"(?:api|access|account|private|fernet|auth|encryption|signing|shared|session|service|storage|subscription|license|webhook"
    r"|wandb|comet|neptune|clearml|mlflow|openai|anthropic|hf|huggingface|aws|azure|gcp|google|s3|minio|ssh|user|client)[-_]?key|account\.key[\w.-]*"
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
"""A token that opens doors, not one of a text: `hf_token`, not `pad_token`."""
_SUFFIX = r"s?(?:[_.-]?(?:value|data|string|str|b64|base64|raw|text|plain|header|env|\d+))*(?![\w-])"
_NAME = rf"(?:[\w.-]*(?:{_FIRM})s?[\w.-]*|[\w.-]*(?:{_TOKENS}|{_KEYS}|pwd|bearer){_SUFFIX})"
_WORDS = (
    r"auth|authorization|signature|sig|cookie|creds?|(?:ssh|db|user|key|store|root|bind|admin|ldap|smtp|ftp|http|sudo)?p(?:ass|w)"
    r"|(?:github|gitlab|gh|gl|azure|ado|devops|bitbucket|personal[_-]access)[_-]?pat"
)
_LOOSE = rf"(?:[\w.-]*[_.-])?(?:{_WORDS}){_SUFFIX}"
"""Names that are also words of prose: theirs are secrets in `sig=…`, `"auth": "…"` and `--auth …` only."""
_VALUE = r"(?P<value>[bru]{0,2}(?:\"[^\"]*\"|'[^']*')|[^\s,;&\"'}\])]+)"
NAMED = re.compile(rf"(?P<name>(?<![\w.-]){_NAME}[\"']?\]?)(?P<sign>\s*[=:]\s*|\s+(?=[^\s=:])){_VALUE}", re.IGNORECASE)
"""`password=…`, `"api_key": "…"`, `--token …`, `environ["HF_TOKEN"] = …`."""
ASSIGNED = re.compile(
    rf"(?P<name>(?<![\w.-])(?:--?{_LOOSE}(?=[= ])|{_LOOSE}(?==)|(?<=[\"']){_LOOSE}[\"']\]?))"
    rf"(?P<sign>=|\s*[=:]\s*|(?<=[\w]) ){_VALUE}",
    re.IGNORECASE,
)
WHOLE = re.compile(rf"(?P<name>[+-]*{_NAME})(?P<sign>=)(?P<value>.*)", re.IGNORECASE | re.DOTALL)
"""A word of a command line that is one assignment: the value reaches to its end, blanks and all."""
HEADER = re.compile(
    r"(?P<name>\bBearer\s+|\bauthorization[\"']?\s*[:=]\s*[\"']?(?:(?:Basic|Token|Digest|ApiKey|Negotiate)\s+)?"
    r"|\bBasic\s+(?=[A-Za-z+/]*[0-9=]))(?P<value>[\w~+/.=-]{8,})",
    re.IGNORECASE,
)
COOKIE = re.compile(r"(?P<name>\bCookie[\"']?:\s*)(?P<value>[^\r\n\"'<]+)", re.IGNORECASE)
_ITS = r"\b[^|;&\n]{0,400}?\s"
PASSWORD = re.compile(
    r"(?P<name>(?:"
    rf"\b(?:sshpass|(?:docker|podman|helm\sregistry|az)\slogin|mysql(?:dump|admin)?){_ITS}-p|\bredis-cli{_ITS}-a"
    rf"|\bldap(?:search|add|modify|delete|passwd|whoami){_ITS}-w|\bipmitool{_ITS}-P|\bopenssl{_ITS}-pass(?:in|out)?\spass:"
    rf"|\bsmbclient{_ITS}-U\s[^\s%]+%"
    rf")[ \t]?)(?P<value>\"[^\"]*\"|'[^']*'|[^\s;|&]+)"
)
"""The programs of which an option of one letter is a password."""
KEYED = re.compile(
    r"(?P<name>(?<![\w.-])[\w.-]*key[\"']?(?:\s*[=:]\s*|\s)[\"']?)(?P<value>(?!/)(?=[\w+/-]*\d)[\w+/-]{24,}=*)",
    re.IGNORECASE,
)
"""Any key whose value is long and has a digit: no name of a column or of a dictionary's entry."""
LISTED = re.compile(rf"(?P<name>['\"]--?{_NAME}['\"],\s*['\"])(?P<value>[^'\"]+)", re.IGNORECASE)
"""`'--token', '…'`: a command line as Python prints it."""
PAIR = re.compile(r"(?P<name>auth[\"']?\s*[=:]\s*[(\[]\s*['\"][^'\"]*['\"],\s*['\"])(?P<value>[^'\"]+)", re.IGNORECASE)
"""`auth=("user", "…")`."""
NETRC = re.compile(r"(?P<name>\blogin\s+\S+\s+password\s+)(?P<value>\S+)")
"""A line of ~/.netrc."""
USER = re.compile(r"(?P<name>(?:^|\s)(?:-u ?|--(?:proxy-)?user[=\s]))(?P<value>(?!\d+:\d+(?:\s|$))[^\s:]+:\S+)")
PLAIN = frozenset(("", "***", "none", "null", "true", "false", "yes", "no"))
"""Values that say that there is none, or only whether there is one."""
SHORT = re.compile(r"\d{1,5}")
"""A number that counts something."""
WORD = re.compile(r"[A-Za-z0-9_+/=.~-]{20,}")
ENTROPY_BITS = 4.2
"""Bits per character: of random base64 about 4.5 in 32 characters, of names and paths below 4."""
ONE_CASE = 32
"""So many letters of one case and digits, without a stroke between them, are no name."""

IDENTITIES = re.compile(
    r"uuid|guid|gid|bdf|bus|digest|hash|git|commit|version|boot|machine|cpus|affinity|kernel|frames|file|path|name$|text$|code$"
)
"""Fields whose values look random and are known not to be secret, and those that hold the user's own words."""
EXACT = frozenset({"schema", "collected_at", "started_at", "hostname"})


def without_secrets_in(value: Any, field: str = "") -> Any:
    """JSON values without anything that looks like a secret. `field` is the name under which the value stands."""
    if isinstance(value, str):
        return value if field in EXACT else _text(value, field)
    if isinstance(value, list):
        return _words(value, field)
    if isinstance(value, dict):
        return {_text(key, ""): _member(key, each) for key, each in value.items()}
    return value


def _member(key: str, value: Any) -> Any:
    if isinstance(value, str) and value and key.isupper() and is_secret(key):
        return REMOVED
    return without_secrets_in(value, key)


def _words(values: list[Any], field: str) -> list[Any]:
    """A list; where it holds a command line, the word behind `--token` is a secret too."""
    found, follows = [], False
    if values and all(isinstance(each, str) and "\t" not in each for each in values):
        line = "\t".join(values)
        for known in (PASSWORD, USER):
            line = known.sub(lambda m: m["name"] + REMOVED, line)
        values = line.split("\t")
    for each in values:
        is_word = isinstance(each, str)
        if follows and is_word and not each.startswith("-"):
            found.append(REMOVED)
            follows = False
            continue
        found.append(WHOLE.sub(_named, each) if is_word and WHOLE.fullmatch(each) else without_secrets_in(each, field))
        follows = (
            is_word
            and each.startswith("-")
            and "=" not in each
            and re.fullmatch(rf"--?(?:{_NAME}|{_LOOSE})", each, re.IGNORECASE) is not None
        )
    return found


def _text(text: str, field: str) -> str:
    if len(text) < 6:
        return text
    text = URL.sub(lambda m: f"{m['scheme']}***@", text)
    text = SHAPE.sub(lambda m: m[0] if _is_identity(field, m[0]) else REMOVED, text)
    text = HEADER.sub(lambda m: m["name"] + REMOVED, text)
    text = ASSIGNED.sub(_named, NAMED.sub(_named, text))
    for known in (LISTED, PAIR, NETRC, COOKIE, PASSWORD, USER, KEYED):
        text = known.sub(lambda m: m["name"] + REMOVED, text)
    if IDENTITIES.search(field):
        return text
    return WORD.sub(lambda m: REMOVED if _is_random(m[0]) else m[0], text)


def _named(match: re.Match[str]) -> str:
    name, sign, value = match["name"].lower().rstrip("\"']"), match["sign"], match["value"].strip("\"'")
    is_plain = (
        value.lower() in PLAIN or SHORT.fullmatch(value) is not None or value.startswith(("<", "$", "-", "***", "("))
    )
    is_plain = is_plain or (
        name.endswith("tokens") and re.fullmatch(r"[\d.,]+[kmbt]?", value, re.IGNORECASE) is not None
    )
    is_plain = is_plain or (value.isdigit() and re.search(r"\.\w{1,4}$", name) is not None)  # file:line
    is_plain = is_plain or (value.startswith(("/", "~")) and name.endswith("pwd"))
    is_plain = is_plain or (sign.startswith(" ") and re.match(r"[A-Za-z_][\w.]*[\[(]", value) is not None)  # code
    # A word behind a blank is the value of an option only: "token bucket" and "password file" are prose.
    is_prose = not sign.strip() and not name.startswith("-")
    if is_prose:  # what stands behind may hold one all the same: `secret otpauth://…?secret=…`
        return f"{match['name']}{sign}{NAMED.sub(_named, match['value'])}"
    return match[0] if is_plain else f"{match['name']}{sign}{REMOVED}"


def _is_identity(field: str, value: str) -> bool:
    return bool(IDENTITIES.search(field)) and re.fullmatch(r"[0-9a-fA-F]+", value) is not None


def _is_random(word: str) -> bool:
    """Whether a word is as random as a key: letters of both cases and digits, hardly any repeated, or many of one case."""
    parts = [part for part in re.split(r"[/.=]", word) if len(part) >= 20]
    return any(_looks_random(part) for part in parts) or ("/" in word and len(word) == 40 and _looks_random(word))


def _looks_random(part: str) -> bool:
    is_mixed = re.search(r"[a-z]", part) and re.search(r"[A-Z]", part)
    is_long = len(part) >= ONE_CASE and part.isalnum() and re.search(r"[g-zG-Z]", part)
    if not (is_mixed or is_long) or not re.search(r"\d", part):
        return False
    changes = sum(_kind(a) != _kind(b) for a, b in itertools.pairwise(part))
    counts = Counter(part)
    bits = -sum(n / len(part) * math.log2(n / len(part)) for n in counts.values())
    return bits >= min(ENTROPY_BITS, math.log2(len(part)) * 0.85) and changes >= len(part) / 4


def _kind(character: str) -> int:
    return 0 if character.isdigit() else 1 if character.isupper() else 2
