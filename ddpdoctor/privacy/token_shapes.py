"""What tokens, keys and password hashes look like, independent of the text around them."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter

from ddpdoctor.late_pattern import pattern

__all__ = ["SHAPE", "WORD", "is_random", "is_surely_random", "looks_like_key"]

_SHAPES = (
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    r"(?<=Private-Lines: )\d+\s[\w+/=\s]{40,}(?=\nPrivate-MAC|\Z)",
    r"\bA(?:KI|SI|BI|CC|RO|ID|GP|NP|NV|PK)A[0-9A-Z]{12,}\b|\b(?:LTAI|AKID)[0-9A-Za-z]{16,}\b",
    r"\bgh[opusr]_[0-9A-Za-z]{16,}\b|\bgithub_pat_\w{20,}\b|\bgl(?:pat|rt|dt|cbt|ptt|ft|soat|agent)-[\w-]{16,}",
    r"\bhf_[0-9A-Za-z]{16,}\b|\bapi_org_[0-9A-Za-z]{16,}\b|\bwandb_v\d_\w{16,}\b|\br8_[0-9A-Za-z]{16,}\b|\bnvapi-[\w-]{16,}",
    r"\b(?:sk|pk|rk)[-_](?:proj|live|test|ant|or|svcacct|lf)?[-_]?[\w-]{16,}",
    r"\bxox[a-z](?:\.xox[a-z])?-[\w-]{10,}|\bxapp-\d-[\w-]{10,}|hooks\.slack\.com/services/[\w/]+",
    r"discord(?:app)?\.com/api/webhooks/[\w/-]+|hooks\.zapier\.com/hooks/[\w/]+|\b\d{8,10}:[\w-]{35}\b",
    r"\bAIza[\w-]{30,}|\bya29\.[\w.-]{16,}|\bGOCSPX-[\w-]{16,}|\b1//0[\w-]{16,}",
    r"\bpat[0-9A-Za-z]{14}\.[0-9a-f]{64}\b|(?<![\w-])(?=[a-z]*[2-7][a-z]*[2-7])[a-z2-7]{52}(?![\w-])",
    r"\bnpm_[0-9A-Za-z]{20,}\b|\bpypi-[\w-]{16,}|\bdckr_(?:pat|oat)_[\w-]{16,}|\bdop_v1_[0-9a-f]{32,}|\bglsa_\w{20,}",
    r"\bhv[sbr]\.[\w-]{16,}|\bs\.[0-9A-Za-z]{24}\b|\bdapi[0-9a-f]{32}\b|\bSG\.[\w-]{16,}\.[\w-]{16,}|\bkey-[0-9a-f]{32}\b",
    r"\b(?:SK|AC)[0-9a-f]{32}\b|\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}\b|\blin_api_\w{20,}|\bsecret_[0-9A-Za-z]{20,}\b",
    r"\bdt0[a-z]\d\d\.[0-9A-Z]{20,}(?:\.[0-9A-Z]{20,})?|\bsl\.[\w-]{60,}|\bMUNGE:[\w+/=]{20,}:?|\{S?S?(?:HA|MD5)\d*\}[\w+/=]{16,}",
    r"\b(?:pul|PMAK|xkeysib|xsmtpsib|rubygems|lsv2_(?:pt|sk)|sntry[su]|tk|v1\.0)[-_][0-9a-f]{24,}[\w-]*",
    r"(?<![A-Za-z0-9])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?|(?<![A-Za-z0-9])(?<!world_info=)eyJ[\w-]{40,}={0,2}",
    r"\$(?:2[aby]|5|6|y|argon2\w*)\$[^\s:]{16,}",
    r"\bA[A-Za-z0-9_-]{2}8Q~[\w~.-]{20,}",
    r"\b[a-z][a-z0-9]{1,7}_(?=[a-zA-Z]*\d)(?=[0-9a-fA-F]*[g-zG-Z])[A-Za-z0-9]{32,}\b",
    r"\bNR(?:AK|JS|RA|II|SP)-[A-Za-z0-9]{16,}|(?<![\w+/])[A-Za-z0-9+/]{86}==",
    r"\bAGE-SECRET-KEY-1\w{20,}|\b[a-z]{2,6}_[0-9a-f]{40,}\b|(?i:\bwebhook)[\w.-]*/[\w@/.-]{20,}|(?<=/hook/)(?=[\w-]*\d)[\w-]{16,}",
    r"(?<![\w/+-])[0-9a-fA-F]{32}(?:[0-9a-fA-F]{8})?(?:[0-9a-fA-F]{24})?(?:[0-9a-fA-F]{64})?(?![\w/+-])",
)
SHAPE = pattern("|".join(f"(?:{shape})" for shape in _SHAPES), re.DOTALL)
"""What vendors' tokens, private keys, JSON web tokens, password hashes and hexadecimal keys look like."""
WORD = pattern(r"(?<![A-Za-z0-9_+/.~-])(?<!world_info=)[A-Za-z0-9_+/.~-]{20,}={0,2}")
"""Long words, except the list of hosts that deepspeed passes to its launcher."""
ENTROPY_BITS = 4.2
"""Bits per character: of random base64 about 4.5 in 32 characters, of names and paths below 4."""
ONE_CASE = 32
"""A run of this many letters of one case and digits, without a hyphen, is not a name."""
AFTER_ISSUER = 24
"""A run of this length after an issuer's prefix, as in `csk-…`, is not a name."""

LONGEST = 512
"""A longer word is judged by its beginning."""
SHORT_PIECE = 12
"""A word of shorter pieces, each in one case, is a name: `lab-SYS-4028GR-TR2`."""
MANGLED = "_Z"
"""The prefix of mangled C++ function names."""
_PAIRS = frozenset(
    re.findall(
        "..",
        "abacadagaialamanaparasatauaybabebiblbobucacechcickclcocrctcudadedidodsdueaecedeeefegelemeneperesetev"
        "ewexfafefffiflfofrfugagegigrgshahehihoiaibicidieifigiliminioipirisitivizkelaldlelilllolsltlulymamemi"
        "mmmompmsmunancndnenfngninonsntnunvobocodogolomonoooporosotouovowpapepiplpoppprpsptpupyqurarcrdrergri"
        "rmrnrorrrsrtrurysascseshsisospssstsusytatctethtitltotrtstttutyuaubucueuiulumunupurusutvaveviwawiypze",
    )
)
"""The 200 most frequent pairs of letters in the names that Python's and torch's own sources use: 88 % of the pairs there."""
_RUN = pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_WORD_IN_CASE = pattern(r"[A-Z]?[a-z]+|[A-Z]+")
"""Letters as in a word: of random base62, hardly a piece of eight characters has only such runs."""
NAME_SHARE = 0.33
"""Names have at least this many of these pairs per character; so does 1 in 80 random base64 words of 20 characters."""
PATH_SHARE = 0.2
"""The same for a part of an absolute path, which is rarely a key, and for a function of a known library."""
AWS_SHARE = 0.45
"""The same for 40 characters with slashes, the length of an AWS secret access key."""
_API = pattern(r"(?:nvml|nccl|cuda|cu[A-Z]|cublas|cudnn|cufft|cusparse|hip|roc|ibv_|torch|c10d)")
"""Prefixes of functions in the libraries that a distributed job uses."""
MANY_PIECES, PIECE_LENGTH = 5, 6.5
"""A word with this many pieces, this short on average, is a name that lists settings: `LLaMA7B_FSDP_bs128_lr3e-5`."""


def is_random(word: str) -> bool:
    """Whether a word is as random as a key: letters of both cases and digits, hardly any repeated, or many of one case."""
    if word.startswith(MANGLED):
        return False
    word = word[:LONGEST]
    parts = [part for part in re.split(r"[/.=]", word) if len(part) >= 20]
    if any(_looks_random(part) and not _is_name(part, _share(word)) for part in parts):
        return True
    is_aws_key = "/" in word and len(word) == 40 and _looks_random(word)
    return is_aws_key and not _is_name(word, PATH_SHARE if _is_path(word) else AWS_SHARE)


def is_surely_random(word: str) -> bool:
    """The same for log lines, which contain names of kernels and functions: letters and digits must alternate frequently."""
    if word.startswith(MANGLED):
        return False
    word = word[:LONGEST]
    parts = re.split(r"([/._=~+-])", word)
    for at in range(0, len(parts), 2):
        part = parts[at]
        has_issuer = at >= 2 and "/" not in parts[:at] and re.match(r"[A-Za-z]{2,10}[_-]", word) is not None
        is_long = len(part) >= 20 and _is_mixed(part) and _is_varied(part, 0.45, has_issuer)
        if is_long and not _is_name(part, _share(word)):
            return True
        if has_issuer and len(part) >= AFTER_ISSUER and re.search(r"[g-zG-Z]", part) and _is_varied(part, 0.25):
            return True
    return False


_KEY = pattern(
    r"[0-9a-fA-F]{16,}|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|(?=(?:[^\d]*\d){3})[A-Za-z0-9]{16,}"
    r"|(?=(?:[^\d]*\d){2})[A-Za-z0-9+/]{24,}={0,2}|(?:[A-Z0-9]{4,8}-){3,}[A-Z0-9]{4,12}"
)


def looks_like_key(word: str) -> bool:
    """Whether a word can be a key, after a name that announces one: hexadecimal, a UUID, letters mixed with digits."""
    bare = word.strip("\"'")
    if not re.search(r"\d", bare) or not re.search(r"[A-Za-z]", bare) or bare.startswith(("/", "./", "~")):
        return False
    return _KEY.fullmatch(bare) is not None or is_random(bare) or is_surely_random(bare)


def _share(word: str) -> float:
    return PATH_SHARE if _is_path(word) or _API.match(word) else NAME_SHARE


def _is_path(word: str) -> bool:
    return word.startswith(("/", "./", "../", "~/")) and word.count("/") > 1


def _is_name(part: str, share: float) -> bool:
    """Whether a part consists of words: `nvmlDeviceGetP2PStatus`, `gpu-A100x8-rack12-node03`, `Exp17_ViT-L16_lr1e-3`."""
    pieces = re.split(r"[-_+~]", part)
    if len(pieces) >= MANY_PIECES and len(part) <= PIECE_LENGTH * len(pieces):
        return True
    runs = [run.lower() for run in _RUN.findall(part)]
    pairs = sum(one + other in _PAIRS for run in runs for one, other in itertools.pairwise(run))
    return pairs >= share * len(re.sub(r"[^A-Za-z0-9]", "", part))


def _are_words(pieces: list[str]) -> bool:
    """Whether short pieces are each in one case, or at least three are words and numbers: `HGX-B200-Node17-Row4`."""
    if not any(re.search("[a-z]", piece) and re.search("[A-Z]", piece) for piece in pieces):
        return True
    runs = [run for piece in pieces for run in re.findall(r"[A-Za-z]+", piece)]
    return len(pieces) > 2 and all(_WORD_IN_CASE.fullmatch(run) for run in runs)


def _is_mixed(part: str) -> bool:
    return all(re.search(kind, part) for kind in (r"[a-z]", r"[A-Z]", r"\d"))


def _is_varied(part: str, share: float, has_issuer: bool = False) -> bool:
    """Whether letters and digits alternate as in random text: short names have digits in one place only."""
    has_digits = len(re.findall(r"\d+", part)) > (len(part) < ONE_CASE and not has_issuer)
    return has_digits and _changes(part) >= share * (len(part) - 1) and _bits(part) >= _usual(part, 0.8)


def _looks_random(part: str) -> bool:
    is_long = len(part) >= ONE_CASE and part.isalnum() and re.search(r"[g-zG-Z]", part)
    if not ((re.search(r"[a-z]", part) and re.search(r"[A-Z]", part)) or is_long) or not re.search(r"\d", part):
        return False
    pieces = re.split("[-_]", part)
    if all(len(piece) < SHORT_PIECE for piece in pieces) and _are_words(pieces):
        return False
    return _bits(part) >= _usual(part, 0.85) and _changes(part) >= len(part) / 4


def _changes(part: str) -> int:
    """How often the kind of character changes: digit, capital, other."""
    return sum(_kind(a) != _kind(b) for a, b in itertools.pairwise(part))


def _bits(part: str) -> float:
    return -sum(n / len(part) * math.log2(n / len(part)) for n in Counter(part).values())


def _usual(part: str, share: float) -> float:
    return min(ENTROPY_BITS, math.log2(len(part)) * share)


def _kind(character: str) -> int:
    return 0 if character.isdigit() else 1 if character.isupper() else 2
